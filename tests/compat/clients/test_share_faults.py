"""A queue under faults: members release at random and are killed, and the broker is killed.

The checks are the guarantees for users. A record whose accept was confirmed never comes again.
Every record is accepted in the end. No two members hold a record at once, and delivery counts never
fall while the broker lives.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

RECORDS, PARTITIONS, MEMBERS, BROKER_KILLS = 1500, 3, 5, 3
LOCK_S = 2.0
#: The longest time that a member works on what a poll returned.
WORK_S = 0.1
CONFIGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": f"{LOCK_S * 1000:.0f}",
    # Kills and restarts use up deliveries; an archived record would look like a loss.
    "group.share.max.delivery.count.limit": "25",
}
Key = tuple[int, int]


class Hold(NamedTuple):
    """A member's hold on a record. The lock began after `since`, in the broker's life `turn`."""

    member: str
    since: float
    turn: int


class Ledger:
    """What happened to every record, as its consumers saw it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.accepted: dict[Key, int] = {}
        #: Accepts whose confirmation was lost with the broker: they may or may not be in force.
        self.unsure: set[Key] = set()
        self.delivered: Counter[Key] = Counter()
        self.counts: dict[Key, tuple[int, int]] = {}
        self.held: dict[Key, Hold] = {}
        #: Starts and ends of the broker; even while it lives.
        self.broker_turns = 0
        self.wrong: list[str] = []

    def deliver(self, key: Key, count: int, member: str, since: float) -> None:
        with self.lock:
            self.delivered[key] += 1
            mine, other = Hold(member, since, self.broker_turns), self.held.get(key)
            if other is not None and other.member != member and other.turn == mine.turn:
                if time.monotonic() < other.since + LOCK_S:
                    self.wrong.append(f"{key} came to {member} while {other.member} held it")
            self.held[key] = mine
            if key in self.accepted:
                self.wrong.append(f"{key} came again after its acceptance was confirmed")
            if self.broker_turns % 2:
                return  # The broker was restarting: an acquisition is not persisted.
            life, before = self.counts.get(key, (self.broker_turns, 0))
            if life == self.broker_turns and count <= before:
                self.wrong.append(f"{key}: delivery count {count} after {before}")
            self.counts[key] = (self.broker_turns, count)

    def let_go(self, member: str) -> None:
        """The member is about to settle what it holds."""
        with self.lock:
            for key in [key for key, hold in self.held.items() if hold.member == member]:
                del self.held[key]

    def accept(self, key: Key, *, confirmed: bool) -> None:
        with self.lock:
            if confirmed:
                self.accepted[key] = self.accepted.get(key, 0) + 1
            else:
                self.unsure.add(key)

    def settled(self) -> int:
        with self.lock:
            return len(self.unsure.union(self.accepted))


def work(
    bootstrap: str, group: str, topic: str, ledger: Ledger, stop: threading.Event, seed: str
) -> None:
    rng = random.Random(seed)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
        }
    )
    consumer.subscribe([topic])
    # What a poll returns may have been fetched since the one before.
    since = polled_at = time.monotonic()
    while not stop.is_set():
        since, polled_at = polled_at, time.monotonic()
        try:
            polled = consumer.poll(0.3)
        except KafkaException:
            continue
        by_partition: dict[int, list[Key]] = {}
        for message in polled:
            if message.error() is not None:
                continue
            key = (message.partition(), message.offset())
            ledger.deliver(key, message.delivery_count(), seed, since)
            accept = rng.random() < 0.7
            consumer.acknowledge(
                message, AcknowledgeType.ACCEPT if accept else AcknowledgeType.RELEASE
            )
            if accept:
                by_partition.setdefault(message.partition(), []).append(key)
        confirmed: set[int] = set()
        if polled:
            stop.wait(rng.uniform(0, WORK_S))
        ledger.let_go(seed)
        try:
            results = consumer.commit_sync(5) if polled else {}
            confirmed = {found.partition for found, error in results.items() if error is None}
        except KafkaException:
            pass  # Then no accept is confirmed.
        for partition, keys in by_partition.items():
            for key in keys:
                ledger.accept(key, confirmed=partition in confirmed)
    consumer.close()


def lag(broker: ShoalProcess) -> float:
    """Return the number of records of all share partitions whose delivery is not complete."""
    return sum(sample.value for sample in broker.samples("shoal_share_partition_lag"))


def test_a_queue_under_faults(start_broker: Callable[..., ShoalProcess], seed: int) -> None:
    broker = start_broker(configs=CONFIGS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic, group = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(15)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (
            ("share.auto.offset.reset", "earliest"),
            ("share.delivery.count.limit", "25"),
        )
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(15)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 7})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0

    ledger, stop = Ledger(), threading.Event()
    workers = [
        threading.Thread(
            target=work, args=(broker.bootstrap, group, topic, ledger, stop, f"{seed}.{number}")
        )
        for number in range(MEMBERS)
    ]
    for worker in workers:
        worker.start()
    try:
        for kill in range(1, BROKER_KILLS + 1):
            goal = RECORDS * kill // (BROKER_KILLS + 2)
            eventually(lambda goal=goal: len(ledger.accepted) >= goal, timeout_s=120)
            ledger.broker_turns += 1
            broker.kill9()
            broker.start()
            ledger.broker_turns += 1
        eventually(lambda: ledger.settled() == RECORDS and lag(broker) == 0, timeout_s=120)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not ledger.wrong, ledger.wrong[:10]
    assert set(ledger.accepted.values()) == {1}
    assert sum(ledger.delivered.values()) > RECORDS, "some came more than once"
