"""Reasons of releases and rejections: sent by our members, with unmodified clients beside them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import AcknowledgeType as TheirType
from confluent_kafka import Consumer, Message, ShareConsumer
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.member import Acknowledgement, AcknowledgeType, Acquisition, ShareSession
from shoal.console.access.security import ConsoleAccess
from shoal.protocol.reasons import FailureReason
from support.brokers.commands import Shoal
from support.brokers.queues import Queue
from support.console.console_letters import Letters
from support.console.consoles import console
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT
DLQ = "errors.deadletterqueue"
WHY = FailureReason("app.ImageError", "naïve: no pixels", "Traceback …\n  line 7\n", "E42", "pod-1")


class Cluster(NamedTuple):
    bootstrap: str
    client: SyncClient


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


@pytest.fixture
def session(queue: Queue) -> Iterator[ShareSession]:
    session = queue.client.run(queue.client.client.share(queue.group, [queue.topic]))
    yield session
    queue.client.run(session.close())


def give_dead_letters(queue: Queue, **topic_configs: str) -> str:
    """Create a topic for dead letters of the queue's group, with copies of the records."""
    topic = f"dlq.{queue.topic}"
    configs = {f"{DLQ}.group.enable": "true", **topic_configs}
    expect(queue.client.run(queue.client.admin.topics.create([NewTopic(topic, 1, 1, configs)])))
    queue.configure(**{f"{DLQ}.topic.name": topic, f"{DLQ}.copy.record.enable": "true"})
    return topic


def acquire(queue: Queue, session: ShareSession) -> Acquisition:
    found = queue.client.run(session.acquire(max_wait_ms=20_000))
    assert found.count
    return found


def settle(queue: Queue, session: ShareSession, kind: AcknowledgeType, why: FailureReason) -> None:
    """Settle the next records with a reason."""
    found = acquire(queue, session)
    acks = [ack for one in found for ack in one.acknowledge(kind, reason=why)]
    assert queue.client.run(session.acknowledge(acks)) == ()


def read_with_librdkafka(queue: Queue, topic: str, count: int) -> list[dict[str, bytes]]:
    """Return the headers of dead letters."""
    reader = Consumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": f"reader-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
        }
    )
    reader.subscribe([topic])
    found: list[Message] = []

    def are_all_there() -> bool:
        found.extend(m for m in reader.consume(100, 0.2) if m.error() is None)
        return len(found) >= count

    eventually(are_all_there, what=f"{count} dead letters come")
    reader.close()
    return [dict(message.headers()) for message in found]


