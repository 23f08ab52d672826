"""confluent-kafka's ShareConsumer (librdkafka) against a real broker: KIP-932 as users see it."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
#: Locks short enough that tests see them expire.
SHORT_LOCKS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
}


class Queue:
    """A topic, and groups on it that start at its beginning."""

    def __init__(self, broker: ShoalProcess, partitions: int = 1) -> None:
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        made = self.admin.create_topics([NewTopic(self.topic, partitions, 1)])
        made[self.topic].result(15)
        self.configure(**{"share.auto.offset.reset": "earliest"})

    def configure(self, **configs: str) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(
            ConfigResource.Type.GROUP, self.group, incremental_configs=entries
        )
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(15)

    def produce(self, count: int, *, begin: int = 0, batch: int = 1000) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "batch.num.messages": batch,
                "linger.ms": 5,
            }
        )
        for value in range(begin, begin + count):
            producer.produce(self.topic, str(value).encode())
        assert producer.flush(15) == 0

    @contextmanager
    def consumer(self, mode: str = "explicit", /, **settings: object) -> Iterator[ShareConsumer]:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": self.group,
                "share.acknowledgement.mode": mode,
                **settings,
            }
        )
        consumer.subscribe([self.topic])
        try:
            yield consumer
        finally:
            consumer.close()


def take(
    consumer: ShareConsumer,
    count: int,
    *,
    acknowledge: Callable[[Message], AcknowledgeType] | None = None,
    timeout_s: float = 120.0,
) -> list[Message]:
    """Poll until `count` records have come. Each is acknowledged; each poll is committed."""
    taken: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records came"
        polled = consumer.poll(0.5)
        for message in polled:
            assert message.error() is None, message.error()
            taken.append(message)
            if acknowledge is not None:
                consumer.acknowledge(message, acknowledge(message))
        if acknowledge is not None and polled:
            assert not [e for e in consumer.commit_sync(60).values() if e is not None]
    return taken


def nothing_comes(consumer: ShareConsumer, for_s: float = 1.0) -> bool:
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        if consumer.poll(0.2):
            return False
    return True


def offsets(messages: list[Message]) -> list[int]:
    return sorted(message.offset() for message in messages)


def always(kind: AcknowledgeType) -> Callable[[Message], AcknowledgeType]:
    return lambda message: kind


def test_explicit_acceptance_is_final(shared_broker: ShoalProcess) -> None:
    queue = Queue(shared_broker)
    queue.produce(100)
    with queue.consumer() as consumer:
        taken = take(consumer, 100, acknowledge=always(ACCEPT))
        assert offsets(taken) == list(range(100))
        assert {m.delivery_count() for m in taken} == {1}
    with queue.consumer() as consumer:
        assert nothing_comes(consumer)


def test_implicit_mode_accepts_with_the_next_poll(shared_broker: ShoalProcess) -> None:
    queue = Queue(shared_broker)
    queue.produce(50)
    with queue.consumer("implicit") as consumer:
        assert offsets(take(consumer, 50)) == list(range(50))
        consumer.poll(0.2)
        assert not [e for e in consumer.commit_sync(60).values() if e is not None]
    with queue.consumer("implicit") as consumer:
        assert nothing_comes(consumer)


def test_a_group_starts_at_the_end_by_default(shared_broker: ShoalProcess) -> None:
    """KIP-932: "share.auto.offset.reset … default latest"."""
    queue = Queue(shared_broker)
    queue.group = f"latest-{queue.group}"
    queue.produce(5)
    with queue.consumer() as consumer:
        eventually(lambda: not consumer.poll(0.5), what="joined")
        queue.produce(3, begin=5)
        assert offsets(take(consumer, 3, acknowledge=always(ACCEPT))) == [5, 6, 7]


def test_a_released_record_comes_back_with_a_higher_delivery_count(
    shared_broker: ShoalProcess,
) -> None:
    """KIP-932: RELEASE makes a record available for another delivery attempt."""
    queue = Queue(shared_broker)
    queue.produce(10)

    def release_offset_three_once(message: Message) -> AcknowledgeType:
        first = message.offset() == 3 and message.delivery_count() == 1
        return RELEASE if first else ACCEPT

    with queue.consumer() as consumer:
        taken = take(consumer, 11, acknowledge=release_offset_three_once)
        again = [m for m in taken if m.offset() == 3]
        assert [m.delivery_count() for m in again] == [1, 2]


def test_a_rejected_record_is_not_delivered_again(shared_broker: ShoalProcess) -> None:
    queue = Queue(shared_broker)
    queue.produce(4)
    with queue.consumer() as consumer:
        take(consumer, 4, acknowledge=lambda m: REJECT if m.offset() == 1 else ACCEPT)
        assert nothing_comes(consumer)


def test_a_record_is_delivered_no_more_often_than_the_limit(shared_broker: ShoalProcess) -> None:
    """KIP-932: at the delivery count limit a record is archived. KAFKA-17541: it is alone at its
    last attempt, so that the others of its batch survive."""
    queue = Queue(shared_broker)
    queue.configure(**{"share.delivery.count.limit": "3"})
    queue.produce(20)
    with queue.consumer() as consumer:
        taken = take(consumer, 22, acknowledge=lambda m: RELEASE if m.offset() == 7 else ACCEPT)
        assert [m.delivery_count() for m in taken if m.offset() == 7] == [1, 2, 3]
        assert len({m.offset() for m in taken}) == 20
        assert nothing_comes(consumer)


def test_a_lock_that_ends_gives_the_record_to_another(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    queue = Queue(start_broker(configs=SHORT_LOCKS))
    queue.produce(3)
    with queue.consumer() as slow:
        held = take(slow, 3)
        with queue.consumer() as fast:
            taken = take(fast, 3, acknowledge=always(ACCEPT))
            assert {m.delivery_count() for m in taken} == {2}
        slow.acknowledge(held[0], ACCEPT)
        for message in held[1:]:
            slow.acknowledge(message, RELEASE)
        results = slow.commit_sync(60)
        assert [e.args[0].code() for e in results.values() if e is not None] == [121]


def test_three_consumers_share_two_partitions(shared_broker: ShoalProcess) -> None:
    """More consumers than partitions: all get work, and no record goes to two of them."""
    queue = Queue(shared_broker, partitions=2)
    taken: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
    lock, stop = threading.Lock(), threading.Event()

    def work(number: int) -> None:
        with queue.consumer(**{"max.poll.records": 10}) as consumer:
            while not stop.is_set():
                for message in consumer.poll(0.3):
                    with lock:
                        taken[number].append((message.partition(), message.offset()))
                    consumer.acknowledge(message, ACCEPT)
                consumer.commit_sync(60)

    workers = [threading.Thread(target=work, args=(n,)) for n in taken]
    for worker in workers:
        worker.start()
    produced = 0
    try:
        while not all(taken.values()) and produced < 6000:
            queue.produce(200, begin=produced, batch=5)
            produced += 200
        eventually(lambda: sum(map(len, taken.values())) >= produced, timeout_s=120)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    everything = [record for records in taken.values() for record in records]
    assert all(taken.values()), {n: len(r) for n, r in taken.items()}
    assert len(everything) == len(set(everything)) == produced


def test_commit_async_calls_back(shared_broker: ShoalProcess) -> None:
    queue = Queue(shared_broker)
    queue.produce(10)
    results: list[object] = []
    with queue.consumer() as consumer:
        consumer.set_acknowledgement_commit_callback(lambda *committed: results.append(committed))
        for message in take(consumer, 10):
            consumer.acknowledge(message, ACCEPT)
        consumer.commit_async()
        eventually(lambda: consumer.poll(0.2) is not None and results)
    with queue.consumer() as consumer:
        assert nothing_comes(consumer)


@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_state_survives_the_broker(start_broker: Callable[..., ShoalProcess], how: str) -> None:
    """Accepted records do not come back, others are not lost, and delivery counts survive."""
    broker = start_broker()
    queue = Queue(broker)
    queue.produce(60, batch=7)
    with queue.consumer(**{"max.poll.records": 30}) as consumer:
        first = take(
            consumer,
            30,
            acknowledge=lambda m: ACCEPT if m.offset() % 3 else RELEASE,
        )
        consumer.unsubscribe()
    accepted = {m.offset() for m in first if m.offset() % 3}
    counts = {m.offset(): m.delivery_count() for m in first}
    getattr(broker, how)()
    broker.start()
    with queue.consumer() as consumer:
        second = take(consumer, 60 - len(accepted), acknowledge=always(ACCEPT), timeout_s=120)
        assert nothing_comes(consumer)
    assert {m.offset() for m in second} == set(range(60)) - accepted
    for message in second:
        assert message.delivery_count() == counts.get(message.offset(), 0) + 1


def test_records_of_a_closed_consumer_go_to_another_at_once(shared_broker: ShoalProcess) -> None:
    """KIP-932: closing a share session releases the records that its member holds."""
    queue = Queue(shared_broker)
    queue.produce(5)
    with queue.consumer() as first:
        assert len(take(first, 5)) == 5
    with queue.consumer() as second:
        assert offsets(take(second, 5, acknowledge=always(ACCEPT))) == [0, 1, 2, 3, 4]


def test_no_more_records_are_in_flight_than_the_cap(shared_broker: ShoalProcess) -> None:
    queue = Queue(shared_broker)
    queue.configure(**{"share.partition.max.record.locks": "100"})
    queue.produce(500, batch=60)
    with queue.consumer(**{"max.poll.records": 500}) as first:
        held = take(first, 100)
        assert len(held) == 100
        # Not earlier: a second member would get its part of the hundred.
        with queue.consumer() as second:
            assert nothing_comes(second)
            for message in held:
                first.acknowledge(message, ACCEPT)
            first.commit_sync(60)
            assert min(offsets(take(second, 1))) >= len(held)
