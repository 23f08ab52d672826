"""Features of share groups beyond Kafka's, as an unmodified client (librdkafka) sees them."""

from __future__ import annotations

import resource
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    AcknowledgeType,
    Consumer,
    Message,
    ShareConsumer,
)
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import expect
from shoal.protocol.api import ApiKey
from support.brokers.commands import Shoal
from support.runs.conditions import ceiling, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.queues import Queue
    from support.brokers.servers import ShoalProcess

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
BACKOFF = "share.redelivery.backoff"


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


@pytest.fixture
def member(queue: Queue) -> Iterator[ShareConsumer]:
    consumer = ShareConsumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": queue.group,
            "client.id": "worker-1",
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([queue.topic])
    yield consumer
    consumer.close()


def poll(
    member: ShareConsumer, answer: Callable[[Message], AcknowledgeType], timeout_s: float = 20.0
) -> list[Message]:
    """Return the records of the first non-empty poll, acknowledged and committed."""
    taken: list[Message] = []

    def some() -> bool:
        for message in member.poll(0.2):
            assert message.error() is None, message.error()
            taken.append(message)
            member.acknowledge(message, answer(message))
        return bool(taken)

    eventually(some, timeout_s=timeout_s, what="records come")
    assert not [e for e in member.commit_sync(10).values() if e is not None]
    return taken


def gauge(broker: ShoalProcess, queue: Queue, name: str) -> float:
    labels = f'group="{queue.group}",topic="{queue.topic}",partition="0"'
    return broker.metric(f"shoal_share_partition_{name}{{{labels}}}")


