"""`share.ordering.key.dead.letter=hold`: a dead-lettered record holds its key until `shoal share
redrive` has put it back or `shoal dlq skip` frees the key. With an unmodified client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.dead_letters.redrive import Redrive, RedrivePlan
from shoal.protocol.errors import ErrorCode
from shoal_operator.brokers.broker_states import build_group_state
from shoal_operator.brokers.group_metrics import parse_group_metrics
from support.brokers.commands import Shoal
from support.brokers.queues import Queue
from support.kafka.kafka_tools import KafkaTools, objects
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess

ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT
DLQ = "errors.deadletterqueue"


#: Consumer groups do not wait for their first members: Kafka's tool has only four seconds.
BROKER_CONFIG = {"group.initial.rebalance.delay.ms": "0"}


class Held(Queue):
    """A queue with key order whose dead letters hold their keys, and one member of its group."""

    def __init__(self, client: SyncClient, bootstrap: str, **configs: str) -> None:
        super().__init__(client, bootstrap)
        self.letters = f"dlq.{self.topic}"
        new = NewTopic(self.letters, 1, 1, configs={f"{DLQ}.group.enable": "true"})
        expect(client.run(client.admin.topics.create([new])))
        self.configure(
            **{
                "share.ordering": "key",
                "share.ordering.key.dead.letter": "hold",
                f"{DLQ}.topic.name": self.letters,
                f"{DLQ}.copy.record.enable": "true",
                **configs,
            }
        )
        self.shoal = Shoal(bootstrap)
        self.member = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.group,
                "share.acknowledgement.mode": "explicit",
            }
        )
        self.member.subscribe([self.topic])

    def send(self, *records: str) -> None:
        """Produce records such as a1: the letter is the key; - stands for none."""
        for record in records:
            key = None if record[0] == "-" else record[:1].encode()
            self.produce([record], key=key)

    def take(self, answer: Callable[[bytes], AcknowledgeType] = lambda _: ACCEPT) -> list[str]:
        """Return the records of the first non-empty poll, after settling them."""
        taken: list[Message] = []

        def some() -> bool:
            taken.extend(self.member.poll(0.2))
            return bool(taken)

        eventually(some, timeout_s=30, what="records come")
        for message in taken:
            assert message.error() is None, message.error()
            self.member.acknowledge(message, answer(message.value()))
        assert not [e for e in self.member.commit_sync(10).values() if e is not None]
        return [message.value().decode() for message in taken]

    def nothing_comes(self) -> bool:
        return not self.member.poll(1.0)

    def held(self) -> list[tuple[int, str | None]]:
        """Return the offsets and keys that `describe` reports."""
        (described,) = self.shoal.json("groups", "describe", self.group)
        return [(row["offset"], row["key"]) for row in described["held_keys"]]

    def reject_first(self) -> None:
        """Reject a1, whose dead letter then holds its key; accept b1."""
        self.send("a1", "a2", "b1")
        assert self.take(lambda v: REJECT if v == b"a1" else ACCEPT) == ["a1", "b1"]
        eventually(lambda: self.held() == [(0, "a")], what="the key is held")


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


@pytest.fixture
def queue(broker: ShoalProcess) -> Iterator[Held]:
    with SyncClient(broker.bootstrap) as client:
        held = Held(client, broker.bootstrap)
        yield held
        held.member.close()


def keys_held(broker: ShoalProcess, queue: Held) -> float:
    labels = f'group="{queue.group}",topic="{queue.topic}",partition="0"'
    return broker.metric(f"shoal_share_partition_keys_held_by_dead_letters{{{labels}}}")


def scaled_by(broker: ShoalProcess, queue: Held) -> tuple[int, int]:
    """Return the lag, and the part that a ShareConsumer scales by, as the operator computes them
    from a broker's responses."""
    admin = queue.client.admin
    about = queue.client.run(admin.groups.describe_share([queue.group]))[queue.group]
    offsets = queue.client.run(admin.share_groups.offsets([queue.group]))[queue.group]
    numbers = parse_group_metrics([broker.scrape()])[queue.group]
    state = build_group_state(queue.group, about, offsets, numbers, scraped=False)
    return state.lag, state.workable