def reject_with_librdkafka(queue: Queue, count: int) -> list[int]:
    """Reject records as an unmodified member of the group; return their delivery counts."""
    member = ShareConsumer(
        {
            "bootstrap.servers": queue.bootstrap,
            "group.id": queue.group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    member.subscribe([queue.topic])
    counts: list[int] = []

    def has_rejected() -> bool:
        for message in member.poll(0.2):
            assert message.error() is None, message.error()
            counts.append(message.delivery_count())
            member.acknowledge(message, TheirType.REJECT)
        return len(counts) >= count

    eventually(has_rejected, what="records come")
    assert not [e for e in member.commit_sync(10).values() if e is not None]
    member.close()
    return counts


def get_reason(headers: dict[str, bytes]) -> dict[str, str]:
    prefix = "__dlq.errors."
    names = ("exception.class", "exception.message", "exception.stacktrace", "code", "worker")
    return {n: headers[prefix + n].decode() for n in names if prefix + n in headers}


def test_a_dead_letter_says_why(queue: Queue, session: ShareSession) -> None:
    topic = give_dead_letters(queue)
    forged = (("__dlq.errors.exception.class", b"Forged"), ("trace", b"1"))
    queue.produce(["bad"], headers=forged)
    settle(queue, session, REJECT, WHY)
    queue.drained()
    (headers,) = read_with_librdkafka(queue, topic, 1)
    assert headers["trace"] == b"1"
    assert headers["__dlq.errors.disposition"] == b"CLIENT_REJECTED"
    assert get_reason(headers) == {
        "exception.class": "app.ImageError",
        "exception.message": "naïve: no pixels",
        "exception.stacktrace": "Traceback …\n  line 7\n",
        "code": "E42",
        "worker": "pod-1",
    }


def test_unmodified_members_share_the_group_and_the_last_reason_stays(
    queue: Queue, session: ShareSession
) -> None:
    topic = give_dead_letters(queue)
    queue.produce(["ours"])
    settle(queue, session, RELEASE, WHY)
    queue.client.run(session.close())
    queue.produce(["theirs"])
    assert sorted(reject_with_librdkafka(queue, 2)) == [1, 2]
    queue.drained()
    letters = read_with_librdkafka(queue, topic, 2)
    by_offset = {int(h["__dlq.errors.offset"]): get_reason(h) for h in letters}
    assert by_offset[0]["exception.class"] == "app.ImageError"
    assert by_offset[1] == {}


def test_a_list_of_records_in_flight_shows_the_reason_until_they_are_accepted(
    queue: Queue, session: ShareSession
) -> None:
    queue.produce(["a", "b", "c"], batch=3)
    found = acquire(queue, session)
    assert found.count == 3
    acks = [
        Acknowledgement(queue.topic, 0, 0, 0, RELEASE, 60_000, WHY),
        Acknowledgement(queue.topic, 0, 1, 2, RELEASE, 0, FailureReason("KeyError", "x\ny")),
    ]
    assert queue.client.run(session.acknowledge(acks)) == ()

    def read_failures() -> dict[int, str]:
        where = TopicPartition(queue.topic, 0)
        admin = queue.client.admin.share_groups
        page = expect(queue.client.run(admin.in_flight(queue.group, {where: 0})))[where]
        return {
            offset: entry.failure
            for entry in page.entries
            for offset in range(entry.first_offset, entry.last_offset + 1)
        }

    first = "app.ImageError: naïve: no pixels"
    assert read_failures() == {0: first, 1: "KeyError: x y", 2: "KeyError: x y"}
    again = acquire(queue, session)
    accept = AcknowledgeType.ACCEPT
    assert queue.client.run(session.acknowledge(again.acquired[0].acknowledge(accept))) == ()
    assert read_failures() == {0: first}


def test_a_topic_that_takes_only_small_records_gets_the_record_without_its_reason(
    queue: Queue, session: ShareSession
) -> None:
    topic = give_dead_letters(queue, **{"max.message.bytes": "1500"})
    queue.produce(["bad"])
    settle(queue, session, REJECT, FailureReason("E", "m", "x" * 6_000))
    queue.drained()
    (headers,) = read_with_librdkafka(queue, topic, 1)
    assert (get_reason(headers), headers["__dlq.errors.offset"]) == ({}, b"0")


def test_many_large_reasons_fill_several_batches(queue: Queue, session: ShareSession) -> None:
    """They take 2.4 MB, and a batch of the topic 1 MB. The broker keeps a MB of different ones,
    but one reason of all records counts once."""
    topic = give_dead_letters(queue)
    queue.produce(range(300), batch=300)
    settle(queue, session, REJECT, FailureReason("E", "m", "x" * 9_000))
    queue.drained()
    letters = read_with_librdkafka(queue, topic, 300)
    sizes = {len(get_reason(h).get("exception.stacktrace", "").encode()) for h in letters}
    assert len(sizes) == 1
    assert 8_000 < sizes.pop() <= 8 << 10


class Unfitted(FailureReason):
    """A reason that a client sends as it is."""

    def fit(self) -> FailureReason:
        return self


def test_a_reason_that_is_too_large_is_refused_and_its_record_stays_held(
    queue: Queue, session: ShareSession
) -> None:
    queue.produce(["a"])
    (found,) = acquire(queue, session).acquired
    large = Unfitted("E", "m", "x" * 9_000)
    (refusal,) = queue.client.run(session.acknowledge(found.acknowledge(REJECT, reason=large)))
    assert "8192 bytes" in str(refusal.error)
    (refusal,) = queue.client.run(
        session.acknowledge(found.acknowledge(AcknowledgeType.ACCEPT, reason=WHY))
    )
    assert "Only a release or a rejection can have a reason" in str(refusal.error)
    fits = Unfitted("E", "m", "x" * 8_190)
    assert queue.client.run(session.acknowledge(found.acknowledge(REJECT, reason=fits))) == ()


def fail_jobs(broker: ShoalProcess, client: SyncClient) -> Letters:
    """Make three dead letters: two of an exception, and one without a reason."""
    queue = Letters(Cluster(broker.bootstrap, client))
    queue.produce(["a", "b", "c"], key=b"k")
    client.run(queue.reject(2, WHY))
    client.run(queue.reject(1))
    return queue


def test_the_commands_show_group_and_select_by_exception(broker: ShoalProcess) -> None:
    """The first source of a second group is another topic."""
    with SyncClient(broker.bootstrap) as client:
        one, two = fail_jobs(broker, client), fail_jobs(broker, client)
        shoal = Shoal(broker.bootstrap)
        table = shoal.says("dlq", "reasons", one.letters, two.letters)
        cells = [line.split()[:4] for line in table.splitlines()[1:]]
        assert cells == [["4", "app.ImageError", "2", "topics"], ["2", "(rejected)", "2", "topics"]]
        assert "naïve: no pixels" in table
        (ours,) = shoal.json("dlq", "reasons", one.letters, "--exception", "ImageError")
        assert (ours["letters"], ours["source_topics"]) == (2, [one.topic])
        peeked = shoal.json("dlq", "peek", one.letters, "--exception", "app.ImageError")
        assert [letter["offset"] for letter in peeked] == [0, 1]
        names = ("exception", "exception_message", "stacktrace", "code", "worker", "disposition")
        assert tuple(peeked[0][name] for name in names) == (*WHY, "CLIENT_REJECTED")
        assert "app.ImageError: naïve" in shoal.says("dlq", "peek", one.letters)
        assert "redriven" not in shoal.says("dlq", "redrive", one.letters, "--exception", "Other")
        sent = shoal.json("dlq", "redrive", one.letters, "--exception", "ImageError")
        assert (sent["redriven"], sent["filtered"]) == (2, 1)
        assert not [name for name, _ in client.run(one.records())[-1].headers if "errors" in name]


def test_a_command_lists_why_records_failed_that_wait(queue: Queue, session: ShareSession) -> None:
    queue.produce(["a"])
    found = acquire(queue, session).acquired[0]
    acks = found.acknowledge(RELEASE, delay_ms=60_000, reason=WHY)
    assert queue.client.run(session.acknowledge(acks)) == ()
    shoal = Shoal(queue.bootstrap)
    (row,) = shoal.json("share", "inspect", queue.group, queue.topic)
    assert (row["state"], row["failure"]) == ("backing-off", "app.ImageError: naïve: no pixels")
    assert "app.ImageError" in shoal.says("share", "inspect", queue.group, queue.topic)


def test_the_console_shows_and_filters_exceptions(broker: ShoalProcess) -> None:
    with SyncClient(broker.bootstrap) as client:
        queue = fail_jobs(broker, client)

        async def scenario() -> None:
            async with console(broker.bootstrap, ConsoleAccess(allow_actions=True)) as page:
                await page.sample()
                everything = await page.get("/letters", topic=queue.letters)
                assert "Exception app.ImageError 2" in everything.words
                chosen = {"topic": queue.letters, "exception": "app.ImageError"}
                some = await page.get("/letters", **chosen)
                assert some.text.count('data-label="Reason"') == 2
                assert "--exception app.ImageError --dry-run" in some.words
                letter = await page.get("/letter", topic=queue.letters, partition=0, offset=0)
                for words in ("app.ImageError: naïve: no pixels", "Code E42", "Worker pod-1"):
                    assert words in letter.words
                assert "Traceback … line 7" in letter.words
                form = await page.get("/act-redrive", **chosen)
                assert "Exception" in form.words

        asyncio.run(scenario())


@pytest.mark.java
def test_kafka_gets_the_outcome_without_the_reason(kafka: SharedKafka) -> None:
    with SyncClient(kafka.bootstrap) as client:
        queue = Queue(client, kafka.bootstrap)
        queue.produce(["a"])
        session = client.run(client.client.share(queue.group, [queue.topic]))
        settle(queue, session, RELEASE, WHY)
        (again,) = acquire(queue, session).acquired
        assert again.ranges[0].delivery_count == 2
        client.run(session.close())
