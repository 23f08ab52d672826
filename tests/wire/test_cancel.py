"""Cancelled records of a share group, with a real broker: what waits, and what a member holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues.cancellations import CancelReport, cancel_offsets
from shoal.client.share.member import Acknowledgement, AcknowledgeType, AcquireMode, ShareSession
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import CANCELLED_MAX
from shoal.protocol.share import CancelOutcome
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from support.brokers.servers import ShoalProcess

#: A lock's shortest duration, for tests in which locks end.
BROKER_CONFIG = {"group.share.min.record.lock.duration.ms": "1000"}
CANCELLED, IN_FLIGHT, DONE, NOT_FOUND = CancelOutcome
ACCEPT, RELEASE, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW


class Cancelled(Queue):
    """A queue, a member of its group, and calls that cancel records."""

    def __init__(self, client: SyncClient, bootstrap: str, **options: Any) -> None:
        super().__init__(client, bootstrap, **options)
        self.place = TopicPartition(self.topic, 0)
        self.sessions: list[ShareSession] = []

    def join(self) -> ShareSession:
        session = self.client.run(self.client.client.share(self.group, [self.topic]))
        self.sessions.append(session)
        return session

    def acquire(self, session: ShareSession, records: int) -> list[int]:
        """Acquire exactly this number of records, and return their offsets."""
        found: list[int] = []

        def has_enough() -> bool:
            wanted, mode = records - len(found), AcquireMode.RECORD_LIMIT
            for acquired in self.client.run(session.acquire(max_records=wanted, mode=mode)):
                for one in acquired.ranges:
                    found.extend(range(one.first_offset, one.last_offset + 1))
            return len(found) == records

        eventually(has_enough, timeout_s=30, what=f"{records} records are acquired")
        return found

    def settle(
        self, session: ShareSession, *acks: tuple[int, AcknowledgeType]
    ) -> list[tuple[int, ErrorCode]]:
        """Acknowledge offsets; return those that were refused, and why."""
        sent = [Acknowledgement(self.topic, 0, offset, offset, kind) for offset, kind in acks]
        refused = []
        for ack, error in self.client.run(session.acknowledge(sent)):
            assert isinstance(error, KafkaError)
            refused.append((ack.first_offset, error.code))
        return refused

    def cancel(self, *ranges: tuple[int, int], **options: Any) -> list[tuple[int, int, Any]]:
        """Cancel ranges of offsets, and return what became of them."""
        call = self.client.admin.share_groups.cancel(self.group, {self.place: ranges}, **options)
        result = self.client.run(call)[self.place]
        if isinstance(result, KafkaError):
            raise result
        return [(one.first_offset, one.last_offset, one.outcome) for one in result]

    def close(self) -> None:
        for session in self.sessions:
            self.client.run(session.close())


@pytest.fixture
def client(shared_broker: ShoalProcess) -> Iterator[SyncClient]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield client


@pytest.fixture
def queue(client: SyncClient, shared_broker: ShoalProcess) -> Iterator[Cancelled]:
    found = Cancelled(client, shared_broker.bootstrap)
    yield found
    found.close()


def test_a_member_gets_what_is_left(queue: Cancelled) -> None:
    queue.produce(range(6))
    member = queue.join()
    assert queue.acquire(member, 1) == [0]
    assert queue.cancel((1, 2), (4, 4), (6, 7)) == [
        (1, 2, CANCELLED),
        (4, 4, CANCELLED),
        (6, 7, NOT_FOUND),
    ]
    assert queue.cancel((1, 2)) == [(1, 2, DONE)]
    assert queue.acquire(member, 2) == [3, 5]


def test_the_lock_of_a_cancelled_record_is_not_renewed(queue: Cancelled) -> None:
    """Other acknowledgements of the request count: nobody else's record pays for it."""
    queue.produce(range(4))
    member = queue.join()
    assert queue.acquire(member, 3) == [0, 1, 2]
    assert queue.cancel((1, 1)) == [(1, 1, IN_FLIGHT)]
    refused = [(1, ErrorCode.invalid_record_state)]
    assert queue.settle(member, (1, RENEW)) == refused
    assert queue.settle(member, (0, ACCEPT), (1, RENEW), (2, RENEW)) == refused
    assert queue.settle(member, (1, RELEASE), (2, ACCEPT)) == []
    assert queue.acquire(member, 1) == [3]


def test_a_cancelled_record_that_is_accepted_is_done(queue: Cancelled) -> None:
    queue.produce(range(2))
    member = queue.join()
    assert queue.acquire(member, 1) == [0]
    assert queue.cancel((0, 0)) == [(0, 0, IN_FLIGHT)]
    assert queue.settle(member, (0, ACCEPT)) == []
    assert queue.cancel((0, 0)) == [(0, 0, DONE)]


