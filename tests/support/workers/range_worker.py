"""One member of a consumer group that shares partitions by key ranges, as a process to be killed.

`python range_worker.py BOOTSTRAP GROUP TOPIC` prints a JSON object a line, with the monotonic time
of the machine. `got` is a record that arrived: partition, offset and key. `owns` is the number of
hashes that the member has of each partition, after a change. It commits after each poll. `Member`
is the other side: it starts a worker and reads its events.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import NamedTuple

from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.consume.rebalance_listener import Ranges, RebalanceListener
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import KafkaError
from shoal.client.net.membership import FENCED
from support.workers.worker_process import WorkerProcess


class Got(NamedTuple):
    """A record that a member got, and when."""

    at_s: float
    partition: int
    offset: int
    key: str


class Member(WorkerProcess):
    """A worker's process, and what it reported."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.got: list[Got] = []
        #: The number of hashes by partition.
        self.owns: dict[str, int] = {}
        #: When its ranges changed last.
        self.changed_s = 0.0
        super().__init__(__file__, bootstrap, group, topic)

    def noted(self, line: bytes) -> None:
        event = json.loads(line)
        if "got" in event:
            self.got.append(Got(event["at_s"], *event["got"]))
        else:
            self.owns, self.changed_s = event["owns"], event["at_s"]


def tell(**event: object) -> None:
    """Write each line at once, so that a kill leaves whole lines."""
    os.write(1, (json.dumps({"at_s": time.monotonic(), **event}) + "\n").encode())


class Reporter(RebalanceListener):
    """Prints what the member owns."""

    def __init__(self) -> None:
        self.widths: dict[str, int] = {}

    def _add(self, ranges: Ranges, sign: int) -> None:
        for where, some in ranges.items():
            width = sum(one.last - one.first + 1 for one in some)
            name = str(where.partition)
            self.widths[name] = self.widths.get(name, 0) + sign * width
        tell(owns={name: width for name, width in self.widths.items() if width})

    async def on_assigned(self, ranges: Ranges) -> None:
        self._add(ranges, 1)

    async def on_revoked(self, ranges: Ranges) -> None:
        self._add(ranges, -1)

    async def on_lost(self, ranges: Ranges) -> None:
        self._add(ranges, -1)


async def work(bootstrap: str, group: str, topic: str) -> None:
    stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with (
        Client(bootstrap) as client,
        await GroupConsumer.join(
            client.cluster,
            group,
            [topic],
            reset=Reset.EARLIEST,
            key_ranges=True,
            listener=Reporter(),
        ) as consumer,
    ):
        while not stopped.done():
            for record in await consumer.poll(200):
                tell(got=(record.partition, record.offset, (record.key or b"").decode()))
            try:
                await consumer.commit()
            except KafkaError as error:
                if error.code not in FENCED:
                    raise


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:4]))
