"""Consumers read from the replica in their rack, also once it is gone (KIP-392)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.test_replication import CONFIGS
from clusters import ShoalCluster, running
from conditions import eventually
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.client.batches import decode
from shoal.record.key_ranges import KeyRanges
from wireclient import WireClient

if TYPE_CHECKING:
    from pathlib import Path

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS = 200


def test_a_consumer_reads_in_its_rack(tmp_path: Path) -> None:
    configs = {**CONFIGS, "replica.selector.class": SELECTOR}
    with running(ShoalCluster(tmp_path, configs=configs, racks="abc")) as cluster:
        eventually(lambda: len(cluster.metadata(1).brokers) == 3)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        made = NewTopic(
            "t", 1, replica_assignment=[[1, 2, 3]], config={"shoal.key.ranges.enable": "true"}
        )
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

        def sent(id: int) -> float:
            name = 'kafka_server_BrokerTopicMetrics_BytesOutPerSec_total{topic="t"}'
            return cluster.nodes[id].metric(name)

        try:
            write()
            eventually(lambda: read(RECORDS))
            assert sent(3) > RECORDS
            assert not sent(1)
            check_key_ranges(cluster.nodes[3].bootstrap)
            cluster.nodes[3].kill9()
            write()
            eventually(lambda: read(2 * RECORDS))
            assert sent(1) > RECORDS, "its rack has no replica left"
            cluster.nodes[3].start()
            before = sent(1)

            def reads_there() -> bool:
                write()
                goal = len(found) + RECORDS
                eventually(lambda: read(goal))
                return sent(3) > 0

            eventually(reads_there)
            assert sent(1) >= before
            assert set(found) == {b"v"}
        finally:
            consumer.close()


def check_key_ranges(bootstrap: str) -> None:
    """A follower also leaves out records of other key ranges, up to its high watermark."""
    found = []
    with WireClient(bootstrap) as client:
        for ranges in (KeyRanges.part(1, 2), KeyRanges.part(2, 2)):
            asked = {"key_ranges": [{"first_hash": a, "last_hash": b} for a, b in ranges]}
            part = eventually(
                lambda asked=asked: (
                    (p := client.fetch("t", 0, asked=asked, rack_id="c")).next_offset == RECORDS
                    and p
                )
            )
            sent = [r.offset for r in decode(bytes(part.records))]
            assert all(ranges.holds(None, offset) for offset in sent)
            found += sent
    assert sorted(found) == list(range(RECORDS))
