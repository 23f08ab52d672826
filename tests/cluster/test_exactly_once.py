"""A copy from topic to topic through kill -9 of the client and of brokers, record by record.

Each source record is in the target exactly once, whatever was killed. The same program runs on
Apache Kafka.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from cluster.test_individual_commit import SESSION
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.consume.consumer import Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset, find_start_offsets
from shoal.client.errors import InvalidConfiguration, expect
from shoal.client.net.cluster import TopicPartition
from support.brokers.clusters import ShoalCluster, running
from support.brokers.servers import ShoalProcess
from support.kafka import kafka_tools
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually
from support.runs.machine import lacking
from support.workers.exactly_once_worker import RECORDS_MAX, Copier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTITIONS = 2
CONFIGS = SESSION | {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("once") / "data", configs=CONFIGS).start()
    yield process
    process.kill9()


def filled(bootstrap: str, source: str, target: str, count: int, replicas: int = 1) -> None:
    """Create the topics, and `count` records in each partition of the source."""

    async def main() -> None:
        async with Client(bootstrap) as client:
            topics = [NewTopic(name, PARTITIONS, replicas) for name in (source, target)]
            expect(await client.admin.topics.create(topics))
            async with client.producer() as producer:
                for n in range(count):
                    for partition in range(PARTITIONS):
                        await producer.send(source, b"v", key=b"k%d" % n, partition=partition)

    asyncio.run(main())


def copies(bootstrap: str, target: str) -> list[list[tuple[bytes | None, bytes | None]]]:
    """Return key and value of the committed records of each partition."""

    async def main() -> list[list[tuple[bytes | None, bytes | None]]]:
        async with Client(bootstrap) as client:
            where = [TopicPartition(target, p) for p in range(PARTITIONS)]
            ends = await find_start_offsets(client.cluster, where, Reset.LATEST)
            at = dict.fromkeys(where, 0)
            reader = Reader(client.cluster, at, isolation=Isolation.READ_COMMITTED)
            found: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in where]
            async with asyncio.timeout(120):
                while any(reader.positions[p] < ends[p] for p in where):
                    for record in await reader.poll(200):
                        found[record.partition].append((record.key, record.value))
            return found

    return asyncio.run(main())


def copied(
    bootstrap: str,
    mode: str,
    count: int,
    *,
    kills: int = 3,
    replicas: int = 1,
    kill_broker: Callable[[], None] = lambda: None,
) -> None:
    """Copy under kills of the client, of the broker after the first half, and compare."""
    source, target, group = f"{mode}-in", f"{mode}-out", f"copy-{mode}"
    filled(bootstrap, source, target, count, replicas)
    total = count * PARTITIONS
    copier = Copier(bootstrap, group, source, target, "seed", mode, restarts_max=3 * kills + 10)

    def reached(goal: int) -> bool:
        copier.check()
        return copier.copied >= goal

    try:
        for kill in range(kills):
            goal = total * (kill + 1) // (kills + 2)
            eventually(lambda g=goal: reached(g), timeout_s=120, what=f"{goal} copies")
            copier.kill9()
            if kill == kills // 2:
                kill_broker()
        # A killed client may have committed what it did not report.
        eventually(lambda: reached(total - kills * RECORDS_MAX), timeout_s=300, what="the copies")
        eventually(lambda: _is_complete(bootstrap, target, copier, total), timeout_s=300)
    finally:
        copier.stop()
    found, expected = copies(bootstrap, target), _expected(count)
    if mode == "positions":
        assert found == expected
    else:
        assert [sorted(part) for part in found] == [sorted(part) for part in expected]


def _expected(count: int) -> list[list[tuple[bytes | None, bytes | None]]]:
    return [
        [(b"k%d" % n, b"%d:%d" % (partition, n)) for n in range(count)]
        for partition in range(PARTITIONS)
    ]


def _is_complete(bootstrap: str, target: str, copier: Copier, total: int) -> bool:
    copier.check()
    return sum(map(len, copies(bootstrap, target))) >= total


@pytest.mark.parametrize(
    ("mode", "kills"),
    [pytest.param("positions", 3, marks=pytest.mark.nightly), ("ranges", 2)],
)
def test_kills_of_client_and_broker(mode: str, kills: int, broker: ShoalProcess) -> None:
    def kill_broker() -> None:
        broker.kill9()
        broker.start()

    copied(broker.bootstrap, mode, 150, kills=kills, kill_broker=kill_broker)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["positions", "ranges"])
def test_brokers_of_a_cluster_are_killed(mode: str, tmp_path: Path) -> None:
    """The long form: three brokers of which any one may be killed, and 20 kills of the client."""
    rng = random.Random(mode)
    with running(ShoalCluster(tmp_path / "cluster", configs=CONFIGS)) as cluster:

        def kill_broker() -> None:
            for victim in rng.sample(sorted(cluster.nodes), len(cluster.nodes)):
                cluster.nodes[victim].kill9()
                cluster.start([victim])

        copied(cluster.bootstrap, mode, 5_000, kills=20, replicas=3, kill_broker=kill_broker)


@pytest.mark.nightly
@pytest.mark.java
@pytest.mark.timeout(300)
def test_the_same_program_on_kafka(tmp_path: Path) -> None:
    if reason := kafka_tools.absent():
        lacking(reason)
    process = KafkaProcess(tmp_path / "node").start()
    try:
        copied(process.bootstrap, "positions", 300)
    finally:
        process.kill9()


@pytest.mark.nightly
@pytest.mark.java
@pytest.mark.timeout(300)
def test_a_cluster_with_an_older_transaction_version(tmp_path: Path) -> None:
    if reason := kafka_tools.absent():
        lacking(reason)
    flags = ("--feature", "transaction.version=1")
    process = KafkaProcess(tmp_path / "node", format_flags=flags).start()

    async def main() -> None:
        async with Client(process.bootstrap) as client:
            with pytest.raises(InvalidConfiguration, match=r"has transaction\.version 1;"):
                await client.transactional_producer("p")

    try:
        asyncio.run(main())
    finally:
        process.kill9()
