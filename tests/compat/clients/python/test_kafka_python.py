"""kafka-python: producing and consuming by assignment."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

_names = (f"kafka-python-{i}" for i in itertools.count())


@pytest.fixture
def topic(shared_broker: ShoalProcess) -> str:
    name = next(_names)
    admin = KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap)
    admin.create_topics([NewTopic(name, 2, 1)])
    admin.close()
    return name


@pytest.mark.parametrize(("compression", "acks"), [(None, 0), (None, "all"), ("gzip", 1)])
def test_produce_and_consume(
    shared_broker: ShoalProcess, topic: str, acks: int | str, compression: str | None
) -> None:
    producer = KafkaProducer(
        bootstrap_servers=shared_broker.bootstrap,
        acks=acks,
        compression_type=compression,
        enable_idempotence=False,
    )
    sent = [producer.send(topic, b"v%d" % i, partition=i % 2) for i in range(300)]
    producer.flush(20)
    if acks != 0:
        assert [f.get(10).offset for f in sent] == [i // 2 for i in range(300)]
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=shared_broker.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
        enable_auto_commit=False,
    )
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    found = list(itertools.islice(consumer, 300))
    assert sorted((m.partition, m.offset, m.value) for m in found) == sorted(
        (i % 2, i // 2, b"v%d" % i) for i in range(300)
    )
    assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 150}
    consumer.close()


def test_idempotent(shared_broker: ShoalProcess, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=shared_broker.bootstrap, enable_idempotence=True)
    sent = [producer.send(topic, b"v", partition=0) for _ in range(500)]
    producer.flush(20)
    assert [f.get(10).offset for f in sent] == list(range(500))
    producer.close()
