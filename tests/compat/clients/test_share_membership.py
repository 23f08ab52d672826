"""Joining, leaving and dying in a share group, with librdkafka's ShareConsumer (KIP-932).

The limits are the product's claims: a first record within 200 ms of a new member's first heartbeat,
and a dead member's records at another member within a second.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.wireclient import WireClient
from support.runs.conditions import ceiling, eventually, stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

FIRST_RECORD_MS = 200
TAKEOVER_MS = 1_000
#: A member in a separate process: it acquires records, prints their partition, and holds them.
VICTIM = """
import sys
from confluent_kafka import ShareConsumer
bootstrap, group, topic = sys.argv[1:]
settings = {"bootstrap.servers": bootstrap, "group.id": group}
consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
consumer.subscribe([topic])
while not (taken := [m for m in consumer.poll(0.1) if m.error() is None]):
    pass
print(taken[0].partition(), flush=True)
sys.stdin.read()
"""


class Group:
    """A topic, and a share group that reads it from its beginning."""

    def __init__(self, broker: ShoalProcess, partitions: int) -> None:
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.topic, self.group_id = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
        new = NewTopic(self.topic, partitions, 1)
        self.admin.create_topics([new])[self.topic].result(15)
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(
            ConfigResource.Type.GROUP, self.group_id, incremental_configs=[entry]
        )
        for altered in self.admin.incremental_alter_configs([resource]).values():
            altered.result(15)
        self.producer = Producer({"bootstrap.servers": broker.bootstrap})

    def produce(self, count: int, partition: int) -> None:
        for value in range(count):
            self.producer.produce(self.topic, str(value).encode(), partition=partition)
        assert self.producer.flush(15) == 0

    @contextmanager
    def member(self) -> Iterator[ShareConsumer]:
        consumer = ShareConsumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": self.group_id}
        )
        try:
            yield consumer
        finally:
            consumer.close()

    @contextmanager
    def victim(self) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
        """Start a member that can be killed; also yield the partitions whose records it holds."""
        held: list[int] = []
        process = subprocess.Popen(
            [sys.executable, "-c", VICTIM, self.broker.bootstrap, self.group_id, self.topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = process.stdout
        reader = threading.Thread(target=lambda: held.extend(int(line) for line in lines))
        reader.start()
        try:
            yield process, held
        finally:
            process.kill()
            reader.join()
            process.communicate()

    def describe(self) -> dict[str, set[int]]:
        """Return each member's partitions of the topic."""
        with WireClient(self.broker.bootstrap) as client:
            body = {"group_ids": [self.group_id], "include_authorized_operations": False}
            (group,) = client.call(ApiKey.SHARE_GROUP_DESCRIBE, 1, body).groups
        return {
            m.member_id: {p for t in m.assignment.topic_partitions for p in t.partitions}
            for m in group.members
        }


def records(consumer: ShareConsumer, timeout_s: float = 0.05) -> list[Message]:
    return [m for m in consumer.poll(timeout_s) if m.error() is None]


def first_record_ms(group: Group) -> float:
    """Return the time from a new member's subscription to its first record, without standstills."""
    with group.member() as consumer, stopwatch() as passed_s:
        consumer.subscribe([group.topic])
        eventually(lambda: records(consumer), what="a first record")
        return passed_s() * 1000


def test_a_new_group_has_its_first_record_at_once(shared_broker: ShoalProcess) -> None:
    """The first group on a broker waits for the internal topics, so another one is timed."""
    warm, group = Group(shared_broker, 1), Group(shared_broker, 4)
    warm.produce(1, 0)
    first_record_ms(warm)
    group.produce(10, 3)
    assert first_record_ms(group) < ceiling(FIRST_RECORD_MS)


def test_a_new_member_has_its_first_record_at_once(shared_broker: ShoalProcess) -> None:
    """It waits neither for other members to give up partitions nor for the assignment interval."""
    group = Group(shared_broker, 2)
    group.produce(1, 0)
    with group.member() as first:
        first.subscribe([group.topic])
        eventually(lambda: records(first))
        for partition in (0, 1):
            group.produce(10, partition)
        assert first_record_ms(group) < ceiling(FIRST_RECORD_MS)


def test_members_share_what_they_read(shared_broker: ShoalProcess) -> None:
    """Three members on two partitions: each has one, and the readers are spread evenly."""
    group = Group(shared_broker, 2)
    with group.member() as a, group.member() as b, group.member() as c:
        for member in (a, b, c):
            member.subscribe([group.topic])

        def balanced() -> bool:
            for member in (a, b, c):
                member.poll(0.01)
            assigned = group.describe().values()
            readers = [sum(p in mine for mine in assigned) for p in (0, 1)]
            return len(assigned) == 3 and all(assigned) and min(readers) == 2

        eventually(balanced)
    # A client that has just lost its coordinator closes without a leave; its session ends later.
    eventually(lambda: group.describe() == {}, what="an empty group")


def test_a_killed_member_is_replaced_within_a_second(shared_broker: ShoalProcess) -> None:
    """Its partition has no other reader, and its records are locked when it dies."""
    group = Group(shared_broker, 2)
    with group.member() as survivor, group.victim() as (process, held):
        survivor.subscribe([group.topic])

        def each_reads_one() -> bool:
            survivor.poll(0.01)
            assigned = list(group.describe().values())
            return len(assigned) == 2 and all(len(mine) == 1 for mine in assigned)

        eventually(each_reads_one)

        def victim_holds() -> bool:
            """An earlier fetch may still bring the survivor records of the victim's partition."""
            for partition in (0, 1):
                group.produce(1, partition)
            survivor.poll(0.05)
            return bool(held)

        eventually(victim_holds)
        eventually(lambda: not records(survivor))
        with stopwatch() as passed_s:
            process.kill()
            again = eventually(lambda: records(survivor), timeout_s=60)
            took_ms = passed_s() * 1000
    assert {m.partition() for m in again} == set(held)
    assert again[0].delivery_count() == 2
    assert took_ms < ceiling(TAKEOVER_MS)


def test_an_id_has_one_type(shared_broker: ShoalProcess) -> None:
    """A share group cannot be used as a consumer group, nor the reverse."""
    group = Group(shared_broker, 1)
    with group.member() as member, WireClient(shared_broker.bootstrap) as client:
        member.subscribe([group.topic])
        eventually(lambda: (member.poll(0.01), group.describe())[1])
        consumer = {
            "group_id": group.group_id,
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": [group.topic],
            "topic_partitions": [],
        }
        refused = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consumer)
        assert refused.error_code == ErrorCode.group_id_not_found
        consumer["group_id"] = other = f"{group.group_id}-c"
        joined = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consumer)
        assert joined.error_code == ErrorCode.none
        share = {
            "group_id": other,
            "member_id": "s",
            "member_epoch": 0,
            "subscribed_topic_names": [group.topic],
        }
        refused = client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, share)
        assert refused.error_code == ErrorCode.group_id_not_found
