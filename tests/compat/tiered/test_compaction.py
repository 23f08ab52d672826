"""A compacted topic in the object store: librdkafka reads the last value of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.storage.tiered_topics import MB, TIMEOUT_S, Tiered, create, settings, sizes

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("obstore")

ENABLED = {"shoal.remote.compacted.topics.enable": "true"}
KEYS = 500


def write(bootstrap: str, value: int) -> None:
    """Write 1 MB: one value to each key."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 100})
    for key in range(KEYS):
        producer.produce("t", b"%d" % value + bytes(2000), b"%d" % key)
    assert producer.flush(TIMEOUT_S) == 0


def last_values(bootstrap: str) -> dict[bytes, int]:
    """Read the topic from its start. Return the last value of each key."""
    config = {"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True}
    client = Consumer(config)
    client.assign([TopicPartition("t", 0, 0)])
    found: dict[bytes, int] = {}
    try:
        while True:
            message = client.poll(TIMEOUT_S)
            assert message is not None, "the end of the partition does not come"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            found[message.key()] = int(message.value().rstrip(b"\0"))
    finally:
        client.close()


def test_compacted_topics_are_tiered_behind_a_switch(tmp_path: Path) -> None:
    configs = settings(tmp_path / "store") | {"log.cleaner.backoff.ms": "100"}
    broker = ShoalProcess(tmp_path / "data", configs=configs | ENABLED).start()
    tiered = Tiered(
        broker, tmp_path / "store", AdminClient({"bootstrap.servers": broker.bootstrap})
    )
    try:
        create(tiered.admin, cleanup_policy="compact")
        rounds = 5
        for value in range(rounds):
            write(broker.bootstrap, value)
            eventually(
                lambda end=(value + 1) * KEYS: tiered.local_logs()[0] > end - 700,
                timeout_s=TIMEOUT_S,
            )
            assert last_values(broker.bootstrap) == {b"%d" % k: value for k in range(KEYS)}
        # 5 MB were copied, and about the last values are left.
        eventually(
            lambda: sum(sizes(tiered.objects()).values()) < 3.5 * MB,
            timeout_s=TIMEOUT_S,
        )
        assert broker.metric("shoal_remote_cleanings_total") > 1
        broker.kill9()
        broker.start()
        assert last_values(broker.bootstrap) == {b"%d" % k: rounds - 1 for k in range(KEYS)}
    finally:
        broker.kill9()
    # Without the switch, Kafka's answer.
    broker = ShoalProcess(tmp_path / "other", configs=configs).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        with pytest.raises(KafkaException, match=r"topics with cleanup\.policy=delete"):
            create(admin, cleanup_policy="compact")
    finally:
        broker.kill9()
