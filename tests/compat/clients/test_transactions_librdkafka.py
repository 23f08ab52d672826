"""Transactions of librdkafka (version 1 of the protocol): commit, abort, fencing, timeouts, offsets
within a transaction, and a broker that dies during one."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

_names = (f"txn-{i}" for i in itertools.count())
TIMEOUT_S = 90


@pytest.fixture
def topic(shared_broker: ShoalProcess) -> str:
    with WireClient(shared_broker.bootstrap) as client:
        name = next(_names)
        client.create_topic(name, 2)
        return name


def transactional(broker: ShoalProcess, name: str, **more: object) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0, **more}
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def read(
    broker: ShoalProcess, topic: str, *, committed: bool = True, partitions: int = 2
) -> list[bytes | None]:
    """Return all values up to the end that the isolation level shows."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": next(_names),
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found: list[bytes | None] = []
    ends: set[int] = set()
    try:
        while len(ends) < partitions:
            message: Message | None = consumer.poll(TIMEOUT_S)
            assert message is not None, f"silence after {len(found)} records"
            error = message.error()
            if error is None:
                found.append(message.value())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends.add(message.partition())
    finally:
        consumer.close()
    return found


def test_committed_records_are_read_and_aborted_ones_are_not(
    shared_broker: ShoalProcess, topic: str
) -> None:
    producer = transactional(shared_broker, topic)
    for number in range(10):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.flush(TIMEOUT_S)  # Aborted records reach the log, too.
        if number % 3:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    kept = sorted(b"%d" % n for n in range(10) if n % 3) * 2
    assert Counter(read(shared_broker, topic)) == Counter(kept)
    assert len(read(shared_broker, topic, committed=False)) == 20


