"""Consumers read from the replica in their rack, also once it is gone (KIP-392)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CALM_CONFIGS
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.client.client import Client
from shoal.client.net.batches import decode
from shoal.client.settings import Settings
from shoal.record.key_ranges import KeyRanges
from support.brokers.clusters import ShoalCluster, running
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    configs = {**CALM_CONFIGS, "replica.selector.class": SELECTOR}
    folder = tmp_path_factory.mktemp("cluster")
    with running(ShoalCluster(folder, configs=configs, racks="abc")) as found:
        eventually(lambda: len(found.metadata(1).brokers) == 3)
        yield found


def sent(cluster: ShoalCluster, id: int, topic: str) -> float:
    """Return the bytes that a broker has sent to consumers of a topic."""
    name = "kafka_server_BrokerTopicMetrics_BytesOutPerSec_total"
    return sum(sample.value for sample in cluster.nodes[id].samples(name, topic=topic))


def test_ranges_are_read_in_the_rack_and_from_the_leader_otherwise(cluster: ShoalCluster) -> None:
    """As the executors of Spark read them. Another topic each time: metrics count from its
    creation."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    async def values(topic: str, rack: str) -> list[bytes]:
        properties = {"client.rack": rack} if rack else {}
        async with Client(Settings.from_bootstrap(cluster.bootstrap, properties)) as client:
            chunks = client.fetcher.fetch_range(topic, 0, 0, RECORDS - 1, chunk_bytes=500)
            return [r.value or b"" async for chunk in chunks for r in chunk.records()]

    for rack, reads in (("b", 2), ("", 1), ("elsewhere", 1)):
        topic = f"ranges-{rack}"
        made = NewTopic(topic, 1, replica_assignment=[[1, 2, 3]])
        admin.create_topics([made])[topic].result(60)
        for n in range(RECORDS):
            producer.produce(topic, b"%d" % n)
            if n % 20 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0
        assert asyncio.run(values(topic, rack)) == [b"%d" % n for n in range(RECORDS)]
        bytes_sent = {id: sent(cluster, id, topic) for id in cluster.brokers}
        # The replica of the rack may be behind at first.
        assert bytes_sent[reads] > sum(bytes_sent.values()) / 2, (rack, bytes_sent)
        assert not bytes_sent[3]


def test_a_consumer_reads_in_its_rack(cluster: ShoalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    ranged = {"shoal.key.ranges.enable": "true"}
    made = NewTopic("t", 1, replica_assignment=[[1, 2, 3]], config=ranged)
    admin.create_topics([made])["t"].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "client.rack": "c",
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []

    def read(count: int) -> bool:
        found.extend(m.value() for m in consumer.consume(100, 0.2) if not m.error())
        return len(found) >= count

    def write() -> None:
        for _ in range(RECORDS):
            producer.produce("t", b"v")
        assert producer.flush(60) == 0

    try:
        write()
        eventually(lambda: read(RECORDS))
        assert sent(cluster, 3, "t") > RECORDS
        assert not sent(cluster, 1, "t")
        check_key_ranges(cluster.nodes[3].bootstrap)
        cluster.nodes[3].kill9()
        write()
        eventually(lambda: read(2 * RECORDS))
        assert sent(cluster, 1, "t") > RECORDS, "its rack has no replica left"
        cluster.nodes[3].start()
        before = sent(cluster, 1, "t")

        def reads_there() -> bool:
            write()
            goal = len(found) + RECORDS
            eventually(lambda: read(goal))
            return sent(cluster, 3, "t") > 0

        eventually(reads_there)
        assert sent(cluster, 1, "t") >= before
        assert set(found) == {b"v"}
    finally:
        consumer.close()


def check_key_ranges(bootstrap: str) -> None:
    """A follower also leaves out records of other key ranges, up to its high watermark."""
    found = []
    with WireClient(bootstrap) as client:
        for ranges in (KeyRanges.from_part(1, 2), KeyRanges.from_part(2, 2)):
            asked = {"key_ranges": [{"first_hash": a, "last_hash": b} for a, b in ranges]}
            part = eventually(
                lambda asked=asked: (
                    (p := client.fetch("t", 0, asked=asked, rack_id="c")).next_offset == RECORDS
                    and p
                )
            )
            sent = [r.offset for r in decode(bytes(part.records))]
            assert all(ranges.has_record(None, offset) for offset in sent)
            found += sent
    assert sorted(found) == list(range(RECORDS))
