"""Cancelled records of a window by example: those that wait, and those that a member holds."""

from __future__ import annotations

import pytest
from shoal.coordinator.share.acquisition import AcquireRequest, acquire
from shoal.coordinator.share.backoff import RedeliveryBackoff
from shoal.coordinator.share.batches import scan
from shoal.coordinator.share.cancellation import Cancellation, cancel
from shoal.coordinator.share.delivery_failure import FailureCause, FailurePolicy
from shoal.coordinator.share.in_flight import list_in_flight
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import AcknowledgeOutcome, SharePartition
from shoal.coordinator.share.states import ARCHIVED, ARCHIVING, AVAILABLE
from shoal.protocol.errors import ErrorCode
from shoal.protocol.share import CancelOutcome
from shoal.record.records import build_batch

ACCEPT, RELEASE, REJECT, RENEW = (bytes([kind]) for kind in (1, 2, 3, 4))
CANCELLED, IN_FLIGHT, DONE, NOT_FOUND = CancelOutcome
LOG_END = 10


class Window:
    """A share partition with a log of ten records."""

    def __init__(self, settings: ShareSettings | None = None) -> None:
        self.settings = settings or ShareSettings(lock_duration_ms=100)
        self.data = bytes(build_batch([(0, None, b"x", ())] * LOG_END, base_offset=0))
        self.share = SharePartition(0)
        self.now_ms = 0

    def fetch(self, max_records: int) -> list[int]:
        """Acquire for member `m`; return the offsets."""
        begin = self.share.find_next_fetch_offset()
        wanted = AcquireRequest("m", max_records, max_records, strict=True)
        batches = scan(self.data, begin)
        got = acquire(self.share, self.now_ms, wanted, batches, self.settings, begin)
        return [o for first, last, _ in got.records for o in range(first, last + 1)]

    def acknowledge(self, *acks: tuple[int, int, bytes]) -> AcknowledgeOutcome:
        policy = FailurePolicy(self.now_ms, lambda: 0.5, self.settings.backoff, dead_letters=True)
        return self.share.acknowledge(self.now_ms, "m", acks, self.settings, policy)

    def cancel(self, first: int, last: int, *, dead_letter: bool = False) -> Cancellation:
        return cancel(self.share, first, last, limit=LOG_END, dead_letter=dead_letter)


def test_each_offset_is_answered_by_what_became_of_it() -> None:
    window = Window()
    assert window.fetch(3) == [0, 1, 2]
    window.acknowledge((0, 0, ACCEPT))
    done = window.cancel(0, 12)
    assert [tuple(one) for one in done.records] == [
        (0, 0, DONE),
        (1, 2, IN_FLIGHT),
        (3, 9, CANCELLED),
        (10, 12, NOT_FOUND),
    ]
    assert done.changes == [(3, 9, ARCHIVED, 0)]
    assert done.marks == [(1, 2, ARCHIVED, 1)]
    assert window.fetch(10) == []


def test_cancelling_again_changes_nothing() -> None:
    window = Window()
    window.fetch(1)
    window.cancel(0, 1)
    again = window.cancel(0, 1)
    assert [one.outcome for one in again.records] == [IN_FLIGHT, DONE]
    assert (again.changes, again.marks) == ([], [])


def test_a_record_behind_the_window_is_cancelled_and_those_before_it_are_delivered() -> None:
    window = Window(ShareSettings(max_record_locks=2))
    window.cancel(5, 5)
    assert window.fetch(10) == [0, 1]
    window.acknowledge((0, 1, ACCEPT))
    assert window.fetch(10) == [2, 3]
    window.acknowledge((2, 3, ACCEPT))
    assert window.fetch(10) == [4, 6]


def test_a_record_in_back_off_is_cancelled() -> None:
    window = Window(ShareSettings(backoff=RedeliveryBackoff(50, 50, 1, 0)))
    window.fetch(1)
    window.acknowledge((0, 0, RELEASE))
    assert window.share.backing_off == 1
    assert [one.outcome for one in window.cancel(0, 0).records] == [CANCELLED]
    assert (window.share.backing_off, window.share.start_offset) == (0, 1)
    assert window.share.next_deadline_ms is None


def test_only_the_renewal_of_a_cancelled_record_is_refused() -> None:
    window = Window()
    window.fetch(3)
    window.cancel(1, 1)
    window.now_ms = 40
    alone = window.acknowledge((1, 1, RENEW))
    assert alone.error is ErrorCode.invalid_record_state
    assert "cancelled" in (alone.message or "")
    assert list(alone.cancelled) == [(1, 1)]
    mixed = window.acknowledge((0, 0, ACCEPT), (1, 2, RENEW))
    assert (mixed.error, list(mixed.cancelled)) == (ErrorCode.none, [(1, 1)])
    window.now_ms = 100
    window.share.expire(window.now_ms, 5)
    assert window.share.start_offset == 2
    assert [lock.deadline_ms for lock in window.share.locks.live.values()] == [140]


@pytest.mark.parametrize("how", ["released", "rejected", "expired", "undelivered", "not sent"])
def test_a_cancelled_record_that_its_member_gives_back_is_archived(how: str) -> None:
    window = Window()
    window.fetch(1)
    window.cancel(0, 0)
    if how == "released":
        window.acknowledge((0, 0, RELEASE))
    elif how == "rejected":
        window.acknowledge((0, 0, REJECT))
    elif how == "expired":
        window.share.expire(100, 5)
    elif how == "undelivered":
        window.share.release("m", 5, undelivered=True)
    else:
        (number,) = window.share.locks.live
        window.share.take_back(number, 5)
    assert window.share.start_offset == 1
    assert window.share.in_flight == LOG_END - 1
    assert [batch[2] for batch in window.share.take_failed()] == [ARCHIVED]
    assert window.share.take_dead_letters() == []


def test_an_accept_of_a_cancelled_record_counts() -> None:
    window = Window()
    window.fetch(2)
    window.cancel(1, 1)
    assert window.acknowledge((0, 1, ACCEPT)).error is ErrorCode.none
    assert window.share.take_failed() == []
    assert window.share.start_offset == 2


def test_a_dead_letter_is_written_if_asked_for() -> None:
    window = Window()
    window.fetch(1)
    done = window.cancel(0, 1, dead_letter=True)
    assert done.marks == [(0, 0, ARCHIVING, 1)]
    (waiting,) = window.share.take_dead_letters()
    assert (waiting.first, waiting.cause) == (1, FailureCause.CANCELLED)
    window.acknowledge((0, 0, RELEASE))
    (held,) = window.share.take_dead_letters()
    assert (held.first, held.cause, held.member_id) == (0, FailureCause.CANCELLED, "m")


def test_the_next_leader_finds_a_cancelled_record_archived() -> None:
    window = Window()
    window.fetch(2)
    marks = window.cancel(0, 0).marks
    loaded = SharePartition.from_state_batches(
        0, marks, state_epoch=0, leader_epoch=1, log_start_offset=0, log_end_offset=LOG_END
    )
    assert loaded.start_offset == 1
    assert list(window.share.iterate_state_batches())[:2] == [
        (0, 0, ARCHIVED, 1),
        (1, 1, AVAILABLE, 1),
    ]


def test_a_cancelled_record_shows_as_such_while_a_member_holds_it() -> None:
    window = Window()
    window.fetch(2)
    window.cancel(1, 1)
    entries, _ = list_in_flight(window.share, None, 0, 0, 9)
    assert [entry.failure for entry in entries][:2] == ["", "cancelled"]
