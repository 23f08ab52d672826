"""Members that share a partition by key ranges, with Zipf keys: the busiest against the mean.

The key k has 1/k of the records of the first one. Eight members start with equal ranges, and the
broker has its default configs. The figures leave out the records of the first key: one member has
all of them, wherever the boundaries are.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from load_checks import LoadFailed
from range_readers import DIVIDED
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.consume.start_offsets import Reset
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.key_range_map import subtract

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from load_setup import Figures, Run

KEYS, MEMBERS = 10_000, 8
HOTTEST = b"k1"
#: Records that are counted with equal ranges, and after the boundaries have moved.
RECORDS = 200_000
#: Records that are under way at a time.
CHUNK = 2_000
TIMEOUT_S = 300
#: All members have heartbeats within this time.
SETTLED_S = 3.0


class Group:
    """The members, and what they got since the last `begin`."""

    def __init__(self) -> None:
        self.members: list[GroupConsumer] = []
        self.read = 0
        self._counts: list[Counter[bytes | None]] = []

    def begin(self) -> None:
        self._counts = [Counter() for _ in self.members]

    async def run(self, number: int) -> None:
        member = self.members[number]
        while True:
            records = [r.key for r in await member.poll(100)]
            self._counts[number].update(records)
            self.read += len(records)
            await member.commit()

    @property
    def counted(self) -> int:
        return sum(some.total() for some in self._counts)

    @property
    def busiest(self) -> float:
        """The records of the busiest member against the mean."""
        loads = [some.total() - some[HOTTEST] for some in self._counts]
        return max(loads) * len(loads) / sum(loads)

    def ranges(self) -> list[list[tuple[int, int]]]:
        return [ranges_of(member) for member in self.members]

    def tile(self) -> bool:
        return tile(self.ranges())

    async def is_settled(self) -> bool:
        """Whether the ranges stay as they are: those of some members move before others."""
        before = self.ranges()
        await asyncio.sleep(SETTLED_S)
        return self.tile() and self.ranges() == before


def tile(found: Sequence[Sequence[tuple[int, int]]]) -> bool:
    """Return whether each member has key ranges, and all together have all hashes."""
    return all(found) and _width(r for some in found for r in some) == KEY_HASH_MAX + 1


def ranges_of(member: GroupConsumer) -> list[tuple[int, int]]:
    return [(r.first, r.last) for ranges in member.key_ranges.values() for r in ranges]


def _width(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def key_range_balance(run: Run) -> Figures:
    return asyncio.run(_measure(run, run.topic(configs=DIVIDED)))


async def _measure(run: Run, topic: str) -> Figures:
    group, name = Group(), f"bench-{uuid.uuid4().hex[:10]}"
    clients = [Client(run.bootstrap) for _ in range(MEMBERS)]
    group.members = [
        await GroupConsumer.join(
            client.cluster, name, [topic], reset=Reset.EARLIEST, key_ranges=True
        )
        for client in clients
    ]
    group.begin()
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        polls = [tasks.create_task(group.run(n)) for n in range(MEMBERS)]
        while not group.tile():
            await asyncio.sleep(0.05)
        producing = tasks.create_task(_produce(run.bootstrap, topic, group))
        equal, count = group.ranges(), run.count(RECORDS)
        before = await _busiest(group, count)
        while group.ranges() == equal or not await group.is_settled():
            await asyncio.sleep(0.05)
        moved = sum(_width(subtract(b, a)) for a, b in zip(equal, group.ranges(), strict=True))
        after = await _busiest(group, count)
        for task in (producing, *polls):
            task.cancel()
    for member, client in zip(group.members, clients, strict=True):
        await member.close()
        await client.close()
    if before <= after:
        raise LoadFailed(f"the busiest member had {before:.2f} times the mean, then {after:.2f}")
    return {
        "busiest_before": before,
        "busiest": after,
        "moved_percent": moved / (KEY_HASH_MAX + 1) * 100,
    }


async def _busiest(group: Group, count: int) -> float:
    group.begin()
    while group.counted < count:
        await asyncio.sleep(0.05)
    return group.busiest


async def _produce(bootstrap: str, topic: str, group: Group) -> None:
    """Write records as fast as the members read them."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    draw, keys = random.Random(1), range(1, KEYS + 1)
    weights = [1 / key for key in keys]
    sent = 0
    while True:
        for key in draw.choices(keys, weights, k=CHUNK):
            producer.produce(topic, b"v" * 100, f"k{key}", partition=0)
        await asyncio.to_thread(producer.flush, 60)
        sent += CHUNK
        while sent - group.read > CHUNK:
            await asyncio.sleep(0.005)