def test_a_released_record_comes_back_after_ever_longer_waits(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    queue.configure(**{f"{BACKOFF}.ms": "400", f"{BACKOFF}.jitter": "0"})
    queue.produce(["work"])
    came: list[float] = []

    def answer(_: Message) -> AcknowledgeType:
        came.append(time.monotonic())
        return ACCEPT if len(came) == 4 else RELEASE

    poll(member, answer)
    assert queue.lag == 1
    for _ in range(3):
        poll(member, answer)
    for (before, after), least in zip(pairwise(came), (0.4, 0.8, 1.6), strict=True):
        # Clocks of milliseconds may round down. Expired locks would come after thirty.
        assert least - 0.002 <= after - before < least + 10, came
    assert gauge(broker, queue, "backing_off_records") == 0
    queue.drained()


@pytest.mark.usefixtures("start_broker")
def test_a_killed_broker_keeps_waits(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    queue.configure(**{f"{BACKOFF}.ms": "6000", f"{BACKOFF}.jitter": "0"})
    queue.produce(["work"])
    came: list[float] = []

    def release(_message: Message) -> AcknowledgeType:
        came.append(time.monotonic())
        return RELEASE

    poll(member, release)
    broker.kill9()
    broker.start()
    again = poll(member, lambda _: ACCEPT, timeout_s=120)
    assert time.monotonic() - came[0] >= 5.9
    assert [message.value() for message in again] == [b"work"]


def test_a_paused_group_gets_nothing_until_it_is_resumed(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    queue.produce(["one"])
    held = eventually(lambda: member.poll(0.2), what="a record comes")
    queue.configure(**{"share.delivery.paused": "true"})
    assert gauge(broker, queue, "paused") == 1
    queue.produce(["two"])
    # A member may settle records that it holds.
    member.acknowledge(held[0], ACCEPT)
    assert not [e for e in member.commit_sync(10).values() if e is not None]
    assert not member.poll(1.5)
    assert queue.lag == 1
    queue.configure(**{"share.delivery.paused": "false"})
    resumed = time.monotonic()
    assert [message.value() for message in poll(member, lambda _: ACCEPT)] == [b"two"]
    assert time.monotonic() - resumed < ceiling(5)
    queue.drained()


DLQ = "errors.deadletterqueue"


def dead_letters(queue: Queue, topic: str, count: int) -> list[Message]:
    """Return the records that a plain consumer finds in a dead-letter topic."""
    reader = Consumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": f"reader-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
        }
    )
    reader.subscribe([topic])
    found: list[Message] = []

    def all_there() -> bool:
        found.extend(m for m in reader.consume(100, 0.2) if m.error() is None)
        return len(found) >= count

    eventually(all_there, what=f"{count} dead letters come")
    reader.close()
    return found


def create(queue: Queue, topic: str, **configs: str) -> None:
    new = NewTopic(topic, 1, 1, configs={name.replace("_", "."): v for name, v in configs.items()})
    expect(queue.client.run(queue.client.admin.topics.create([new])))


def test_dead_letters_keep_the_record_and_the_reason(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    topic = f"dlq.{queue.topic}"
    create(queue, topic, errors_deadletterqueue_group_enable="true")
    queue.configure(
        **{
            f"{DLQ}.topic.name": topic,
            f"{DLQ}.copy.record.enable": "true",
            "share.delivery.count.limit": "2",
        }
    )
    queue.produce(["bad"], key=b"k", headers=(("trace", b"1"),), compression="gzip")
    poll(member, lambda _: REJECT)
    queue.drained()
    queue.produce(["unlucky"])
    poll(member, lambda _: RELEASE)
    poll(member, lambda _: RELEASE)
    queue.drained()
    bad, unlucky = dead_letters(queue, topic, 2)
    assert (bad.key(), bad.value()) == (b"k", b"bad")
    headers = dict(bad.headers())
    assert headers.pop("trace") == b"1"
    assert headers.pop("__dlq.errors.member")
    assert headers.pop("__dlq.errors.client.id") == b"worker-1"
    assert abs(int(headers.pop("__dlq.errors.timestamp")) / 1000 - time.time()) < 60
    assert headers == {
        "__dlq.errors.topic": queue.topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": queue.group.encode(),
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"Offset rejected by client.",
        "__dlq.errors.disposition": b"CLIENT_REJECTED",
    }
    headers = dict(unlucky.headers())
    assert headers["__dlq.errors.message"] == b"Offset delivery count exceeded the threshold."
    assert headers["__dlq.errors.disposition"] == b"MAX_DELIVERY_ATTEMPTS_REACHED"
    assert headers["__dlq.errors.delivery.count"] == b"2"
    name = f'shoal_share_group_dead_letters_total{{group="{queue.group}"}}'
    assert broker.metric(name) == 2


def test_without_copying_a_dead_letter_is_headers_alone(
    queue: Queue, member: ShareConsumer
) -> None:
    topic = f"dlq.{queue.topic}"
    create(queue, topic, errors_deadletterqueue_group_enable="true")
    queue.configure(**{f"{DLQ}.topic.name": topic})
    queue.produce(["secret"], headers=(("trace", b"1"),))
    poll(member, lambda _: REJECT)
    (letter,) = dead_letters(queue, topic, 1)
    assert (letter.key(), letter.value()) == (None, None)
    assert "trace" not in dict(letter.headers())
    queue.drained()


@pytest.mark.usefixtures("start_broker")
def test_a_record_waits_for_its_dead_letter_over_a_killed_broker(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    topic = f"dlq.{queue.topic}"
    queue.configure(**{f"{DLQ}.topic.name": topic, f"{DLQ}.copy.record.enable": "true"})
    queue.produce(["a", "b"])
    poll(member, lambda _: REJECT)
    failures = (
        f'shoal_share_group_dead_letter_failures_total{{group="{queue.group}"'
        ',reason="topic-missing"}'
    )
    eventually(lambda: f"{failures} " in broker.scrape(), what="the failure shows")
    assert gauge(broker, queue, "archiving_records") == 2
    assert queue.lag == 2
    create(queue, topic)
    reason = failures.replace("topic-missing", "topic-forbidden")
    eventually(lambda: f"{reason} " in broker.scrape(), what="the failure shows")
    broker.kill9()
    broker.start()
    change = [ConfigChange(f"{DLQ}.group.enable", "true")]
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    expect(queue.client.run(queue.client.admin.configs.alter({resource: change})))
    member.poll(0.5)
    letters = dead_letters(queue, topic, 2)
    assert {letter.value() for letter in letters} == {b"a", b"b"}
    queue.drained()


@pytest.mark.usefixtures("start_broker")
def test_a_dead_letter_topic_is_created_where_the_broker_allows_it(
    queue: Queue, member: ShareConsumer
) -> None:
    """Its records keep the timestamps of their letters, whatever the brokers' default is."""
    change = [
        ConfigChange(f"{DLQ}.auto.create.topics.enable", "true"),
        ConfigChange("log.message.timestamp.type", "LogAppendTime"),
    ]
    resource = ConfigResource(ConfigResourceType.BROKER, "")
    expect(queue.client.run(queue.client.admin.configs.alter({resource: change})))
    topic = f"dlq.{queue.topic}"
    queue.configure(**{f"{DLQ}.topic.name": topic})
    queue.produce(["x"])
    poll(member, lambda _: REJECT)
    queue.drained()
    (letter,) = dead_letters(queue, topic, 1)
    assert letter.timestamp()[0] == TIMESTAMP_CREATE_TIME


@pytest.mark.usefixtures("start_broker")
def test_dead_letter_topics_have_the_prefix_of_the_broker(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    change = [ConfigChange(f"{DLQ}.topic.name.prefix", "lost.")]
    expect(
        queue.client.run(
            queue.client.admin.configs.alter(
                {ConfigResource(ConfigResourceType.BROKER, ""): change}
            )
        )
    )
    refused, taken = f"dlq.{queue.topic}", f"lost.{queue.topic}"
    for topic in (refused, taken):
        create(queue, topic, errors_deadletterqueue_group_enable="true")
    queue.configure(**{f"{DLQ}.topic.name": refused})
    queue.produce(["x"])
    poll(member, lambda _: REJECT)
    failures = (
        f'shoal_share_group_dead_letter_failures_total{{group="{queue.group}",reason="topic-name"}}'
    )
    eventually(lambda: f"{failures} " in broker.scrape(), what="the failure shows")
    assert queue.lag == 1
    queue.configure(**{f"{DLQ}.topic.name": taken})
    queue.drained()
    assert len(dead_letters(queue, taken, 1)) == 1


def test_a_record_too_large_for_the_dead_letter_topic_leaves_its_headers(
    queue: Queue, member: ShareConsumer
) -> None:
    topic = f"dlq.{queue.topic}"
    create(queue, topic, errors_deadletterqueue_group_enable="true", max_message_bytes="2000")
    queue.configure(**{f"{DLQ}.topic.name": topic, f"{DLQ}.copy.record.enable": "true"})
    queue.produce(["small", "x" * 3000, "also small"])
    poll(member, lambda _: REJECT)
    queue.drained()
    values = [letter.value() for letter in dead_letters(queue, topic, 3)]
    assert values == [b"small", None, b"also small"]


@pytest.mark.usefixtures("start_broker")
def test_a_full_disk_keeps_records_until_their_letters_can_be_written(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    """A limit on file sizes simulates a full disk: the dead-letter topic's log is near it."""
    topic = f"dlq.{queue.topic}"
    create(queue, topic, errors_deadletterqueue_group_enable="true")
    queue.configure(**{f"{DLQ}.topic.name": topic, f"{DLQ}.copy.record.enable": "true"})
    queue.produce(["x" * 50_000])

    async def fill() -> None:
        producer = queue.client.client.producer()
        for _ in range(3):
            await (await producer.send(topic, b"y" * 60_000))

    queue.client.run(fill())
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (200_000, hard))
    poll(member, lambda _: REJECT)
    eventually(lambda: held(broker, queue) != set(), what="the failure shows")
    assert queue.lag == 1
    assert gauge(broker, queue, "archiving_records") == 1
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    queue.drained()
    assert [letter.value() for letter in dead_letters(queue, topic, 4)][3] == b"x" * 50_000
    assert held(broker, queue) == set()


def test_a_group_may_drop_what_cannot_be_dead_lettered(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    queue.configure(**{f"{DLQ}.topic.name": "dlq.nowhere", f"shoal.{DLQ}.drop.after.ms": "0"})
    name = f'shoal_share_group_dead_letters_dropped_total{{group="{queue.group}"}}'
    queue.produce(["whole"])
    poll(member, lambda _: ACCEPT)
    # An alert on its increase needs a sample from before the drop.
    assert broker.metric(name) == 0
    queue.produce(["x"])
    poll(member, lambda _: REJECT)
    queue.drained()
    assert broker.metric(name) == 1


def held(broker: ShoalProcess, queue: Queue) -> set[str]:
    """Return why delivery to the group is held."""
    samples = broker.samples("shoal_share_group_held", group=queue.group)
    return {sample.labels["why"] for sample in samples}


def test_full_windows_and_invalid_headers_are_reported(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    queue.configure(
        **{
            f"{BACKOFF}.ms": "60000",
            "share.partition.max.record.locks": "100",
            "share.delay.max.ms": "60000",
        }
    )
    queue.produce(range(100), headers=(("shoal.deliver.after", b"soon"),))
    poll(member, lambda _: RELEASE)
    queue.produce(["behind"])
    eventually(lambda: held(broker, queue) == {"window-full"}, what="the window is full")
    assert gauge(broker, queue, "backing_off_records") == 100
    assert not member.poll(1.0)
    said = Shoal(queue.bootstrap).says(
        "groups", "describe", queue.group, "--metrics", broker.metrics_url
    )
    assert "100 backing off" in said
    assert "100 delivered although their headers are invalid" in said
    assert "have reached share.partition.max.record.locks" in said


@pytest.mark.usefixtures("start_broker")
def test_a_flood_of_dead_letters_holds_delivery_until_the_limit_allows_it(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    topic = f"dlq.{queue.topic}"
    create(queue, topic, errors_deadletterqueue_group_enable="true")
    queue.configure(**{f"{DLQ}.topic.name": topic, f"shoal.{DLQ}.flood.per.minute": "10"})
    queue.produce(range(9), batch=1)
    poll(member, lambda _: REJECT)
    queue.drained()
    assert held(broker, queue) == set()
    queue.produce(["the tenth"])
    poll(member, lambda _: REJECT)
    queue.drained()
    eventually(lambda: held(broker, queue) == {"flood"}, what="the flood shows")
    last_minute = f'shoal_share_group_dead_letters_last_minute{{group="{queue.group}"}}'
    assert broker.metric(last_minute) == 10
    line_part = "its dead letters flood"
    eventually(lambda: any(line_part in line for line in broker.log), what="the log reports it")
    queue.produce(["held back"])
    assert not member.poll(1.5)
    assert queue.lag == 1
    queue.configure(**{f"shoal.{DLQ}.flood.per.minute": "11"})
    assert [message.value() for message in poll(member, lambda _: ACCEPT)] == [b"held back"]
    assert held(broker, queue) == set()


@pytest.mark.nightly
def test_a_flood_ends_automatically(queue: Queue, member: ShareConsumer) -> None:
    topic = f"dlq.{queue.topic}"
    create(queue, topic, errors_deadletterqueue_group_enable="true")
    queue.configure(**{f"{DLQ}.topic.name": topic, f"shoal.{DLQ}.flood.per.minute": "1"})
    queue.produce(["bad"])
    before = time.monotonic()
    poll(member, lambda _: REJECT)
    queue.produce(["good"])
    taken = poll(member, lambda _: ACCEPT, timeout_s=150)
    assert [message.value() for message in taken] == [b"good"]
    assert time.monotonic() - before >= 59, "letters are counted by whole seconds"


@pytest.mark.usefixtures("start_broker")
def test_with_share_version_1_there_are_no_dead_letters(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    update = {
        "timeout_ms": 10_000,
        "feature_updates": [
            {"feature": "share.version", "max_version_level": 1, "upgrade_type": 2}
        ],
        "validate_only": False,
    }
    cluster = queue.client.cluster
    answer = queue.client.run(cluster.ask(ApiKey.UPDATE_FEATURES, update))
    assert answer.error_code == 0, answer
    queue.configure(**{f"{DLQ}.topic.name": "dlq.nowhere"})
    queue.produce(["x"])
    poll(member, lambda _: REJECT)
    queue.drained()
    assert "shoal_share_group_dead_letter_failures_total{" not in broker.scrape()


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_the_age_of_the_oldest_lock_counts_renewals_in(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer, ordering: str
) -> None:
    queue.configure(share_ordering=ordering)
    queue.produce(["slow"])
    begun = time.monotonic()
    held = eventually(lambda: member.poll(0.2), what="a record comes")
    age_s = eventually(
        lambda: age if (age := gauge(broker, queue, "oldest_lock_age_seconds")) >= 1.0 else None
    )
    assert time.monotonic() - begun >= 1.0
    assert age_s <= time.monotonic() - begun + 1.0
    member.acknowledge(held[0], ACCEPT)
    member.commit_sync(10)
    assert gauge(broker, queue, "oldest_lock_age_seconds") == 0


@pytest.mark.usefixtures("start_broker")
def test_lag_and_pause_of_an_unread_group_are_reported_also_after_a_restart(
    broker: ShoalProcess, queue: Queue, member: ShareConsumer
) -> None:
    queue.produce(["one"])
    poll(member, lambda _: ACCEPT)
    member.close()
    queue.produce(["two", "three"])
    broker.kill9()
    broker.start()
    eventually(lambda: gauge(broker, queue, "lag") == 2, what="the lag is reported")
    assert held(broker, queue) == set()
    queue.configure(**{"share.delivery.paused": "true"})
    eventually(lambda: held(broker, queue) == {"paused"}, what="the pause shows")
    for metrics in ((), ("--metrics", "127.0.0.1:1")):  # The group's config shows it too.
        described = Shoal(queue.bootstrap).says("groups", "describe", queue.group, *metrics)
        assert "Delivery is paused" in described
