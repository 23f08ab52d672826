"""Groups of the consumer protocol (KIP-848), with librdkafka's consumer."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.brokers.servers import ShoalProcess

#: Partitions move with heartbeats, and tests wait for that.
BROKER_CONFIG = {
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}


class Group:
    """A topic of four partitions, and a group that reads it."""

    def __init__(self, broker: ShoalProcess, partitions: int = 4) -> None:
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.topic, self.group_id = f"t-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
        self.partitions = partitions
        self.create_topic(self.topic, partitions)

    def create_topic(self, name: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(15)

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for value in range(count):
            producer.produce(self.topic, str(value).encode(), partition=value % self.partitions)
        assert producer.flush(15) == 0

    @contextmanager
    def member(
        self, topics: Sequence[str] = (), protocol: str = "consumer", **settings: object
    ) -> Iterator[Consumer]:
        classic = {"heartbeat.interval.ms": 1000} if protocol == "classic" else {}
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": self.group_id,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **classic,
                **settings,
            }
        )
        consumer.subscribe(list(topics) or [self.topic])
        try:
            yield consumer
        finally:
            consumer.close()

    def state(self) -> ConsumerGroupState:
        return self.admin.describe_consumer_groups([self.group_id])[self.group_id].result(15).state


def partitions_of(consumer: Consumer) -> set[tuple[str, int]]:
    consumer.poll(0.02)
    return {(tp.topic, tp.partition) for tp in consumer.assignment()}


def settled(group: Group, *members: Consumer, share: int) -> list[set[tuple[str, int]]]:
    """Return the members' partitions once each has `share` of them and together they have all."""

    def probe() -> list[set[tuple[str, int]]] | None:
        found = [partitions_of(member) for member in members]
        whole = len(set().union(*found)) == group.partitions
        return found if whole and all(len(mine) == share for mine in found) else None

    return eventually(probe, timeout_s=120, what="a balanced assignment")


def values(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []

    def probe() -> bool:
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(int(message.value()))
        return len(found) >= count

    eventually(probe, what=f"{count} records")
    return found


def test_a_member_reads_everything_and_commits(shared_broker: ShoalProcess) -> None:
    group = Group(shared_broker)
    group.produce(100)
    with group.member() as consumer:
        assert sorted(values(consumer, 100)) == list(range(100))
        consumer.commit(asynchronous=False)
    with group.member() as consumer:
        asked = [TopicPartition(group.topic, p) for p in range(4)]
        settled(group, consumer, share=4)
        committed = consumer.committed(asked, timeout=90)
    assert [tp.offset for tp in committed] == [25] * 4


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go(shared_broker: ShoalProcess, assignor: str) -> None:
    """A member that keeps a partition never loses it in between."""
    group = Group(shared_broker)
    with ExitStack() as stack:
        first = stack.enter_context(group.member(**{"group.remote.assignor": assignor}))
        settled(group, first, share=4)
        with group.member(**{"group.remote.assignor": assignor}) as second:
            kept, given = settled(group, first, second, share=2)
            assert not kept & given
            eventually(lambda: group.state() == ConsumerGroupState.STABLE)
            with group.member(**{"group.remote.assignor": assignor}) as third:
                members = (first, second, third)
                eventually(
                    lambda: sorted(len(partitions_of(m)) for m in members) == [1, 1, 2],
                    timeout_s=120,
                )
        settled(group, first, share=4)
    eventually(lambda: group.state() == ConsumerGroupState.EMPTY)


def test_a_static_member_comes_back_to_its_partitions(shared_broker: ShoalProcess) -> None:
    """KIP-848: leaving with epoch -2 keeps its place; no other member gets its partitions."""
    group = Group(shared_broker)
    with group.member() as other:
        with group.member(**{"group.instance.id": "static"}) as static:
            _, mine = settled(group, other, static, share=2)
        with group.member(**{"group.instance.id": "static"}) as static:
            _, again = settled(group, other, static, share=2)
    assert again == mine


def test_a_regular_expression_finds_topics_that_come_later(shared_broker: ShoalProcess) -> None:
    """The broker matches it (RE2), so a new topic is read within a heartbeat."""
    group = Group(shared_broker, partitions=1)
    with group.member(topics=[f"^{group.topic}.*"]) as consumer:
        settled(group, consumer, share=1)
        group.create_topic(f"{group.topic}-later", 2)
        group.partitions = 3
        settled(group, consumer, share=3)


def test_new_partitions_are_assigned(shared_broker: ShoalProcess) -> None:
    group = Group(shared_broker, partitions=2)
    with group.member() as consumer:
        settled(group, consumer, share=2)
        group.admin.create_partitions([NewPartitions(group.topic, 6)])[group.topic].result(15)
        group.partitions = 6
        settled(group, consumer, share=6)


def test_a_group_moves_to_the_consumer_protocol_and_back(shared_broker: ShoalProcess) -> None:
    """Members are replaced one by one, from classic to consumer and back. Reading never stops, and
    no partition ever has two readers."""
    group = Group(shared_broker)
    with ExitStack() as classics:
        a = classics.enter_context(group.member(protocol="classic"))
        settled(group, a, share=4)
        with group.member(protocol="consumer") as b:
            mine, theirs = settled(group, a, b, share=2)
            assert not mine & theirs
        settled(group, a, share=4)
        b = classics.enter_context(group.member(protocol="classic"))
        settled(group, a, b, share=2)


def test_a_group_survives_its_coordinator(broker: ShoalProcess) -> None:
    """Members keep their partitions and epochs over kill -9, and continue with their next
    heartbeat."""
    group = Group(broker)
    with group.member() as a, group.member() as b:
        before = settled(group, a, b, share=2)
        eventually(lambda: group.state() == ConsumerGroupState.STABLE)
        epochs = _epochs(group)
        broker.kill9()
        broker.start()
        assert _epochs(group) == epochs
        group.produce(40)
        got: set[int] = set()

        def everything() -> bool:
            for consumer in (a, b):
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    got.add(int(message.value()))
            return len(got) == 40

        eventually(everything, timeout_s=120)
        assert [partitions_of(a), partitions_of(b)] == before


def _epochs(group: Group) -> dict[str, int]:
    with WireClient(group.broker.bootstrap) as client:

        def described() -> dict[str, int] | None:
            body = {"group_ids": [group.group_id], "include_authorized_operations": False}
            (row,) = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, body).groups
            return {m.member_id: m.member_epoch for m in row.members} or None

        return eventually(described)


