"""A share partition's window by example, with the sentences of KIP-932 and its successors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.coordinator.share import compiled
from shoal.coordinator.share.acquisition import AcquireRequest, AcquireResult, acquire
from shoal.coordinator.share.batches import AbortedTransaction, scan
from shoal.coordinator.share.locks import Lock, Locks
from shoal.coordinator.share.runs import RUN_SIZE
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.states import MOVES, TERMINAL, AcknowledgeType, RecordState, may_move
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch, read_records
from support.attacks.faulty_batches import batch

if TYPE_CHECKING:
    from collections.abc import Sequence

ACCEPT, RELEASE, REJECT, RENEW = (bytes([kind]) for kind in (1, 2, 3, 4))


def log(*sizes: int, base: int = 0, **options: object) -> bytes:
    """Return consecutive batches of these sizes."""
    data = b""
    for size in sizes:
        records = [(0, None, b"x", ())] * size
        data += bytes(build_batch(records, base_offset=base, **options))  # type: ignore[arg-type]
        base += size
    return data


class Window:
    """A share partition with the log it reads."""

    def __init__(self, data: bytes = b"", **settings: int) -> None:
        self.data = data
        self.settings = ShareSettings(**settings)  # type: ignore[arg-type]
        self.share = SharePartition(0)
        self.now_ms = 0

    def fetch(
        self,
        member: str = "m",
        *,
        max_records: int = 500,
        strict: bool = False,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> AcquireResult:
        begin = self.share.find_next_fetch_offset()
        at, data = 0, self.data
        while at < len(data) and _last(data, at) < begin:
            at += _size(data, at)
        wanted = AcquireRequest(member, max_records, max_records, strict)
        batches = scan(data[at:], begin, aborted)
        return acquire(self.share, self.now_ms, wanted, batches, self.settings, begin)

    def acknowledge(self, first: int, last: int, types: bytes, member: str = "m") -> ErrorCode:
        acks = [(first, last, types)]
        return self.share.acknowledge(self.now_ms, member, acks, self.settings).error


def _size(data: bytes, at: int) -> int:
    return 12 + int.from_bytes(data[at + 8 : at + 12], "big")


def _last(data: bytes, at: int) -> int:
    base = int.from_bytes(data[at : at + 8], "big")
    return base + int.from_bytes(data[at + 23 : at + 27], "big")


def test_the_moves_are_those_of_the_kip() -> None:
    """KIP-932, "In-flight records": Available → Acquired → Acknowledged or Archived."""
    assert {state for state in RecordState if state in TERMINAL} == {
        RecordState.ACKNOWLEDGED,
        RecordState.ARCHIVED,
    }
    for state, moves in MOVES.items():
        assert {to for to in RecordState if may_move(state, to)} == moves
    assert not may_move(RecordState.AVAILABLE, RecordState.ACKNOWLEDGED)


def test_the_start_offset_moves_past_complete_records_only() -> None:
    window = Window(log(10))
    window.fetch()
    assert window.acknowledge(3, 9, ACCEPT) is ErrorCode.none
    assert (window.share.start_offset, window.share.complete) == (0, 7)
    assert window.acknowledge(0, 1, ACCEPT) is ErrorCode.none
    assert (window.share.start_offset, window.share.complete) == (2, 7)
    assert window.acknowledge(2, 2, REJECT) is ErrorCode.none
    assert (window.share.start_offset, window.share.complete, len(window.share.runs)) == (10, 0, 0)


def test_a_batch_is_delivered_in_ever_smaller_pieces_near_the_limit() -> None:
    """KAFKA-17541: with a limit of 5, whole batches up to the third delivery, halves at the fourth,
    and single records at the last. So a poison record does not fail its whole batch."""
    window = Window(log(8))
    sizes = []
    for _ in range(3):
        sizes.append(window.fetch().total)
        window.acknowledge(0, 7, RELEASE)
    fourth = window.fetch()
    assert (sizes, fourth.records) == ([8, 8, 8], [(0, 3, 4)])
    assert window.fetch().records == [(4, 7, 4)]
    window.acknowledge(0, 7, RELEASE)
    last = [window.fetch().records for _ in range(8)]
    assert last == [[(offset, offset, 5)] for offset in range(8)]


def test_pieces_halve_with_each_delivery_under_a_high_limit() -> None:
    window = Window(log(64), delivery_count_limit=10)
    totals = []
    for _ in range(10):
        totals.append(window.fetch().total)
        window.share.release("m", 10)
    assert totals == [64, 64, 64, 64, 64, 32, 16, 8, 4, 1]


def test_a_record_released_at_the_limit_is_archived() -> None:
    window = Window(log(1), delivery_count_limit=2)
    for count in (1, 2):
        assert window.fetch().records == [(0, 0, count)]
        window.now_ms += window.settings.lock_duration_ms
        freed, changes = window.share.expire(window.now_ms, 2)
        assert freed == 1
    assert changes == [(0, 0, RecordState.ARCHIVED, 2)]
    assert window.share.start_offset == 1


def test_a_limit_that_was_lowered_holds_for_what_is_already_in_flight() -> None:
    window = Window(log(1))
    for _ in range(3):
        window.fetch()
        window.acknowledge(0, 0, RELEASE)
    window.settings = ShareSettings(delivery_count_limit=2)
    got = window.fetch()
    assert (got.total, got.changes) == (0, [(0, 0, RecordState.ARCHIVED, 3)])


@pytest.mark.parametrize("strict", [False, True])
def test_a_batch_is_cut_at_the_limit_on_records_in_flight(strict: bool) -> None:
    """KIP-932: share.partition.max.record.locks; KAFKA-19555: also once records come back."""
    window = Window(log(6, 6, 6), max_record_locks=10)
    assert window.fetch("a", strict=strict).records == [(0, 9, 1)]
    assert window.fetch("b", strict=strict).total == 0
    assert window.acknowledge(4, 9, RELEASE, "a") is ErrorCode.none
    assert window.fetch("b", strict=strict).records == [(4, 9, 2)]
    assert window.share.end_offset == 10
    assert window.acknowledge(0, 2, ACCEPT, "a") is ErrorCode.none
    assert window.fetch("a", strict=strict).records == [(10, 12, 1)]
    assert window.share.in_flight == 10


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("max_records", [1, 7, 500])
def test_batches_larger_than_the_limit_are_delivered_in_parts(
    strict: bool, max_records: int
) -> None:
    window = Window(log(1, 250, 35), max_record_locks=10)
    seen: list[Any] = []
    while (got := window.fetch(max_records=max_records, strict=strict)).total:
        assert window.share.in_flight <= 10
        for first, last, count in got.records:
            assert count == 1
            seen += range(first, last + 1)
            assert window.acknowledge(first, last, ACCEPT) is ErrorCode.none
    assert seen == list(range(286))


def test_offsets_that_are_never_delivered_do_not_count_as_in_flight() -> None:
    """Control batches and aborted transactions lie between the records, the limit in one batch."""
    data = (
        log(6)
        + log(1, base=6, control=True)
        + log(500, base=7, transactional=True, producer_id=9)
        + log(6, base=507)
    )
    window = Window(data, max_record_locks=10)
    aborted = [AbortedTransaction(9, 7, 506)]
    assert window.fetch(aborted=aborted).records == [(0, 5, 1), (507, 510, 1)]
    assert (window.share.in_flight, window.fetch(aborted=aborted).total) == (10, 0)
    assert window.acknowledge(0, 5, ACCEPT) is ErrorCode.none
    assert window.fetch(aborted=aborted).records == [(511, 512, 1)]


@pytest.mark.parametrize("strict", [False, True])
def test_a_lowered_limit_holds_once_records_are_settled(strict: bool) -> None:
    window = Window(log(30, 30), max_record_locks=40)
    assert window.fetch("a", strict=strict).total == 40
    window.settings = ShareSettings(max_record_locks=10)
    assert window.acknowledge(0, 34, RELEASE, "a") is ErrorCode.none
    assert not window.share.is_full(10)
    assert window.fetch("b", strict=strict).records == [(0, 4, 2)]
    assert window.share.is_full(10)
    assert not window.share.can_acquire(60, 10)
    assert window.fetch("c", strict=strict).total == 0
    assert window.acknowledge(0, 3, ACCEPT, "b") is ErrorCode.none
    assert window.fetch("c", strict=strict).records == [(5, 8, 2)]
    window.share.release("a", 5)
    window.share.release("b", 5)
    window.share.release("c", 5)
    while (got := window.fetch(strict=strict)).total:
        assert got.total <= 10
        assert window.acknowledge(got.records[0][0], got.records[-1][1], ACCEPT) is ErrorCode.none
    assert window.share.start_offset == 60


def test_record_limit_splits_batches_and_the_rest_is_free() -> None:
    """KIP-1206: never more than max.poll.records."""
    window = Window(log(10))
    assert window.fetch("a", max_records=3, strict=True).records == [(0, 2, 1)]
    assert window.fetch("b", max_records=3).records == [(3, 9, 1)]


def test_a_part_of_a_batch_is_sent_without_the_rest() -> None:
    """Otherwise a batch of 1,000 that is delivered in ten parts would be sent ten times."""
    data = log(1000)
    batches, part = scan(data, 0), [(100, 199, 1)]
    sent = b"".join(batches.build_views(part, 100, whole=False))
    if compiled.native is not None:
        assert len(sent) < len(data) / 9
        found = scan(sent, 0)
        assert (found.bases, found.lasts) == ([0], [999])
        assert [record.offset for record in read_records(sent)] == list(range(100, 200))
    assert b"".join(batches.build_views(part, 100, whole=True)) == data
    assert b"".join(batches.build_views([(0, 499, 1)], 500, whole=False)) == data


def test_a_window_that_had_key_order_is_acquired_within_the_limit() -> None:
    """A group with key order scans far ahead, so its window may be larger than the limit."""
    window = Window(log(300), max_record_locks=100)
    window.share.extend(249)
    assert window.fetch("a", max_records=60, strict=True).total == 60
    assert window.fetch("b").total == 40
    assert window.fetch("c").total == 0
    assert window.share.is_full(100)
    assert window.acknowledge(0, 9, ACCEPT, "a") is ErrorCode.none
    assert window.fetch("c").records == [(100, 109, 1)]


@pytest.mark.parametrize("strict", [False, True])
def test_a_batch_that_claims_two_billion_offsets_is_cut_at_the_cap(strict: bool) -> None:
    """KIP-932: share.partition.max.record.locks, whatever a log contains."""
    absurd = batch(codec=1, count=2**31 - 1, raw=b"no gzip")
    window = Window(absurd, max_record_locks=200)
    got = window.fetch("a", max_records=150, strict=strict).records
    assert got == [(0, 149 if strict else 199, 1)]
    assert window.fetch("b", strict=strict).total == (50 if strict else 0)
    assert window.fetch("c", strict=strict).total == 0
    assert window.acknowledge(0, 149, ACCEPT, "a") is ErrorCode.none
    assert window.fetch("c", max_records=2**31 - 1, strict=strict).records == [(200, 349, 1)]
    assert window.acknowledge(200, 349, RELEASE, "c") is ErrorCode.none
    got = window.fetch("a", max_records=10, strict=strict).records
    assert got == [(200, 209 if strict else 349, 2)]
    assert window.share.in_flight == 200


def test_an_ended_lock_cannot_be_settled_even_before_its_timer_fires() -> None:
    window = Window(log(2))
    window.fetch()
    window.now_ms = window.settings.lock_duration_ms
    assert window.acknowledge(0, 1, ACCEPT) is ErrorCode.invalid_record_state
    assert window.acknowledge(0, 1, RENEW) is ErrorCode.invalid_record_state
    window.share.expire(window.now_ms, 5)
    assert window.fetch("other").records == [(0, 1, 2)]
    assert window.acknowledge(0, 1, ACCEPT) is ErrorCode.invalid_record_state


def test_renewal_moves_the_deadline_of_what_it_names() -> None:
    """KIP-1222."""
    window = Window(log(4))
    window.fetch()
    window.now_ms = 10_000
    assert window.acknowledge(1, 2, RENEW) is ErrorCode.none
    window.now_ms = 30_000
    freed, _ = window.share.expire(window.now_ms, 5)
    assert (freed, window.share.next_deadline_ms) == (2, 40_000)
    assert window.acknowledge(1, 2, ACCEPT) is ErrorCode.none


def test_records_that_never_left_the_broker_keep_their_count() -> None:
    window = Window(log(2))
    got = window.fetch()
    window.share.take_back(got.lock, 5)
    assert window.fetch().records == [(0, 1, 1)]
    window.share.release("m", 5)
    assert window.fetch().records == [(0, 1, 2)]


def test_control_batches_are_never_delivered() -> None:
    window = Window(log(2) + log(1, base=2, control=True) + log(2, base=3))
    got = window.fetch()
    assert got.records == [(0, 1, 1), (3, 4, 1)]
    assert window.share.in_flight == 4
    window.acknowledge(0, 1, ACCEPT)
    assert window.share.start_offset == 3


def test_read_committed_passes_by_aborted_records() -> None:
    data = log(2, transactional=True, producer_id=9) + log(2, base=2)
    window = Window(data)
    aborted = [AbortedTransaction(9, 0, 4)]
    assert window.fetch(aborted=aborted).records == [(2, 3, 1)]
    assert Window(data).fetch().records == [(0, 3, 1)]


def test_a_corrupt_redelivered_batch_is_archived_and_skipped() -> None:
    good, bad = log(2), bytearray(log(2, base=2))
    bad[-1] ^= 1
    window = Window(good + bytes(bad) + log(2, base=4))
    assert window.fetch().records == [(0, 5, 1)]
    window.acknowledge(0, 5, RELEASE)
    got = window.fetch()
    assert got.records == [(0, 1, 2), (4, 5, 2)]
    assert got.changes == [(2, 3, RecordState.ARCHIVED, 1)]


def test_holes_that_compaction_left_cost_nothing() -> None:
    window = Window(log(2) + log(2, base=1_000_000), max_record_locks=100)
    assert window.fetch().records == [(0, 1, 1), (1_000_000, 1_000_001, 1)]
    assert (window.share.in_flight, len(window.share.runs)) == (4, 3)


def test_a_log_start_that_moves_takes_its_records_along() -> None:
    window = Window(log(5, 5))
    window.fetch()
    window.share.advance_log_start(7)
    assert (window.share.start_offset, window.share.end_offset) == (7, 10)
    assert window.acknowledge(0, 6, ACCEPT) is ErrorCode.none, "deleted records are ignored"
    assert window.acknowledge(5, 9, ACCEPT) is ErrorCode.none
    window.share.advance_log_start(20)
    assert (window.share.start_offset, window.share.end_offset) == (20, 20)
    assert not window.share.locks.live


def test_a_window_is_built_from_what_is_persisted() -> None:
    share = SharePartition.from_state_batches(
        10,
        [(12, 13, 2, 1), (15, 16, 0, 3), (18, 18, 4, 5)],
        state_epoch=1,
        leader_epoch=2,
        log_start_offset=0,
        log_end_offset=100,
    )
    assert (share.start_offset, share.end_offset, share.complete) == (10, 19, 3)
    assert list(share.iterate_state_batches()) == [
        (10, 11, 0, 0),
        (12, 13, 2, 1),
        (14, 14, 0, 0),
        (15, 16, 0, 3),
        (17, 17, 0, 0),
        (18, 18, 4, 5),
    ]


def test_state_beyond_the_log_end_is_cut() -> None:
    def load(log_end_offset: int) -> SharePartition:
        return SharePartition.from_state_batches(
            10,
            [(10, 19, 2, 1), (20, 29, 0, 1)],
            state_epoch=0,
            leader_epoch=0,
            log_start_offset=0,
            log_end_offset=log_end_offset,
        )

    assert (load(25).start_offset, load(25).end_offset) == (20, 25)
    assert (load(15).start_offset, load(15).end_offset) == (15, 15)
    assert (load(5).start_offset, load(5).end_offset) == (5, 5)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_record_in_flight_costs_little(mixed: bool) -> None:
    window = Window(log(*[10] * 200))
    window.fetch(max_records=2000)
    if mixed:
        types = bytes([AcknowledgeType.RENEW, AcknowledgeType.ACCEPT] * 1000)
        assert window.acknowledge(0, 1999, types) is ErrorCode.none
    runs = 2000 if mixed else 1
    assert len(window.share.runs) == runs
    assert window.share.runs.get_size_bytes() <= 1000 + 1.3 * RUN_SIZE * runs


def test_leftover_deadlines_stay_within_twice_the_locks() -> None:
    locks = Locks()
    for deadline_ms in range(10_000):
        number = locks.allocate_number()
        locks.open(number, Lock("m", deadline_ms, first=0, last=0, records=1))
        if deadline_ms % 10:
            locks.give_back(number, 1)
    assert len(locks.live) == 1000
    assert len(locks._deadlines) <= 2 * 1000 + 65
    assert locks.find_next_deadline_ms() == 0
    assert len(locks.take_expired(5000)) == 501


def test_many_ranges_are_accepted_together_or_not_at_all() -> None:
    window = Window(log(8))
    share = window.share
    window.fetch("m", max_records=3, strict=True)
    window.fetch("other", max_records=1, strict=True)
    window.fetch("m", max_records=3, strict=True)
    acks = [(0, 0, ACCEPT), (2, 2, ACCEPT), (5, 6, ACCEPT + ACCEPT)]

    def accept(ranges: list[tuple[int, int, bytes]]) -> ErrorCode:
        return share.acknowledge(window.now_ms, "m", ranges, window.settings).error

    for bad in (
        [*acks[:2], (3, 3, ACCEPT)],  # locked by another member
        [*acks, (7, 7, ACCEPT)],  # not acquired
        [*acks, (8, 9, ACCEPT)],  # after the window
    ):
        assert accept(bad) is not ErrorCode.none
        assert (share.start_offset, share.complete) == (0, 0)
    window.now_ms = window.settings.lock_duration_ms
    assert accept(acks) is ErrorCode.invalid_record_state
    window.now_ms -= 1
    assert accept(acks) is ErrorCode.none
    assert (share.start_offset, share.complete) == (1, 3)
    assert [lock.records for lock in share.locks.live.values()] == [1, 1, 1]
    assert accept(acks) is ErrorCode.invalid_record_state