def test_a_cancelled_record_does_not_come_back_when_its_lock_ends(queue: Cancelled) -> None:
    queue.configure(share_record_lock_duration_ms="1000")
    queue.produce(range(2))
    holder, other = queue.join(), queue.join()
    assert queue.acquire(holder, 2) == [0, 1]
    assert queue.cancel((0, 0)) == [(0, 0, IN_FLIGHT)]
    assert queue.acquire(other, 1) == [1]
    assert queue.cancel((0, 0)) == [(0, 0, DONE)]


def test_cancelled_records_of_a_key_let_the_next_one_pass(queue: Cancelled) -> None:
    queue.configure(share_ordering="key", share_delay_max_ms="3600000")
    queue.produce([0, 1, 2], key=b"a")
    queue.produce([3], key=b"b", headers=(("shoal.deliver.after", b"3000000"),))
    queue.produce([4], key=b"b")
    member = queue.join()
    assert queue.acquire(member, 1) == [0]
    # One waits behind its key, one for its delay, and one is behind a delayed record.
    assert queue.cancel((0, 1), (3, 3)) == [(0, 0, IN_FLIGHT), (1, 1, CANCELLED), (3, 3, CANCELLED)]
    assert queue.acquire(member, 1) == [4]
    assert queue.settle(member, (0, RELEASE)) == []
    assert queue.acquire(member, 1) == [2]


def test_a_dead_letter_says_that_its_record_was_cancelled(
    queue: Cancelled, client: SyncClient
) -> None:
    queue.produce(range(2))
    queue.acquire(queue.join(), 1)
    with pytest.raises(KafkaError, match="has no dead-letter topic"):
        queue.cancel((0, 1), dead_letter=True)
    letters = Cancelled(
        client,
        queue.bootstrap,
        topic=f"dlq.{queue.topic}",
        topic_configs={"errors.deadletterqueue.group.enable": "true"},
    )
    queue.configure(errors_deadletterqueue_topic_name=letters.topic)
    assert queue.cancel((0, 1), dead_letter=True) == [(0, 0, IN_FLIGHT), (1, 1, CANCELLED)]
    queue.close()
    queue.sessions.clear()
    reader = letters.join()
    assert letters.acquire(reader, 2) == [0, 1]
    assert letters.settle(reader, (0, RELEASE), (1, RELEASE)) == []
    found = []
    for acquired in client.run(reader.acquire(max_records=2, max_wait_ms=5_000)):
        found += [dict(record.headers) for record in acquired.records()]
    assert [one["__dlq.errors.disposition"] for one in found] == [b"CANCELLED"] * 2
    assert sorted(one["__dlq.errors.offset"] or b"" for one in found) == [b"0", b"1"]
    letters.close()


def test_what_cannot_be_cancelled_is_refused(queue: Cancelled) -> None:
    queue.produce(range(2))
    with pytest.raises(KafkaError, match="has not begun to read"):
        queue.cancel((0, 0))
    queue.acquire(queue.join(), 1)
    with pytest.raises(KafkaError, match=f"{CANCELLED_MAX} offsets at most"):
        queue.cancel((0, CANCELLED_MAX))
    with pytest.raises(KafkaError, match="is not a range"):
        queue.cancel((1, 0))
    assert queue.cancel((0, CANCELLED_MAX - 1))[-1] == (2, CANCELLED_MAX - 1, NOT_FOUND)


def test_many_ranges_are_cancelled_in_several_turns(queue: Cancelled) -> None:
    """Every second record, so that each is a range of its own."""
    queue.produce(range(2 * CANCELLED_MAX))
    queue.acquire(queue.join(), 1)
    even = [(offset, offset) for offset in range(2, 2 * CANCELLED_MAX, 2)]
    assert queue.cancel(*even) == [(first, last, CANCELLED) for first, last in even]
    assert queue.cancel(*even) == [(first, last, DONE) for first, last in even]


class Stop(Exception):
    """What a person does in the middle of a cancellation."""


def test_a_cancellation_that_was_stopped_continues(queue: Cancelled) -> None:
    """What was sent before is done, and counts; the rest follows when it is repeated."""
    queue.produce(range(2 * CANCELLED_MAX))
    queue.acquire(queue.join(), 1)

    def stop_behind_the_first_request() -> Iterator[int]:
        yield from range(1, CANCELLED_MAX + 2)
        raise Stop

    def cancel(offsets: Iterable[int], report: CancelReport) -> None:
        client = queue.client
        client.run(cancel_offsets(client.client, queue.group, queue.place, offsets, report))

    report, again = CancelReport(rows_max=1), CancelReport()
    with pytest.raises(Stop):
        cancel(stop_behind_the_first_request(), report)
    assert (report.counts[CANCELLED], len(report.rows)) == (CANCELLED_MAX, 1)
    cancel(range(1, 2 * CANCELLED_MAX), again)
    assert (again.counts[DONE], again.counts[CANCELLED]) == (CANCELLED_MAX, CANCELLED_MAX - 1)
