"""A million finished offsets above gaps, every other one, over 100 partitions: memory and CPU.

`python bench/individual_commits.py [PARTITIONS] [OFFSETS EACH]`. The broker runs in this process. A
member without a socket commits individually, so that no client is measured.

The last line is JSON: `bytes_each` the growth of Python's memory for each finished offset, and
`commit_cpu_ms` the median CPU time of a commit that finishes one more record of a partition, of the
request, the write and the answer together.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tracemalloc
from typing import TYPE_CHECKING, Any

import uvloop
from in_flight import TOPIC, Client, Turns, fill, main
from shoal.protocol.api import ApiKey
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import FinishedOffsets

if TYPE_CHECKING:
    from shoal.server.broker import Broker

GROUP, MEMBER = "finished", "A" * 22
#: Further commits of each partition.
MORE = 3


class Group:
    """The group's single member, which has all partitions."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._epoch = 0

    async def join(self, partitions: int) -> None:
        owned: Any = []
        while sum(len(topic["partitions"]) for topic in owned) < partitions:
            body = {
                "group_id": GROUP,
                "member_id": MEMBER,
                "member_epoch": self._epoch,
                "rebalance_timeout_ms": 60_000,
                "subscribed_topic_names": [TOPIC],
                "topic_partitions": owned,
            }
            answer = await self._client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
            self._epoch = answer.member_epoch or self._epoch
            if answer.assignment:
                owned = [
                    {"topic_id": topic.topic_id, "partitions": topic.partitions}
                    for topic in answer.assignment.topic_partitions
                ]
            await asyncio.sleep(0.05)

    async def commit(self, partition: int, finished: FinishedOffsets) -> float:
        """Finish offsets of a partition. Return the CPU time in ms."""
        key_range = {
            "first_hash": 0,
            "last_hash": KEY_HASH_MAX,
            "position": 0,
            "finished": finished.encode(),
        }
        row = {
            "partition_index": partition,
            "committed_offset": 0,
            "committed_metadata": None,
            "key_ranges": [key_range],
        }
        body = {
            "group_id": GROUP,
            "member_id": MEMBER,
            "generation_id_or_member_epoch": self._epoch,
            "topics": [{"name": TOPIC, "partitions": [row]}],
        }
        before_ns = self._client.cpu_ns
        answer = await self._client.call(ApiKey.OFFSET_COMMIT, 9, body)
        (found,) = answer.topics[0].partitions
        assert not found.error_code, found
        return (self._client.cpu_ns - before_ns) / 1e6


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def run(broker: Broker, partitions: int, each: int) -> dict[str, float]:
    client = Client(broker, Turns(asyncio.get_running_loop()), GROUP)
    # The last gap is behind all of them, and room for more.
    await fill(client, partitions, 2 * each + 1_000)
    group = Group(client)
    await group.join(partitions)
    finished = FinishedOffsets.from_ranges([(offset, offset) for offset in range(1, 2 * each, 2)])
    # A first commit creates what a partition with an offset has anyway.
    for partition in range(partitions):
        await group.commit(partition, FinishedOffsets.from_ranges([]))
    tracemalloc.start()
    before = held()
    for partition in range(partitions):
        await group.commit(partition, finished)
    bytes_each = (held() - before) / (partitions * each)
    tracemalloc.stop()
    # Each closes a gap between two finished records, so that the limit of ranges is kept.
    costs = [
        await group.commit(partition, FinishedOffsets.from_ranges([(2 * number, 2 * number)]))
        for number in range(1, MORE + 1)
        for partition in range(partitions)
    ]
    print(f"commits of one record: {min(costs):.3f} to {max(costs):.3f} ms", flush=True)
    return {"bytes_each": bytes_each, "commit_cpu_ms": statistics.median(costs)}


if __name__ == "__main__":
    uvloop.run(main(run, "100", "10000"))
