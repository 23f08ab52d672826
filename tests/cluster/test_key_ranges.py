"""Readers that share partitions by key ranges, through kill -9 of the leaders."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CALM_CONFIGS
from confluent_kafka import KafkaException, Producer
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import Client
from shoal.client.consume.consumer import Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.record.key_ranges import KeyRanges
from support.brokers.clusters import ShoalCluster, running
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.client.consume.consumer import Record

TOPIC = "orders"
PARTITIONS, READERS, KEYS = 2, 4, 40
#: Records of a transaction. Every third transaction is aborted.
TRANSACTION, TRANSACTIONS = 40, 120
KILLS = 3
WHERE = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]


class Readers(threading.Thread):
    """Readers in one loop of their own, whose ranges tile the hashes. They end at `ends`."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self.got: list[list[Record]] = [[] for _ in range(READERS)]
        self.ends: dict[TopicPartition, int] | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._read())
        except BaseException as error:
            self.error = error

    async def _read(self) -> None:
        async with Client(self._address) as client:
            await asyncio.gather(*(self._one(client, n) for n in range(READERS)))

    async def _one(self, client: Client, number: int) -> None:
        positions = dict.fromkeys(WHERE, 0)
        reader = Reader(client.cluster, positions, isolation=Isolation.READ_COMMITTED)
        await reader.assign(dict.fromkeys(WHERE, KeyRanges.from_part(number + 1, READERS)))
        while self.ends is None or any(reader.positions[p] < end for p, end in self.ends.items()):
            self.got[number] += await reader.poll(200)


def on_cluster(cluster: ShoalCluster, work: Any) -> Any:
    async def main() -> Any:
        async with Client(cluster.bootstrap) as client:
            return await work(client)

    return asyncio.run(main())


async def create(client: Client) -> None:
    enabled = {"shoal.key.ranges.enable": "true"}
    expect(await client.admin.topics.create([NewTopic(TOPIC, PARTITIONS, 3, configs=enabled)]))


async def leader(client: Client) -> int:
    return await client.cluster.find_leader(TOPIC, 0)


async def ends(client: Client) -> dict[TopicPartition, int]:
    asked = dict.fromkeys(WHERE, int(OffsetSpec.LATEST))
    return {p: o.offset for p, o in expect(await client.admin.topics.offsets(asked)).items()}


@pytest.mark.nightly
def test_leaders_are_killed(tmp_path: Path) -> None:
    """Each committed record is read once, and the records of a key by one reader in order."""
    with running(ShoalCluster(tmp_path, configs=CALM_CONFIGS)) as cluster:
        on_cluster(cluster, create)
        readers = Readers(cluster.bootstrap)
        readers.start()
        written = set(write(cluster, readers))
        readers.ends = on_cluster(cluster, ends)
        readers.join(120)
        assert readers.error is None
        assert not readers.is_alive()
    read = [r for records in readers.got for r in records]
    assert len(read) == len(written)
    assert {r.value for r in read} == written
    for number, records in enumerate(readers.got):
        assert len({r.key for r in records}) > KEYS // READERS // 3
        for others in readers.got[number + 1 :]:
            assert {r.key for r in records}.isdisjoint(r.key for r in others)
        for partition in range(PARTITIONS):
            offsets = [r.offset for r in records if r.partition == partition]
            assert offsets == sorted(offsets)


def write(cluster: ShoalCluster, readers: Readers) -> list[bytes]:
    """Write transactions, and kill the leader of partition 0 now and then. Return the committed
    values."""
    properties = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": "w",
        "compression.type": "lz4",
        "log_level": 0,
    }
    producer = Producer(properties)
    producer.init_transactions()
    committed: list[bytes] = []
    victim = None
    for number in range(TRANSACTIONS):
        if number % (TRANSACTIONS // KILLS) == TRANSACTIONS // KILLS // 2:
            if victim is not None:
                cluster.start([victim])
            victim = on_cluster(cluster, leader)
            eventually(lambda: any(readers.got), what="the readers read")
            cluster.nodes[victim].kill9()
        values = [b"%d-%d" % (number, one) for one in range(TRANSACTION)]
        producer.begin_transaction()
        for one, value in enumerate(values):
            producer.produce(TOPIC, value, b"k%d" % (one % KEYS), partition=one % PARTITIONS)
        if ended(producer, commit=number % 3 != 2):
            committed += values
    if victim is not None:
        cluster.start([victim])
    return committed


def ended(producer: Producer, *, commit: bool) -> bool:
    """End the transaction; return whether it is committed. A coordinator may be dead meanwhile."""
    while True:
        try:
            if commit:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort():
                commit = False
            elif not reason.retriable():
                raise
        else:
            return commit
