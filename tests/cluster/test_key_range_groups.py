"""A group that shares partitions by key ranges on three brokers, while members and coordinators
come, go and are killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from cluster.test_individual_commit import SESSION
from cluster.test_replication import CALM_CONFIGS
from confluent_kafka import Producer
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from support.brokers.clusters import ShoalCluster, running
from support.runs.conditions import eventually
from support.workers.range_worker import Member

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PARTITIONS = 2
KEYS = 60
MEMBERS_MAX = 5
#: Seconds of changes.
CHANGES_S = float(os.environ.get("SHOAL_KEY_RANGES_S", "60"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path, configs=CALM_CONFIGS | SESSION)) as found:
        yield found


def create(cluster: ShoalCluster, topic: str) -> None:
    async def main() -> None:
        async with Client(cluster.bootstrap) as client:
            allowed = {"shoal.key.ranges.enable": "true"}
            new = NewTopic(topic, PARTITIONS, 3, configs=allowed)
            expect(await client.admin.topics.create([new]))

    asyncio.run(main())


def coordinator(cluster: ShoalCluster, group: str) -> int:
    async def main() -> int:
        async with Client(cluster.bootstrap) as client:
            return await client.cluster.find_coordinator(group)

    return asyncio.run(main())


def committed(cluster: ShoalCluster, group: str) -> dict[TopicPartition, int]:
    async def main() -> dict[TopicPartition, int]:
        async with Client(cluster.bootstrap) as client:
            found = expect(await client.admin.groups.offsets([group]))[group]
            return {where: one.offset for where, one in found.items()}

    return asyncio.run(main())


class Load:
    """Produces records with all keys, and notes how many each partition has."""

    def __init__(self, cluster: ShoalCluster, topic: str) -> None:
        self.topic = topic
        self.counts = [0] * PARTITIONS
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
        )

    def produce(self, count: int) -> None:
        failed: list[object] = []
        for n in range(count):
            partition = n % PARTITIONS
            self._producer.produce(
                self.topic,
                b"v",
                b"k%d" % (self.counts[partition] % KEYS),
                partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            self.counts[partition] += 1
        assert self._producer.flush(60) == 0
        assert not failed


def check_order(members: Sequence[Member]) -> None:
    """A member gets the records of a key in order. It starts again only where another one, or
    itself before a fence, had not committed: it never skips a record."""
    seen: dict[tuple[int, str], set[int]] = {}
    everything = sorted(
        ((one, number) for number, m in enumerate(members) for one in m.got),
        key=lambda pair: pair[0].at_s,
    )
    for one, _ in everything:
        offsets = seen.setdefault((one.partition, one.key), set())
        before = one.offset - KEYS
        assert before < 0 or before in offsets, (one, "came before an earlier record of its key")
        offsets.add(one.offset)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_members_and_coordinators_come_and_go(cluster: ShoalCluster, seed: int) -> None:
    """Nothing is lost, and a record never comes before an earlier one of its key."""
    draw = random.Random(seed)
    topic, group = "orders", "g"
    create(cluster, topic)
    load = Load(cluster, topic)
    everyone = [Member(cluster.bootstrap, group, topic) for _ in range(3)]
    alive, killed = list(everyone), []
    ends_s = time.monotonic() + CHANGES_S
    try:
        for step in itertools.count():
            if time.monotonic() > ends_s:
                break
            what = draw.choice(["join", "stop", "kill", "coordinator", "nothing"])
            if what == "join" and len(alive) < MEMBERS_MAX:
                alive.append(Member(cluster.bootstrap, group, topic))
                everyone.append(alive[-1])
            elif what in ("stop", "kill") and len(alive) > 1:
                member = alive.pop(draw.randrange(len(alive)))
                if what == "kill":
                    member.kill9()
                    killed.append(member)
                else:
                    member.stop()
            elif what == "coordinator" and step % 3 == 0:
                victim = coordinator(cluster, group)
                cluster.nodes[victim].kill9()
                cluster.start([victim])
            load.produce(200)
            goal = sum(load.counts) - 400

            def enough(goal: int = goal) -> bool:
                return len({one[1:3] for m in everyone for one in m.got}) >= goal

            eventually(enough, timeout_s=120, what=f"{goal} records after {what}")
        eventually(
            lambda: len({one[1:3] for m in everyone for one in m.got}) == sum(load.counts),
            timeout_s=120,
            what="all records",
        )
        while alive:
            alive.pop().stop()
    finally:
        for member in alive:
            member.kill9()
    check_order(everyone)
    found = committed(cluster, group)
    assert found == {TopicPartition(topic, p): load.counts[p] for p in range(PARTITIONS)}
