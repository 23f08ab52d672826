"""`shoal dlq redrive` puts dead letters of a real share consumer (librdkafka) back, by filter,
only once, and also after an interruption."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.connection import Connection
from shoal.coordinator.share.dead_letters import estimate_size_bytes
from shoal.dead_letters import redrive
from shoal.dead_letters.records import DeadLetter, DeadLetterFilter, get_redrive_source
from shoal.dead_letters.redrive import RecordEdit, Redrive, RedrivePlan, get_redrive_group
from shoal.dead_letters.redrive_ledger import RedriveLedger, RedriveState, Sending
from shoal.protocol.errors import ErrorCode
from shoal.record.offset_set import OffsetSet
from support.brokers.commands import Shoal
from support.brokers.queues import Queue
from support.console.console_letters import send_back
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.record.records import Record
    from support.brokers.servers import ShoalProcess

DLQ = "errors.deadletterqueue"
#: Short, so that the death of a redrive is detected in seconds.
BROKER_CONFIG = {
    f"group.consumer.{name}.ms": value
    for least in ("", "min.")
    for name, value in (
        (f"{least}session.timeout", "6000"),
        (f"{least}heartbeat.interval", "1000"),
    )
}


class Letters(Queue):
    """A queue whose group has a dead-letter topic."""

    def __init__(self, client: SyncClient, bootstrap: str, *, partitions: int = 1) -> None:
        super().__init__(client, bootstrap, partitions=partitions)
        self.letters = f"dlq.{self.topic}"
        self.create(self.letters, partitions=partitions, **{f"{DLQ}.group.enable": "true"})
        self.configure(**{f"{DLQ}.topic.name": self.letters, f"{DLQ}.copy.record.enable": "true"})
        self.shoal = Shoal(bootstrap)

    def create(self, topic: str, *, partitions: int = 1, **configs: str) -> None:
        new = NewTopic(topic, partitions, 1, configs=configs)
        expect(self.client.run(self.client.admin.topics.create([new])))

    def reject(self, count: int, unless: Callable[[bytes], bool] = lambda value: False) -> None:
        """Reject this number of records, except those that `unless` accepts; all are settled."""
        member = ShareConsumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "share.acknowledgement.mode": "explicit",
            }
        )
        member.subscribe([self.topic])
        seen = 0

        def all_seen() -> bool:
            nonlocal seen
            for message in member.poll(0.2):
                assert message.error() is None, message.error()
                accepted = unless(message.value())
                kind = AcknowledgeType.ACCEPT if accepted else AcknowledgeType.REJECT
                member.acknowledge(message, kind)
                seen += 1
            member.commit_sync(10)
            return seen >= count

        eventually(all_seen, timeout_s=40, what=f"{count} records come")
        member.close()
        self.drained()

    def records(self, topic: str, first: int = 0) -> list[Record]:
        """Return all records of a topic from an offset on."""

        async def read() -> list[Record]:
            client = self.client.client
            found: list[Record] = []
            for part in (await client.cluster.get_topic(topic)).partitions:
                where = TopicPartition(topic, part.index)
                listed = await client.admin.topics.offsets({where: int(OffsetSpec.LATEST)})
                end = expect(listed)[where].offset
                if end > first:
                    for fetched in await client.fetch_range(topic, part.index, first, end - 1):
                        found += fetched.records()
            return found

        return self.client.run(read())

    def redrive(self, *words: str) -> dict[str, Any]:
        """Run `shoal dlq redrive` and return its JSON."""
        return self.shoal.json("share", "redrive", self.letters, *words)


@pytest.fixture
def queue(shared_broker: ShoalProcess) -> Iterator[Letters]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield Letters(client, shared_broker.bootstrap)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_dead_letters_are_redriven_into_their_topic_once(
    shared_broker: ShoalProcess, queue: Letters
) -> None:
    queue.produce(["a", "b", "c"], key=b"k", headers=(("trace", b"1"),))
    queue.reject(3)
    dry = queue.redrive("--dry-run")
    assert dry["redriven"] == 3
    assert dry["dry_run"]
    assert dry["kinds"] == [
        {"source_topic": queue.topic, "group": queue.group, "reason": "rejected", "letters": 3}
    ]
    assert len(queue.records(queue.topic)) == 3
    before_ms = int(time.time() * 1000)
    assert queue.redrive("--note", "bug 7 is fixed")["redriven"] == 3
    back = queue.records(queue.topic)[3:]
    assert values(back) == [b"a", b"b", b"c"]
    assert {record.key for record in back} == {b"k"}
    headers = dict(back[1].headers)
    assert int(headers.pop("__dlq.redrive.time") or 0) >= before_ms <= back[1].timestamp_ms
    assert int(headers.pop("__dlq.redrive.original.timestamp") or 0) < before_ms
    assert headers == {
        "trace": b"1",
        "__dlq.redrive.from": f"{queue.letters}-0@1".encode(),
        "__dlq.redrive.count": b"1",
        "__dlq.redrive.note": b"bug 7 is fixed",
    }
    again = queue.redrive()
    assert (again["redriven"], again["before"]) == (0, 3)
    assert queue.redrive("--again", "--dry-run")["redriven"] == 3
    assert len(queue.records(queue.topic)) == 6
    metric = f'shoal_share_group_redriven_total{{group="{queue.group}"}}'
    # A request for the metrics begins to read the ledger, and a later one shows it.
    eventually(lambda: shared_broker.metric(metric) == 3)
    # A record that fails again becomes a dead letter again, with its history.
    queue.reject(3)
    assert queue.redrive()["redriven"] == 3
    back = queue.records(queue.topic, 6)
    assert [dict(record.headers)["__dlq.redrive.count"] for record in back] == [b"2"] * 3


def test_a_filter_leaves_the_others_for_later(queue: Letters) -> None:
    for key in (b"x", b"y"):
        queue.produce([f"{key.decode()}{n}" for n in range(4)], key=key)
    queue.reject(8)
    found = queue.redrive("--key", "y", "--reason", "rejected", "-n", "3", "--to", queue.topic)
    assert (found["redriven"], found["filtered"]) == (3, 4)
    assert values(queue.records(queue.topic)[8:]) == [b"y0", b"y1", b"y2"]
    assert queue.redrive("--reason", "limit")["redriven"] == 0
    assert queue.redrive("--since", "2m", "-p", "0", "--offsets", "1-2,7")["redriven"] == 3
    assert queue.redrive("--until", "2m")["redriven"] == 0
    assert queue.redrive("-H", f"__dlq.errors.group={queue.group}")["redriven"] == 2
    assert Counter(values(queue.records(queue.topic)[8:])) == Counter(
        f"{key}{n}".encode() for key in "xy" for n in range(4)
    )


def test_dead_letters_are_redriven_into_another_topic(queue: Letters) -> None:
    queue.produce(["a"])
    queue.reject(1)
    queue.create("repair-" + queue.topic, partitions=3)
    said = queue.shoal.says("share", "redrive", queue.letters, "--to", "repair-" + queue.topic)
    assert f"Redrove 1 letter of {queue.letters} into repair-{queue.topic}." in said
    assert values(queue.records("repair-" + queue.topic)) == [b"a"]
    assert len(queue.records(queue.topic)) == 1


def test_a_letter_without_its_record_is_redriven_from_the_source(queue: Letters) -> None:
    queue.configure(**{f"{DLQ}.copy.record.enable": "false"})
    queue.produce(["old", "kept"], batch=1, headers=(("h", b"1"),))
    queue.reject(2)
    queue.shoal.run("topics", "delete-records", queue.topic, "--before", "1")
    found = queue.redrive()
    assert (found["redriven"], found["gone"]) == (1, 1)
    (back,) = queue.records(queue.topic, 2)
    assert back.value == b"kept"
    assert ("h", b"1") in back.headers


def test_letters_are_listed_shown_and_deleted(queue: Letters) -> None:
    queue.produce([b"one", b"two", b"x" * 100])
    queue.reject(3)
    (row,) = [r for r in queue.shoal.json("dlq", "list") if r["topic"] == queue.letters]
    assert row == {"topic": queue.letters, "records": 3, "redriven": 0, "groups": [queue.group]}
    shown = queue.shoal.says("dlq", "peek", queue.letters, "-n", "2")
    assert "one" in shown
    assert "rejected" in shown
    assert f"{queue.topic}-0@0" in shown
    assert len(shown.splitlines()) == 3
    (last,) = queue.shoal.json("dlq", "peek", queue.letters, "-p", "0", "--offsets", "2")
    assert (last["reason"], last["deliveries"], last["source_offset"]) == ("rejected", 1, 2)
    assert (last["group"], last["value"]) == (queue.group, "x" * 100)
    assert last["headers"]["__dlq.errors.topic"] == queue.topic
    assert "--yes is missing: 3 records" in queue.shoal.refusal(
        "dlq", "purge", queue.letters, status=2
    )
    kept = queue.shoal.says("dlq", "purge", queue.letters, "--until", "1h", "--yes")
    assert kept == f"{queue.letters} has no such letters.\n"
    assert queue.shoal.says("dlq", "purge", queue.letters, "--yes") == (
        f"Deleted 3 records of {queue.letters}.\n"
    )
    assert queue.shoal.json("dlq", "peek", queue.letters) == []


def test_letters_are_chosen_one_by_one(queue: Letters) -> None:
    queue.produce([b"one", b"two", b"three", b"four"])
    queue.reject(4)
    answers = "no\nyes\ny\nquit\n"
    said = queue.shoal.says("dlq", "redrive", queue.letters, "-i", stdin=answers)
    assert "Redrove 2 letters" in said
    assert values(queue.records(queue.topic, first=4)) == [b"two", b"three"]
    said = queue.shoal.says("dlq", "redrive", queue.letters, "-i", stdin="q\n")
    assert said.endswith("No letter was chosen.\n")


def test_a_rate_is_kept(queue: Letters) -> None:
    queue.produce(range(40))
    queue.reject(40)
    begun = time.monotonic()
    assert queue.redrive("--rate", "20")["redriven"] == 40
    assert time.monotonic() - begun >= 1.9


def test_an_interrupted_redrive_continues_without_loss_or_duplicates(
    queue: Letters,
) -> None:
    queue.produce(range(3000))
    queue.reject(3000)
    running = queue.shoal.start("share", "redrive", queue.letters, "--rate", "400")
    eventually(lambda: len(queue.records(queue.topic)) > 3400, timeout_s=40, what="it is half way")
    running.kill()
    assert len(queue.records(queue.topic)) < 6000
    # The group's session has to end before another redrive may begin.
    found = queue.redrive()
    back = queue.records(queue.topic)[3000:]
    assert sorted(int(r.value or b"") for r in back) == list(range(3000))
    assert found["redriven"] == 3000 - found["before"]


def test_sent_but_unrecorded_dead_letters_are_found(queue: Letters) -> None:
    """The redrive ends after sending and before recording its progress."""
    queue.produce(range(6))
    queue.reject(6)

    class Killed(Exception):
        pass

    class Interrupted(Redrive):
        async def _produce(self, letters, originals, targets):  # type: ignore[no-untyped-def]
            await super()._produce(letters[:4], originals, targets)
            raise Killed

    async def interrupted() -> None:
        await Interrupted(queue.client.cluster, RedrivePlan(queue.letters)).run()

    with pytest.raises(Killed):
        queue.client.run(interrupted())
    assert len(queue.records(queue.topic)) == 10
    found = queue.redrive()
    assert (found["redriven"], found["before"]) == (2, 4)
    back = queue.records(queue.topic)[6:]
    assert sorted(int(r.value or b"") for r in back) == list(range(6))
    assert len({get_redrive_source(r.headers) for r in back}) == 6


def test_a_cancelled_redrive_leaves_its_group(
    queue: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its requests. A member that stayed blocked all later redrives of the topic until
    its session ended or, if it still sent heartbeats, until its process ended."""
    queue.produce(range(3))
    queue.reject(3)
    group = get_redrive_group(queue.letters)
    send = Connection.request

    async def is_cancelled_at(request: int) -> bool:
        redrive = asyncio.create_task(
            Redrive(queue.client.cluster, RedrivePlan(queue.letters)).run()
        )
        requests = itertools.count(1)

        async def cancelling(*words: Any, **options: Any) -> Any:
            if next(requests) == request:
                redrive.cancel()  # It gets this when it waits for the response.
            return await send(*words, **options)

        with monkeypatch.context() as patched:
            patched.setattr(Connection, "request", cancelling)
            await asyncio.wait([redrive])
        if not redrive.cancelled():
            redrive.result()
        described = (await queue.client.admin.groups.describe([group]))[group]
        assert isinstance(described, KafkaError) or not described.members, request
        return redrive.cancelled()

    cancelled = 0
    while queue.client.run(is_cancelled_at(cancelled + 1)):
        cancelled += 1
    assert cancelled > 10
    back = queue.records(queue.topic)[3:]
    assert sorted(int(r.value or b"") for r in back) == list(range(3))


