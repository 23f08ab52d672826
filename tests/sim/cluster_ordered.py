"""Members that share the topic `orders` by key ranges, and copy it to the topic `ranking` in
transactions that commit in the order of its partitions (ADR 138), on a simulated cluster. They use
`shoal.client` unchanged. A copy names its record and its transaction. The rules:

* `ordered-late`: a transaction was copied before a record below its first one, in a partition.
* `ordered-twice`: a record was copied twice.
* `ordered-unknown`: a copy is of no record.

At the end, all records must have been copied.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from shoal.client.admin.topics import NewTopic
from shoal.client.consume.consumer import GroupConsumer, Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import KafkaError, TransactionAbortable, expect
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from sim import cluster_ranges as ranges
from sim.cluster_clients import PARTITIONS, TOPIC, Workload, wait
from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client

GROUP, RANKING = "rankers", "ranking"
MEMBERS = 4
_SOURCES = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
_RANKING = TopicPartition(RANKING, 0)
#: Partition and offset.
Place = tuple[int, int]


class _Regret(Exception):
    """Aborts a transaction."""


class OrderedHistory:
    """What members did, and the rules for the copies."""

    def __init__(self) -> None:
        self.transactions = self.aborts = 0
        #: Whether all records are copied, and were checked.
        self.is_through = False

    def check(self, copies: Iterable[tuple[Place, str]], records: set[Place]) -> None:
        """Check the copies, in the order in which a reader gets them."""
        log = list(copies)
        of: dict[str, set[Place]] = {}
        for place, name in log:
            of.setdefault(name, set()).add(place)
        done: set[Place] = set()
        begun: set[str] = set()
        for place, name in log:
            if place in done:
                raise Violation("ordered-twice", f"{place} by {name}")
            if place not in records:
                raise Violation("ordered-unknown", f"{place} by {name}")
            if name not in begun:
                begun.add(name)
                _check_order(name, of[name], records - done - of[name])
            done.add(place)


def _check_order(name: str, mine: set[Place], left: set[Place]) -> None:
    """Check what is `left` when the first copy of a transaction appears."""
    firsts: dict[int, int] = {}
    for partition, offset in mine:
        firsts[partition] = min(offset, firsts.get(partition, offset))
    late = sorted((p, offset) for p, offset in left if offset < firsts.get(p, 0))
    if late:
        raise Violation("ordered-late", f"{name} begins at {firsts}; {late} come later")


async def prepare(load: Workload, client: Client, name: str) -> None:
    """Create the output topic, and allow key ranges for the input."""
    error = (await client.admin.topics.create([NewTopic(RANKING, 1)]))[RANKING]
    if isinstance(error, KafkaError) and error.code != ErrorCode.topic_already_exists:
        raise error
    load.topics.append(RANKING)
    await ranges.prepare(load, client, name)


async def rank(load: Workload, client: Client, name: str) -> None:
    """Run one member after the other. At the end of the run the last one stays."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    while True:
        timeout_ms = rng.choice((2_000, 5_000))
        producer = await client.transactional_producer(name, timeout_ms=timeout_ms)
        async with await GroupConsumer.join(
            client.cluster,
            GROUP,
            [TOPIC],
            reset=Reset.EARLIEST,
            isolation=Isolation.READ_COMMITTED,
            key_ranges=True,
            producer=producer,
            in_order=True,
        ) as consumer:
            until = load.now + rng.choice((1.5, 4.0, 15.0))
            while load.now < until or load.draining:
                records = list(await consumer.poll(300))
                if not records:
                    continue
                load.ordered.transactions += 1
                values = [
                    f"{r.partition}:{r.offset}:{name} {load.ordered.transactions}" for r in records
                ]
                try:
                    async with producer.transaction():
                        for value in values:
                            await producer.send(RANKING, value.encode())
                        if not load.draining and rng.random() < 0.15:
                            raise _Regret
                except (TransactionAbortable, _Regret):
                    load.ordered.aborts += 1
        await producer.close()
        await wait(rng.choice((0.0, 0.5, 2.0)))


async def read_to_the_end(load: Workload, client: Client, name: str) -> None:
    """Wait until all records are copied, and check the copies."""
    records: set[Place] = set()
    ends = expect(await client.admin.topics.offsets(dict.fromkeys(_SOURCES, -1)))
    for where in _SOURCES:
        if last := ends[where].offset:
            async for fetched in client.fetcher.fetch_range(
                where.topic, where.partition, 0, last - 1
            ):
                records |= {(where.partition, r.offset) for r in fetched.records()}
    records = {(p, offset) for p, offset in records if offset < ends[_SOURCES[p]].offset}
    copies: list[tuple[Place, str]] = []
    reader = Reader(client.cluster, {_RANKING: 0}, isolation=Isolation.READ_COMMITTED)
    while {place for place, _ in copies} < records:
        for record in await reader.poll(300):
            partition, offset, by = (record.value or b"").decode().split(":")
            copies.append(((int(partition), int(offset)), by))
        load.kernel.trace(f"{name} has {len(copies)} of {len(records)}")
    load.ordered.check(copies, records)
    load.ordered.is_through = True