def test_records_that_wait_for_a_redrive_count_as_lag_but_not_for_scaling(
    broker: ShoalProcess, queue: Held
) -> None:
    queue.reject_first()
    assert scaled_by(broker, queue) == (2, 0)
    queue.send("a3", "b2")
    assert queue.take() == ["b2"]
    assert scaled_by(broker, queue) == (3, 0)
    queue.configure(**{"share.delivery.paused": "true"})
    queue.send("b3", "a4")
    eventually(lambda: scaled_by(broker, queue)[0] == 5, what="both are counted")
    assert scaled_by(broker, queue)[1] > 0, "no scan has read them yet"
    queue.configure(**{"share.delivery.paused": "false"})
    assert queue.take() == ["b3"]
    assert scaled_by(broker, queue) == (4, 0)
    queue.shoal.json("share", "skip", queue.group, "--key", "a")
    assert scaled_by(broker, queue) == (3, 3)


def test_at_the_limit_of_held_keys_no_other_record_counts_for_scaling(
    broker: ShoalProcess, queue: Held
) -> None:
    queue.configure(**{"share.ordering.key.dead.letter.max.held": "1"})
    queue.reject_first()
    queue.send("b2", "c1")
    eventually(lambda: scaled_by(broker, queue) == (4, 0), what="the rest counts as stuck")
    queue.shoal.json("share", "skip", queue.group, "--key", "a")
    assert scaled_by(broker, queue) == (3, 3)


def test_a_key_is_held_until_its_letter_is_redriven(broker: ShoalProcess, queue: Held) -> None:
    queue.reject_first()
    assert keys_held(broker, queue) == 1
    queue.send("b2", "-1")
    assert queue.take() == ["b2", "-1"]
    assert queue.nothing_comes()
    said = queue.shoal.says("groups", "describe", queue.group)
    assert "1 dead-lettered record holds its key" in said
    assert f"shoal dlq redrive {queue.letters} --group {queue.group}" in said
    assert f"shoal dlq skip {queue.group} --key KEY" in said
    assert queue.lag == 2
    found = queue.shoal.json("share", "redrive", queue.letters)
    assert (found["redriven"], found["unfreed"]) == (1, 0)
    order: list[str] = []
    while len(order) < 2:
        order += queue.take()
    assert order == ["a2", "a1"]
    assert queue.held() == []
    assert keys_held(broker, queue) == 0
    queue.drained()


def test_a_key_is_held_until_it_is_skipped(queue: Held) -> None:
    queue.reject_first()
    assert queue.nothing_comes()
    skip = ("share", "skip", queue.group)
    assert queue.shoal.json(*skip, "--key", "b")["skipped"] == []
    dry = queue.shoal.json(*skip, "--key", "a", "--dry-run")
    assert dry["skipped"] == [{"topic": queue.topic, "partition": 0, "offset": 0, "key": "a"}]
    assert queue.held() == [(0, "a")]
    assert "Skipped 1 record" in queue.shoal.says(*skip, "--topic", queue.topic)
    assert queue.take() == ["a2"]
    queue.drained()
    assert "select the records with" in queue.shoal.refusal(*skip, status=2)
    assert "need --topic" in queue.shoal.refusal(*skip, "-p", "0", status=2)
    nobody = queue.shoal.refusal("share", "skip", "none-" + queue.group, "--all")
    assert "not found" in nobody


@pytest.mark.usefixtures("start_broker")
def test_a_held_key_survives_a_killed_broker(broker: ShoalProcess, queue: Held) -> None:
    queue.reject_first()
    queue.send("-bad")
    assert queue.take(lambda _: REJECT) == ["-bad"]
    letters = f'shoal_share_group_dead_letters_total{{group="{queue.group}"}}'
    eventually(lambda: broker.metric(letters) == 2, what="both letters are written")
    broker.kill9()
    broker.start()
    queue.send("b2")
    assert queue.take() == ["b2"]
    assert queue.nothing_comes()
    assert queue.held() == [(0, "a")]
    assert keys_held(broker, queue) == 1
    assert broker.metric(letters) == 0, "a letter that is written is not written again"
    queue.shoal.run("share", "skip", queue.group, "--all")
    assert queue.take() == ["a2"]
    queue.drained()