def test_an_open_transaction_holds_later_records_back(
    shared_broker: ShoalProcess, topic: str
) -> None:
    slow = transactional(shared_broker, topic)
    slow.begin_transaction()
    slow.produce(topic, b"slow", partition=0)
    slow.flush(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": shared_broker.bootstrap})
    plain.produce(topic, b"plain", partition=0)
    plain.flush(TIMEOUT_S)
    assert read(shared_broker, topic) == []
    assert read(shared_broker, topic, committed=False) == [b"slow", b"plain"]
    slow.commit_transaction(TIMEOUT_S)
    assert read(shared_broker, topic) == [b"slow", b"plain"]


def test_consume_transform_produce(shared_broker: ShoalProcess, topic: str) -> None:
    """Offsets are committed with the records that were derived from them, or not at all."""
    source, sink = topic, next(_names)
    with WireClient(shared_broker.bootstrap) as client:
        client.create_topic(sink)
    plain = Producer({"bootstrap.servers": shared_broker.bootstrap})
    for number in range(100):
        plain.produce(source, b"%d" % number, partition=number % 2)
    plain.flush(TIMEOUT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": shared_broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = transactional(shared_broker, topic)
    consumer.subscribe([source])
    done, attempts = 0, 0
    while done < 100:
        batch = consumer.consume(15, 1)
        if not batch:
            continue
        producer.begin_transaction()
        for message in batch:
            producer.produce(sink, b"made of " + message.value())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(
            positions, consumer.consumer_group_metadata(), TIMEOUT_S
        )
        attempts += 1
        if attempts % 2:
            producer.abort_transaction(TIMEOUT_S)
            for at in consumer.committed(consumer.assignment(), TIMEOUT_S):
                consumer.seek(TopicPartition(at.topic, at.partition, max(at.offset, 0)))
        else:
            producer.commit_transaction(TIMEOUT_S)
            done += len(batch)
    ends = consumer.committed([TopicPartition(source, 0), TopicPartition(source, 1)], TIMEOUT_S)
    assert [at.offset for at in ends] == [50, 50]
    consumer.close()
    made = read(shared_broker, sink, partitions=1)
    assert Counter(made) == Counter(b"made of %d" % n for n in range(100))
    assert len(read(shared_broker, sink, partitions=1, committed=False)) > 100


def test_a_zombie_is_fenced(shared_broker: ShoalProcess, topic: str) -> None:
    zombie = transactional(shared_broker, topic)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie's")
    zombie.flush(TIMEOUT_S)
    heir = transactional(shared_broker, topic)

    def go_on() -> None:
        zombie.produce(topic, b"more")
        zombie.commit_transaction(TIMEOUT_S)

    with pytest.raises(KafkaException) as refused:
        go_on()
    assert refused.value.args[0].code() == KafkaError._FENCED
    heir.begin_transaction()
    heir.produce(topic, b"heir's")
    heir.commit_transaction(TIMEOUT_S)
    assert read(shared_broker, topic) == [b"heir's"]


def test_a_silent_producer_is_aborted_after_its_timeout(
    shared_broker: ShoalProcess, topic: str
) -> None:
    producer = transactional(shared_broker, topic, **{"transaction.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(topic, b"slow", partition=0)
    producer.flush(TIMEOUT_S)
    with WireClient(shared_broker.bootstrap) as client:
        found = eventually(
            lambda: f if (f := client.fetch(topic, 0)).last_stable_offset == 2 else None
        )
    assert found is not None
    assert found.high_watermark == 2
    assert read(shared_broker, topic) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)


@pytest.fixture
def durable(start_broker: Callable[..., ShoalProcess]) -> ShoalProcess:
    broker = start_broker()
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t", 2)
    return broker


def test_a_transaction_outlives_the_broker(durable: ShoalProcess) -> None:
    producer = transactional(durable, "x")
    producer.begin_transaction()
    producer.produce("t", b"before", partition=0)
    producer.flush(TIMEOUT_S)
    durable.kill9()
    durable.start()
    producer.produce("t", b"after", partition=1)
    producer.commit_transaction(TIMEOUT_S)
    assert Counter(read(durable, "t")) == Counter([b"after", b"before"])


def test_a_dead_producers_transaction_is_aborted_after_the_restart(durable: ShoalProcess) -> None:
    producer = transactional(durable, "x", **{"transaction.timeout.ms": 1_500})
    producer.begin_transaction()
    producer.produce("t", b"left", partition=0)
    producer.flush(TIMEOUT_S)
    durable.kill9()
    durable.start()
    with WireClient(durable.bootstrap) as client:
        eventually(lambda: client.fetch("t", 0).last_stable_offset == 2)
    assert read(durable, "t") == []


def committed(producer: Producer) -> bool:
    """Commit the open transaction, or abort it if its error requires that."""
    while True:
        try:
            producer.commit_transaction(TIMEOUT_S)
            return True
        except KafkaException as error:
            if error.args[0].retriable():
                continue
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT_S)
            return False


def test_transactions_are_whole_whenever_the_broker_dies(durable: ShoalProcess) -> None:
    """Killed at five random moments. Every acknowledged commit is readable, every transaction is
    complete or absent, and in the end none is open."""
    acknowledged: list[int] = []
    stop = threading.Event()

    def write() -> None:
        producer = transactional(durable, "x", **{"transaction.timeout.ms": 60_000})
        for number in itertools.count():
            if stop.is_set():
                return
            producer.begin_transaction()
            for partition in range(2):
                producer.produce("t", b"%d" % number, partition=partition)
            if committed(producer):
                acknowledged.append(number)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for round_ in range(1, 6):
        eventually(lambda goal=round_ * 20: len(acknowledged) >= goal, timeout_s=120)
        durable.kill9()
        durable.start()
    stop.set()
    writer.join(60)
    assert not writer.is_alive()
    with WireClient(durable.bootstrap) as client:
        body = {"state_filters": ["Ongoing", "PrepareCommit", "PrepareAbort"]}
        eventually(lambda: client.call(ApiKey.LIST_TRANSACTIONS, 1, body).transaction_states == ())
        for partition in range(2):
            found = client.fetch("t", 0, partition=partition)
            assert found.last_stable_offset == found.high_watermark
    shown = sorted(int(v) for v in read(durable, "t") if v is not None)
    assert shown[::2] == shown[1::2], "a transaction is in one partition and not in the other"
    assert set(acknowledged) <= set(shown)
    assert len(set(shown[::2])) == len(shown) // 2, "a transaction is there twice"
