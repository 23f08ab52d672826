"""A group member with `KeyWorkers`, as a separate process that can be killed.

`python key_worker.py BOOTSTRAP GROUP TOPIC WORK_MS` prints a JSON object a line: `begun` and
`ended` have partition, offset and key of a record whose handler begins or returns, and `committed`
has the stable offset and the finished ranges of each partition that the coordinator has answered.
`Worker` is the other side: it starts the process and reads its events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from shoal.client.client import Client
from shoal.client.consumer import GroupConsumer, IndividualCommit, Reset
from shoal.client.key_workers import KeyWorkers
from worker_process import WorkerProcess

if TYPE_CHECKING:
    from shoal.client.consumer import ConsumedRecord

Begun = tuple[int, int, str]


class Worker(WorkerProcess):
    """A worker's process, and what it reported, in order."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, work_ms: int = 1) -> None:
        self.events: list[tuple[str, Begun]] = []
        super().__init__(__file__, bootstrap, group, topic, str(work_ms))

    def noted(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):  # The kill may cut the last line.
            name, where = json.loads(line)
            self.events.append((name, tuple(where)))

    @property
    def ended(self) -> list[Begun]:
        return [where for name, where in list(self.events) if name == "ended"]


def tell(name: str, record: ConsumedRecord) -> None:
    key = (record.key or b"").decode()
    os.write(1, (json.dumps([name, [record.partition, record.offset, key]]) + "\n").encode())


async def work(bootstrap: str, group: str, topic: str, work_ms: int) -> None:
    loop = asyncio.get_running_loop()

    async def handle(record: ConsumedRecord) -> None:
        tell("begun", record)
        over = loop.create_future()
        loop.call_later(work_ms / 1000, over.set_result, None)
        await over
        tell("ended", record)

    async with (
        Client(bootstrap) as client,
        await GroupConsumer.join(
            client.cluster,
            group,
            [topic],
            reset=Reset.EARLIEST,
            individual_commit=IndividualCommit(interval_ms=50),
        ) as consumer,
    ):
        workers = KeyWorkers(consumer, handle, keys_max=8, records_max=40)
        stopped = loop.run_in_executor(None, sys.stdin.read)
        stopped.add_done_callback(lambda _: workers.stop())
        await workers.run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