class MeasuredRedrive(Redrive):
    """Notes how many bytes of records it sends at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sizes: list[int] = []

    async def _produce(
        self, letters: Any, originals: dict[int, Record], targets: Any
    ) -> list[DeadLetter]:
        self.sizes.append(sum(map(estimate_size_bytes, originals.values())))
        return await super()._produce(letters, originals, targets)


@pytest.mark.parametrize("copies", ["true", "false"])
def test_large_letters_are_sent_few_at_a_time(
    queue: Letters, monkeypatch: pytest.MonkeyPatch, copies: str
) -> None:
    """Batches of a few kilobytes may expand to many megabytes. A letter without its record takes
    nothing until the record is read."""
    monkeypatch.setattr(redrive, "CHUNK_BYTES", 10_000)
    queue.configure(**{f"{DLQ}.copy.record.enable": copies})
    sent = [b"%02d" % number + bytes(4_000) for number in range(20)]
    queue.produce(sent)
    queue.reject(20, unless=lambda value: value[1] % 2 == 1)  # So no two lie side by side.

    async def send_measured() -> list[int]:
        run = MeasuredRedrive(queue.client.client.cluster, RedrivePlan(queue.letters))
        assert (await run.run()).total == 10
        return run.sizes

    sizes = queue.client.run(send_measured())
    assert len(sizes) > 2
    assert max(sizes) < 2 * 10_000
    assert values(queue.records(queue.topic, 20)) == sent[::2]


def test_bad_input_is_refused_in_a_sentence(queue: Letters) -> None:
    refusal = queue.shoal.refusal
    redrive = ("share", "redrive", queue.letters)
    assert "no topic 'dlq.none'" in refusal("share", "redrive", "dlq.none")
    assert "is the dead-letter topic itself" in refusal(*redrive, "--to", queue.letters, status=2)
    assert "--reason must be one of rejected, limit, corrupt" in refusal(
        *redrive, "--reason", "x", status=2
    )
    assert "needs exactly one --partition" in refusal(*redrive, "--offsets", "1", status=2)
    assert "like 3-7,9" in refusal(*redrive, "--offsets", "a", "-p", "0", status=2)
    assert "no partition 9" in refusal(*redrive, "-p", "9")
    assert "no topic 'missing'" in refusal(*redrive, "--to", "missing")
    assert "--header must be NAME" in refusal(*redrive, "--header", "=x", status=2)
    queue.produce(["x"])
    queue.reject(1)
    queue.shoal.run("topics", "delete", queue.topic, "--yes")
    said = queue.shoal.says(*redrive)
    assert "Redrove 0 letters" in said
    assert f"1 (topic {queue.topic} does not exist)" in said


def test_a_refused_record_is_reported_and_left_for_later(queue: Letters) -> None:
    queue.produce(["small", "x" * 3000])
    queue.reject(2)
    small: dict[str, Any] = {"max.message.bytes": "2000"}
    queue.create("narrow-" + queue.topic, **small)
    said = queue.shoal.refusal("share", "redrive", queue.letters, "--to", "narrow-" + queue.topic)
    assert "the broker rejected 1 records" in said
    assert values(queue.records("narrow-" + queue.topic)) == [b"small"]
    assert queue.redrive()["redriven"] == 1


@pytest.mark.parametrize("whose", ["of another group", "in another topic"])
def test_forged_letters_do_not_count(queue: Letters, whose: str) -> None:
    """Every producer to any topic had a redrive by others read and write elsewhere."""
    group, topic, victim = queue.group, queue.letters, f"victim-{queue.topic}"
    queue.create(victim)
    if whose == "of another group":
        group = "another"
    else:
        topic = f"mine-{queue.topic}"
        queue.create(topic)
    about = {"topic": victim, "partition": "0", "offset": "0", "group": group}
    headers = [(f"__dlq.errors.{name}", text.encode()) for name, text in about.items()]

    async def forge() -> None:
        async with queue.client.client.producer() as producer:
            await producer.send(topic, b"an order", headers=headers)

    queue.client.run(forge())
    done = send_back(queue.client, RedrivePlan(topic))
    assert (done.total, done.not_dead_letters, done.doubted) == (0, 1, 1)
    configured = queue.letters if whose == "in another topic" else ""
    name = f"{DLQ}.topic.name"
    assert done.doubt == f"{name} of group {group!r} is {configured!r}, not {topic!r}"
    assert queue.records(victim) == []


def test_progress_too_large_for_the_ledger_is_refused_in_a_sentence(queue: Letters) -> None:
    ledger_of = queue.client

    async def write() -> None:
        ledger = RedriveLedger(ledger_of.cluster)
        await ledger.create()
        state = RedriveState("dlq.t", 0, sending=Sending(0, 0, {}))
        state.counts = {f"group-{n * 2654435761 % 2**32}": n for n in range(200_000)}
        topic = await ledger_of.cluster.get_topic(queue.letters)
        assert topic.topic_id is not None
        await ledger.write(topic.topic_id, state)

    with pytest.raises(KafkaError, match="form too many ranges") as refused:
        queue.client.run(write())
    assert refused.value.code == ErrorCode.message_too_large


def test_letters_after_the_given_ends_stay(queue: Letters) -> None:
    queue.produce(["a", "b", "c"])
    queue.reject(3)
    where = TopicPartition(queue.letters, 0)
    plan = RedrivePlan(queue.letters, ends={where: 2})
    done = send_back(queue.client, plan)
    assert done.total == 2
    assert values(queue.records(queue.topic)[3:]) == [b"a", b"b"]
    assert queue.redrive()["redriven"] == 1


def test_an_edited_letter_is_sent_once(queue: Letters) -> None:
    """It goes to the partition of its new key, and counts as sent back."""
    queue.produce(["a", "b"], key=b"k")
    queue.reject(2)
    chosen = DeadLetterFilter(partitions=[0], offsets=OffsetSet([1]))
    plan = RedrivePlan(queue.letters, filter=chosen, edit=RecordEdit(b"other", None))
    done = send_back(queue.client, plan)
    assert done.total == 1
    (record,) = queue.records(queue.topic)[2:]
    assert (record.key, record.value) == (b"other", None)
    assert get_redrive_source(record.headers) == f"{queue.letters}-0@1"
    assert queue.redrive()["redriven"] == 1
    assert values(queue.records(queue.topic)[3:]) == [b"a"]
