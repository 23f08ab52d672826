"""One member of a consumer group with individual commits, as a separate process that can be killed.

`python individual_worker.py BOOTSTRAP GROUP TOPIC KEEP` prints a JSON object a line. `got` is a
record that arrived. `committed` has the records of a commit that the coordinator has answered. The
member keeps every record whose offset is a multiple of KEEP unfinished; 0 keeps none. It finishes
the others in reverse order. `Member` is the other side: it starts a worker and reads its events.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, IndividualCommit
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import KafkaError
from shoal.client.net.membership import FENCED
from support.workers.worker_process import WorkerProcess

Where = tuple[int, int]


class Member(WorkerProcess):
    """A worker's process, and the partitions and offsets that it reported."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, keep: int = 0) -> None:
        self.got: list[Where] = []
        self.committed: set[Where] = set()
        super().__init__(__file__, bootstrap, group, topic, str(keep))

    def noted(self, line: bytes) -> None:
        event = json.loads(line)
        if "got" in event:
            self.got.append(tuple(event["got"]))
        else:
            self.committed |= {tuple(where) for where in event["committed"]}


def tell(**event: object) -> None:
    """Write each line at once, so that a kill leaves whole lines."""
    os.write(1, (json.dumps(event) + "\n").encode())


async def work(bootstrap: str, group: str, topic: str, keep: int) -> None:
    stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with (
        Client(bootstrap) as client,
        await GroupConsumer.join(
            client.cluster,
            group,
            [topic],
            reset=Reset.EARLIEST,
            isolation=Isolation.READ_COMMITTED,
            individual_commit=IndividualCommit(interval_ms=50),
        ) as consumer,
    ):
        while not stopped.done():
            done = []
            for record in reversed(list(await consumer.poll(200))):
                where = (record.partition, record.offset)
                tell(got=where)
                if not keep or record.offset % keep:
                    consumer.finish(record)
                    done.append(where)
            if done:
                try:
                    await consumer.commit()
                except KafkaError as error:
                    if error.code not in FENCED:
                        raise
                else:
                    tell(committed=done)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
