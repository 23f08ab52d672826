"""librdkafka (confluent-kafka): producers of every kind, and consumers by assignment."""

from __future__ import annotations

import itertools
import os
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.brokers.servers import ShoalProcess

_names = (f"rdkafka-{i}" for i in itertools.count())


@pytest.fixture
def topic(shared_broker: ShoalProcess) -> str:
    return make_topic(shared_broker)


def make_topic(broker: ShoalProcess, partitions: int = 1, **configs: str) -> str:
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in configs.items()})
    admin.create_topics([new])[name].result(20)
    return name


def produce(broker: ShoalProcess, topic: str, values: Iterable[bytes], **conf: object) -> list[int]:
    """Produce and wait; return the offsets, in the order of the values."""
    offsets: dict[int, int] = {}

    def delivered(number: int, error: object, message: Message) -> None:
        assert error is None, error
        offsets[number] = message.offset()

    producer = Producer({"bootstrap.servers": broker.bootstrap, **conf})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=0,
            on_delivery=lambda e, m, number=number: delivered(number, e, m),
        )
        producer.poll(0)
    assert producer.flush(30) == 0
    return [offsets[number] for number in sorted(offsets)]


def consumer(broker: ShoalProcess, **conf: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            **conf,
        }
    )


def consume(broker: ShoalProcess, topic: str, count: int, **conf: object) -> list[Message]:
    """Return the first `count` messages of partition 0."""
    reader = consumer(broker, **conf)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Message] = []
    while len(found) < count:
        batch = reader.consume(count - len(found), 20)
        assert batch, f"{len(found)} of {count} within 20 s"
        for message in batch:
            assert message.error() is None, message.error()
        found += batch
    reader.close()
    return found


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(shared_broker: ShoalProcess, topic: str, acks: str) -> None:
    values = [b"v%d" % i for i in range(1000)]
    offsets = produce(shared_broker, topic, values, acks=acks)
    if acks != "0":
        assert offsets == list(range(1000))
    assert [m.value() for m in consume(shared_broker, topic, 1000)] == values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_goes_through(shared_broker: ShoalProcess, topic: str, codec: str) -> None:
    values = [b"value %d " % i * 50 for i in range(500)]
    produce(shared_broker, topic, values, **{"compression.type": codec, "linger.ms": 50})
    assert [m.value() for m in consume(shared_broker, topic, 500)] == values


def test_idempotent(shared_broker: ShoalProcess, topic: str) -> None:
    values = [b"v%d" % i for i in range(20_000)]
    offsets = produce(shared_broker, topic, values, **{"enable.idempotence": True})
    assert offsets == list(range(20_000))
    assert [m.value() for m in consume(shared_broker, topic, 20_000)] == values


def test_large_records(shared_broker: ShoalProcess) -> None:
    topic = make_topic(shared_broker, max_message_bytes="20000000")
    values = [os.urandom(size) for size in (1, 900_000, 5_000_000, 10_000_000, 3)]
    produce(shared_broker, topic, values, **{"message.max.bytes": 20_000_000})
    found = consume(
        shared_broker, topic, 5, **{"fetch.message.max.bytes": 1000, "fetch.max.bytes": 20_000_000}
    )
    assert [m.value() for m in found] == values


def test_a_record_too_large_is_refused(shared_broker: ShoalProcess) -> None:
    topic = make_topic(shared_broker, max_message_bytes="1000")
    errors = []
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    producer.produce(topic, bytes(2000), on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert [e.name() for e in errors] == ["MSG_SIZE_TOO_LARGE"]


def test_keys_headers_and_timestamps(shared_broker: ShoalProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    producer.produce(topic, b"v", b"k", headers={"a": b"1", "b": None}, timestamp=1234)
    producer.produce(topic, None, b"gone")
    assert producer.flush(20) == 0
    first, second = consume(shared_broker, topic, 2)
    assert (first.key(), first.timestamp()[1], first.headers()) == (
        b"k",
        1234,
        [("a", b"1"), ("b", None)],
    )
    assert second.value() is None


def test_log_append_time(shared_broker: ShoalProcess) -> None:
    topic = make_topic(shared_broker, message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    producer.produce(topic, b"v", timestamp=1234)
    assert producer.flush(20) == 0
    (message,) = consume(shared_broker, topic, 1, **{"check.crcs": True})
    assert message.timestamp()[1] > 1_600_000_000_000


def test_offsets_by_time_and_watermarks(shared_broker: ShoalProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap})
    for timestamp_ms in (1000, 2000, 3000):
        producer.produce(topic, b"v", timestamp=timestamp_ms)
        producer.flush(20)
    reader = consumer(shared_broker)
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=90) == (0, 3)

    def offset_at(timestamp_ms: int) -> int:
        return reader.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], 10)[0].offset

    assert (offset_at(1500), offset_at(3000), offset_at(9000)) == (1, 2, -1)
    reader.close()
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    partition = TopicPartition(topic, 0)
    latest = admin.list_offsets({partition: OffsetSpec.max_timestamp()})[partition].result(10)
    assert (latest.offset, latest.timestamp) == (2, 3000)


def test_delete_records(shared_broker: ShoalProcess, topic: str) -> None:
    produce(shared_broker, topic, [b"%d" % i for i in range(10)])
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    partition = TopicPartition(topic, 0, 7)
    assert admin.delete_records([partition])[partition].result(20).low_watermark == 7
    found = consume(shared_broker, topic, 3, **{"auto.offset.reset": "earliest"})
    assert [m.value() for m in found] == [b"7", b"8", b"9"]


def test_a_consumer_at_the_end_waits_for_new_records(
    shared_broker: ShoalProcess, topic: str
) -> None:
    reader = consumer(shared_broker)
    reader.assign([TopicPartition(topic, 0, OFFSET_END)])
    assert reader.consume(1, 0.5) == []
    produce(shared_broker, topic, [b"now"])
    assert [m.value() for m in reader.consume(1, 10)] == [b"now"]
    reader.close()


def test_records_outlive_a_restart_and_a_crash(broker: ShoalProcess) -> None:
    topic = make_topic(broker)
    produce(broker, topic, [b"a", b"b"])
    broker.restart()
    produce(broker, topic, [b"c"])
    broker.kill9()
    broker.start()
    assert produce(broker, topic, [b"d"]) == [3]
    assert [m.value() for m in consume(broker, topic, 4)] == [b"a", b"b", b"c", b"d"]


def test_an_idempotent_producer_continues_over_a_crash(broker: ShoalProcess) -> None:
    topic = make_topic(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    failed: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(50):
        producer.produce(topic, b"%d" % number, on_delivery=delivered)
    assert producer.flush(20) == 0
    broker.kill9()
    broker.start()
    for number in range(50, 100):
        producer.produce(topic, b"%d" % number, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert not failed
    assert [m.value() for m in consume(broker, topic, 100)] == [b"%d" % i for i in range(100)]