JOIN = {
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": [],
    "topic_partitions": [],
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_id": ""}, ErrorCode.invalid_request),
        ({"rack_id": " "}, ErrorCode.invalid_request),
        ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request),
        ({"topic_partitions": None}, ErrorCode.invalid_request),
        ({"subscribed_topic_names": None}, ErrorCode.invalid_request),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"member_epoch": -2}, ErrorCode.invalid_request),
        ({"server_assignor": "mine"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "a(b"}, ErrorCode.invalid_regular_expression),
        ({"member_epoch": 5}, ErrorCode.group_id_not_found),
        ({"member_epoch": -1}, ErrorCode.group_id_not_found),
    ],
)
def test_what_is_refused_and_why(
    shared_broker: ShoalProcess, change: dict[str, object], code: ErrorCode
) -> None:
    body = {**JOIN, "group_id": f"g-{uuid.uuid4().hex[:8]}", **change}
    with WireClient(shared_broker.bootstrap) as client:
        answer = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
    assert answer.error_code == code
    assert answer.error_message


def test_epochs_fence(shared_broker: ShoalProcess) -> None:
    """FENCED_MEMBER_EPOCH for an epoch that is ahead or too old, UNKNOWN_MEMBER_ID for a
    stranger."""
    group_id = f"g-{uuid.uuid4().hex[:8]}"
    with WireClient(shared_broker.bootstrap) as client:

        def heartbeat(**change: object) -> ErrorCode:
            body = {**JOIN, "group_id": group_id, **change}
            return client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body).error_code

        assert heartbeat() == ErrorCode.none
        assert heartbeat(member_epoch=1) == ErrorCode.none
        assert heartbeat(member_epoch=2) == ErrorCode.fenced_member_epoch
        assert heartbeat(member_id="other", member_epoch=1) == ErrorCode.unknown_member_id
        assert heartbeat(instance_id="i", member_id="s") == ErrorCode.none
        assert heartbeat(instance_id="i", member_id="t") == ErrorCode.unreleased_instance_id
        fenced = heartbeat(instance_id="i", member_id="t", member_epoch=2)
        assert fenced == ErrorCode.fenced_instance_id
