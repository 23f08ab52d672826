"""A group member with `KeyWorkers`, as a separate process that can be killed.

`python key_worker.py BOOTSTRAP GROUP TOPIC WORK_MS KEY_RANGES` prints a JSON list a line: `begun`
or `ended`, partition, offset and key of a record whose handler begins or returns, and the monotonic
time of the machine. With KEY_RANGES 1, it shares partitions. `Worker` is the other side: it starts
the process and reads its events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit
from shoal.client.consume.key_workers import KeyWorkers
from shoal.client.consume.start_offsets import Reset
from support.workers.worker_process import WorkerProcess

if TYPE_CHECKING:
    from shoal.client.consume.consumer import Record

Begun = tuple[int, int, str]


class Worker(WorkerProcess):
    """A worker's process, and what it reported, in order."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, *, work_ms: int = 1, key_ranges: bool = False
    ) -> None:
        self.events: list[tuple[str, Begun]] = []
        #: When each event happened.
        self.times_s: list[float] = []
        super().__init__(__file__, bootstrap, group, topic, str(work_ms), str(int(key_ranges)))

    def noted(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):  # The kill may cut the last line.
            name, where, at_s = json.loads(line)
            self.times_s.append(at_s)
            self.events.append((name, tuple(where)))

    @property
    def ended(self) -> list[Begun]:
        return [where for name, where in list(self.events) if name == "ended"]


def tell(name: str, record: Record) -> None:
    key = (record.key or b"").decode()
    event = [name, [record.partition, record.offset, key], time.monotonic()]
    os.write(1, (json.dumps(event) + "\n").encode())


async def work(bootstrap: str, group: str, topic: str, work_ms: int, key_ranges: bool) -> None:
    loop = asyncio.get_running_loop()

    async def handle(record: Record) -> None:
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
            key_ranges=key_ranges,
        ) as consumer,
    ):
        workers = KeyWorkers(consumer, handle, keys_max=8, records_max=40)
        stopped = loop.run_in_executor(None, sys.stdin.read)
        stopped.add_done_callback(lambda _: workers.stop())
        await workers.run()


if __name__ == "__main__":
    where, group_id, name, milliseconds, shares = sys.argv[1:]
    asyncio.run(work(where, group_id, name, int(milliseconds), shares == "1"))
