"""librdkafka's classic consumer groups: rebalances, static members, offsets, the group admin."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS = 6
CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.max.size": "4",
    "group.min.session.timeout.ms": "1000",
}
OTHER_PROCESS = """
import sys
from confluent_kafka import Consumer
bootstrap, topic = sys.argv[1:]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "session.timeout.ms": 2000,
        "heartbeat.interval.ms": 200,
    }
)
consumer.subscribe([topic])
while True:
    consumer.poll(1)
"""
_names = (f"rdkafka-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("groups") / "data", configs=CONFIGS).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


class Member:
    """One consumer, with its assignment and the records it has read."""

    def __init__(self, broker: ShoalProcess, topic: str, group: str, **options: Any) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 200,
                **{name.replace("_", "."): value for name, value in options.items()},
            }
        )
        self.read: list[tuple[int, int]] = []
        self.revocations = 0
        self.error: KafkaError | None = None
        self.consumer.subscribe([topic], on_revoke=self._revoked)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revocations += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is None:
            return
        if message.error():
            self.error = message.error()
        else:
            self.read.append((message.partition(), message.offset()))

    @property
    def partitions(self) -> list[int]:
        return sorted(p.partition for p in self.consumer.assignment())


@pytest.fixture
def topic(shoal: ShoalProcess) -> str:
    return make_topic(shoal)


def make_topic(broker: ShoalProcess, records: int = 60) -> str:
    name = next(_names)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(records):
        producer.produce(name, b"v%d" % n, partition=n % PARTITIONS)
    assert producer.flush(10) == 0
    return name


def polled(members: list[Member], done: Callable[[], bool], what: str) -> None:
    """Poll all members, as their processes would, until `done`."""

    def probe() -> bool:
        for member in members:
            member.poll()
        return done()

    eventually(probe, timeout_s=120, what=what)


def dealt(members: list[Member]) -> Callable[[], bool]:
    """Return whether all partitions are assigned, each to exactly one member."""
    share = PARTITIONS // len(members)

    def probe() -> bool:
        found = [p for member in members for p in member.partitions]
        return sorted(found) == list(range(PARTITIONS)) and all(
            len(member.partitions) == share for member in members
        )

    return probe


@pytest.mark.parametrize(
    "assignor",
    ["range", pytest.param("roundrobin", marks=pytest.mark.nightly), "cooperative-sticky"],
)
def test_members_come_and_go(shoal: ShoalProcess, topic: str, assignor: str) -> None:
    members: list[Member] = []
    for count in (1, 2, 3):
        members.append(Member(shoal, topic, topic, partition_assignment_strategy=assignor))
        polled(members, dealt(members), f"{count} members")
    everything = {(p, o) for p in range(PARTITIONS) for o in range(10)}
    polled(
        members, lambda: {r for m in members for r in m.read} == everything, "every record is read"
    )
    members.pop().consumer.close()
    polled(members[:2], lambda: len(members[0].partitions + members[1].partitions) == 6, "leaving")
    for member in members:
        member.consumer.close()


def test_a_member_that_dies_is_replaced_after_its_session(shoal: ShoalProcess, topic: str) -> None:
    first = Member(shoal, topic, topic)
    polled([first], dealt([first]), "one member")
    other = subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, shoal.bootstrap, topic])
    try:
        polled([first], lambda: len(first.partitions) == PARTITIONS // 2, "two members")
    finally:
        other.kill()
        other.wait()
    polled([first], dealt([first]), "the other's session is over")
    first.consumer.close()


def test_a_static_member_restarts_without_a_rebalance(shoal: ShoalProcess, topic: str) -> None:
    first, second = (
        Member(shoal, topic, topic, group_instance_id=f"instance-{n}") for n in range(2)
    )
    polled([first, second], dealt([first, second]), "two members")
    before, kept = second.partitions, first.revocations
    second.consumer.close()
    again = Member(shoal, topic, topic, group_instance_id="instance-1")
    polled([first, again], dealt([first, again]), "back again")
    assert again.partitions == before
    assert first.revocations == kept
    twin = Member(shoal, topic, topic, group_instance_id="instance-1")
    polled([first, again, twin], lambda: again.error is not None, "the older one is fenced")
    assert again.error is not None
    assert again.error.code() == KafkaError._FATAL
    for member in (first, twin):
        member.consumer.close()


def test_a_full_group_refuses_more_members(shoal: ShoalProcess, topic: str) -> None:
    members = [Member(shoal, topic, topic) for _ in range(4)]
    polled(members, lambda: all(m.partitions for m in members), "four members")
    fifth = Member(shoal, topic, topic)
    polled([*members, fifth], lambda: fifth.error is not None, "the fifth is refused")
    assert fifth.error is not None
    assert fifth.error.code() == KafkaError.GROUP_MAX_SIZE_REACHED
    for member in (*members, fifth):
        member.consumer.close()


@pytest.mark.parametrize(
    "crash", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["stop", "kill9"]
)
def test_offsets_and_groups_survive_a_restart(
    start_broker: Callable[..., ShoalProcess], crash: bool
) -> None:
    broker = start_broker(configs=CONFIGS)
    topic = make_topic(broker)
    # The restart is no longer than its session, on a busy machine, too.
    member = Member(broker, topic, topic, session_timeout_ms=120_000)
    polled([member], lambda: len(member.read) == 60, "all is read")
    positions = [
        TopicPartition(topic, p, 5 + p, f"read until {5 + p}".ljust(300), leader_epoch=0)
        for p in range(PARTITIONS)
    ]
    # More than one step of loading.
    for _ in range(300):
        member.consumer.commit(offsets=positions[:1], asynchronous=False)
    member.consumer.commit(offsets=positions, asynchronous=False)
    if crash:
        broker.kill9()
        broker.start()
    else:
        broker.restart()
    asked = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    found = member.consumer.committed(asked, timeout=90)
    assert [(p.offset, p.metadata, p.leader_epoch) for p in found] == [
        (5 + p, f"read until {5 + p}".ljust(300), 0) for p in range(PARTITIONS)
    ]
    # The membership still exists: it may commit in its generation.
    member.consumer.commit(offsets=[TopicPartition(topic, 0, 9)], asynchronous=False)
    assert member.partitions == list(range(PARTITIONS))
    assert member.revocations == 0
    member.consumer.close()
    again = Member(broker, topic, topic)
    polled([again], lambda: len(again.read) >= 1 + sum(5 - p for p in range(1, 6)), "the rest")
    assert sorted(again.read)[0] == (0, 9)
    again.consumer.close()


def test_admin_lists_describes_and_deletes(shoal: ShoalProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": shoal.bootstrap})
    member = Member(shoal, topic, topic, client_id="someone")
    polled([member], lambda: len(member.read) == 60, "all is read")
    member.consumer.commit(asynchronous=False)

    def listed(**filters: Any) -> dict[str, Any]:
        found = admin.list_consumer_groups(**filters).result(10)
        assert not found.errors
        return {g.group_id: g for g in found.valid}

    assert listed()[topic].type == ConsumerGroupType.CLASSIC
    assert topic in listed(states={ConsumerGroupState.STABLE})
    assert topic not in listed(states={ConsumerGroupState.EMPTY})
    assert topic not in listed(types={ConsumerGroupType.CONSUMER})

    group = admin.describe_consumer_groups([topic])[topic].result(10)
    assert group.state == ConsumerGroupState.STABLE
    assert group.partition_assignor == "range"
    (described,) = group.members
    assert (described.client_id, described.host) == ("someone", "/127.0.0.1")
    assert sorted(p.partition for p in described.assignment.topic_partitions) == member.partitions

    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([topic])[topic].result(10)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.consumer.close()

    moved = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 2, 3)])
    admin.alter_consumer_group_offsets([moved])[topic].result(10)
    everything = ConsumerGroupTopicPartitions(topic)
    found = admin.list_consumer_group_offsets([everything])[topic].result(10)
    offsets = {p.partition: p.offset for p in found.topic_partitions}
    assert offsets == {0: 10, 1: 10, 2: 3, 3: 10, 4: 10, 5: 10}

    metrics = shoal.scrape()
    assert 'metrics_classic_group_count{state="empty"}' in metrics
    assert "metrics_offset_commit_count_total" in metrics

    admin.delete_consumer_groups([topic])[topic].result(10)
    assert topic not in listed()
    with pytest.raises(KafkaException) as missing:
        admin.delete_consumer_groups([topic])[topic].result(10)
    assert missing.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_go_with_their_topic(shoal: ShoalProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": shoal.bootstrap})
    stays = make_topic(shoal, records=0)
    moved = ConsumerGroupTopicPartitions(
        topic, [TopicPartition(topic, 0, 3), TopicPartition(stays, 1, 4)]
    )
    admin.alter_consumer_group_offsets([moved])[topic].result(10)
    admin.delete_topics([topic])[topic].result(10)

    def left() -> list[tuple[str, int]]:
        asked = ConsumerGroupTopicPartitions(topic)
        found = admin.list_consumer_group_offsets([asked])[topic].result(10)
        return [(p.topic, p.offset) for p in found.topic_partitions]

    eventually(lambda: left() == [(stays, 4)], what="the offset is gone")