@pytest.mark.nightly
@pytest.mark.java
def test_kafkas_own_formatter_prints_the_state_of_what_is_held(
    broker: ShoalProcess, queue: Held
) -> None:
    queue.reject_first()
    tools = KafkaTools(broker.bootstrap)
    (row,) = tools.rows("share-groups", "--describe", "--group", queue.group)
    assert (row["START-OFFSET"], row["LAG"]) == ("0", "2"), "its tools ignore our tag"
    archiving = {"firstOffset": 0, "lastOffset": 0, "deliveryState": 3, "deliveryCount": 1}

    def printed() -> list[dict[str, Any]]:
        """Return the group's states; the tool ends when nothing has come for four seconds."""
        formatter = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"
        of = ("--topic", "__share_group_state", "--from-beginning", "--formatter", formatter)
        found = objects(tools.run("console-consumer", *of, "--timeout-ms", "4000"))
        values = [s["value"]["data"] for s in found if s["key"]["data"]["groupId"] == queue.group]
        return values if any(archiving in value["stateBatches"] for value in values) else []

    values = eventually(printed, timeout_s=120, what="the rejected record in the state")
    assert values[-1]["startOffset"] in (-1, 0)


def test_the_limit_of_held_keys_stops_delivery_with_a_reason(
    broker: ShoalProcess, queue: Held
) -> None:
    queue.configure(**{"share.ordering.key.dead.letter.max.held": "2"})
    queue.send("a1", "b1")
    assert queue.take(lambda _: REJECT) == ["a1", "b1"]
    eventually(lambda: len(queue.held()) == 2, what="two are held")
    queue.send("c1")
    assert queue.nothing_comes()
    describe = ("groups", "describe", queue.group, "--metrics", broker.metrics_url)
    said = queue.shoal.says(*describe)
    assert "2 keys held by dead letters" in said
    assert "have reached share.ordering.key.dead.letter.max.held" in said
    queue.shoal.run("share", "skip", queue.group, "--key", "b")
    assert queue.take() == ["c1"]
    assert "max.held allows" not in queue.shoal.says(*describe)
    assert queue.held() == [(0, "a")]


def test_a_group_that_stops_holding_frees_its_keys(queue: Held) -> None:
    queue.reject_first()
    queue.configure(**{"share.ordering.key.dead.letter": "continue"})
    assert queue.take() == ["a2"]
    queue.drained()


def test_a_reset_or_deletion_forgets_what_is_held(queue: Held) -> None:
    queue.reject_first()
    queue.member.close()
    reset = ("groups", "reset-offsets", queue.group, "-t", queue.topic, "--to-earliest")
    eventually(lambda: _reset(queue, reset), timeout_s=60, what="the group is empty")
    assert queue.held() == []
    queue.shoal.run("groups", "delete", queue.group)
    assert queue.shoal.json("share", "redrive", queue.letters)["redriven"] == 1
    queue.member = ShareConsumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": queue.group,
            "share.acknowledgement.mode": "explicit",
        }
    )


def _reset(queue: Held, words: tuple[str, ...]) -> bool:
    try:
        queue.shoal.run(*words, "--execute")
    except AssertionError:
        return False
    return True


def test_a_sent_record_whose_key_was_not_freed_is_freed_by_the_next_redrive(queue: Held) -> None:
    """The redrive ends after sending and before freeing the keys."""
    queue.reject_first()

    class Killed(Exception):
        pass

    class Interrupted(Redrive):
        async def _free(self, letters):  # type: ignore[no-untyped-def]
            raise Killed

    async def interrupted() -> None:
        await Interrupted(queue.client.cluster, RedrivePlan(queue.letters)).run()

    with pytest.raises(Killed):
        queue.client.run(interrupted())
    assert queue.held() == [(0, "a")]
    found = queue.shoal.json("share", "redrive", queue.letters)
    assert (found["redriven"], found["before"]) == (0, 1)
    order: list[str] = []
    while len(order) < 2:
        order += queue.take()
    assert order == ["a2", "a1"]


def test_records_that_are_not_held_are_ignored_and_bad_requests_refused(queue: Held) -> None:
    queue.reject_first()
    groups = queue.client.admin.share_groups
    where = TopicPartition(queue.topic, 0)
    free = queue.client.run(groups.free(queue.group, {where: [(1, 50)]}))
    assert free == {where: None}
    assert queue.held() == [(0, "a")]
    assert queue.client.run(groups.free("nobody", {where: [(0, 9)]})) == {where: None}
    gone = TopicPartition("missing-" + queue.topic, 0)
    error = queue.client.run(groups.free(queue.group, {gone: [(0, 9)]}))[gone]
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.unknown_topic_or_partition
