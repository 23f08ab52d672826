"""Fetches of groups with key order, delay or priority (`coordinator.share.selection`).

A fetch scans a bounded number of new records and bytes, chooses the most urgent known ones, and
reads exactly their batches. If more is to be scanned, it wakes the waiting fetches for another
turn, so that no single fetch takes long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.coordinator.share.acquisition import NOTHING, Acquired, Wanted
from shoal.coordinator.share.batches import AbortedTransaction, Batches, scan
from shoal.coordinator.share.selection import (
    Range,
    Selection,
    acquired_ranges,
    encoded,
    open_lock,
)
from shoal.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.coordinator.share.read_cache import ReadCache
    from shoal.coordinator.share.record_scanner import LargeRead
    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.coordinator.share.states import StateBatch

#: Records that one fetch scans: some 5 ms of work.
SCANNED_RECORDS_MAX = 2000
#: Minimum and maximum bytes of one read to scan. And the size of a gap between two chosen records
#: up to which one read covers both.
SCAN_BYTES_MIN, SCAN_BYTES = 48 * 1024, 128 * 1024
READ_SIZE_MIN = 16 * 1024
#: Maximum reads of one fetch.
READS_MAX = 100


class SelectiveLeader(Protocol):
    """The leader of a share partition, as far as fetches with a selection use it."""

    selection: Selection | None
    #: Bytes of a record, as last read.
    record_size: float

    @property
    def share(self) -> SharePartition:
        """The window."""

    def limit(self, settings: ShareSettings) -> int:
        """The offset below which records may be delivered."""

    def is_full(self, settings: ShareSettings) -> bool:
        """Whether the limit on records in flight lets no fetch acquire anything."""

    def read(self, offset: int, size: int, limit: int) -> tuple[bytes | memoryview, int]:
        """About `size` bytes of the log, and the offset behind them. Raises `ApiError`."""

    def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions among records from `first` to before `end`."""

    def wake_soon(self) -> None:
        """Wake the waiting fetches in the next turn of the loop."""

    def read_aside(self, call: Callable[[], None]) -> None:
        """Call in a worker thread, then wake the waiting fetches."""


def selection_of(leader: SelectiveLeader, settings: ShareSettings) -> Selection | None:
    """Return the leader's selection under the group's configs in force."""
    policy, known = settings.selection, leader.selection
    if known is None or known.policy != policy:
        leader.selection = known = None if policy is None else Selection(leader.share, policy)
    return known


def may_acquire(leader: SelectiveLeader, settings: ShareSettings) -> bool:
    """Whether a fetch may get something now."""
    selection = selection_of(leader, settings)
    assert selection is not None
    if leader.is_full(settings) or selection.blocked_by_key_holders:
        return False
    if selection.may_choose():
        return True
    return not _is_reading(selection) and selection.needs_scan(1, leader.limit(settings))


def fetch(
    leader: SelectiveLeader, wanted: Wanted, max_bytes: int, settings: ShareSettings, now_ms: int
) -> tuple[list[memoryview], Acquired]:
    """Acquire and read. Raises `ApiError` when the log cannot be read."""
    selection = selection_of(leader, settings)
    assert selection is not None
    room = settings.max_record_locks - selection.in_flight()
    records = min(wanted.max_records, room, selection.fetch_limit.records)
    if records <= 0 or selection.blocked_by_key_holders:
        return [], NOTHING
    limit = leader.limit(settings)
    changes = _scan(leader, selection, records, limit, settings, now_ms)
    views: list[memoryview] = []
    acquired: list[Range] = []
    total, fresh = 0, False
    number = leader.share.locks.next_number()
    if selection.may_choose():
        chosen, given_up = selection.choose(records, settings, now_ms)
        changes += given_up
        try:
            pieces = _read(leader, selection, chosen, max_bytes, limit)
        except ApiError:
            selection.put_back(chosen, now_ms)
            raise
        read = sum(len(piece.offsets) for piece in pieces)
        selection.put_back(chosen[read:], now_ms)
        known = [piece.batches for piece in pieces if piece.batches is not None]
        acquired = selection.lock_new(chosen[:read], number, known)
        views = [view for piece in pieces for view in piece.views]
        if acquired:
            total, fresh = read, True
        else:
            views = []
            for offsets, batches in _apart(selection.read_cache, pieces):
                got, skipped = selection.lock(offsets, number, batches, settings, now_ms)
                changes += skipped
                acquired += got
                views += batches.thinned(got) if got else ()
            total = sum(last - first + 1 for first, last, _ in acquired)
    if changes:
        leader.share.advance()
    if not acquired:
        if selection.needs_scan(records, limit) and not _is_reading(selection):
            leader.wake_soon()  # All entries were outdated.
        return [], Acquired((), 0, 0, changes)
    deadline_ms = now_ms + settings.lock_duration_ms
    open_lock(leader.share, number, wanted.member_id, deadline_ms, acquired, total, now_ms=now_ms)
    return views, Acquired(acquired, total, number, changes, fresh, encoded(acquired))


def scan_ahead(
    leader: SelectiveLeader, settings: ShareSettings, now_ms: int
) -> tuple[list[StateBatch], bool]:
    """Scan about `SCANNED_RECORDS_MAX` records that no fetch has scanned.

    Return the changes to persist for skipped offsets, and whether a further scan finds more.
    Raises `ApiError` when the log cannot be read.
    """
    selection = selection_of(leader, settings)
    assert selection is not None
    records, limit = selection.policy.lookahead, leader.limit(settings)
    before = selection.cursor
    changes = _scan(leader, selection, records, limit, settings, now_ms)
    if changes:
        leader.share.advance()
    # A scan without progress finds no more.
    return changes, selection.cursor > before and selection.needs_scan(records, limit)


class _Piece(NamedTuple):
    """Chosen offsets and their views. `batches` is their read, or None if they come from several
    cached reads."""

    offsets: list[int]
    batches: Batches | None
    views: list[memoryview]


def _apart(cache: ReadCache, pieces: Sequence[_Piece]) -> list[tuple[list[int], Batches]]:
    """Return chosen offsets by the read that contains them."""
    found = []
    for piece in pieces:
        one = piece.batches
        found += cache.apart(piece.offsets) if one is None else [(piece.offsets, one)]
    return found


def _read(
    leader: SelectiveLeader, selection: Selection, chosen: list[int], max_bytes: int, limit: int
) -> list[_Piece]:
    """Read the chosen rising offsets, as far as one fetch may read."""
    pieces: list[_Piece] = []
    left = max_bytes
    while chosen and len(pieces) < READS_MAX and (left > 0 or not pieces):
        past, view = selection.read_cache.gathered(chosen, left, READ_SIZE_MIN)
        if past:
            left -= len(view)
            pieces.append(_Piece(chosen[:past], None, [view]))
            chosen = chosen[past:]
            continue
        batches = _batches(leader, selection.read_cache, chosen, max(left, READ_SIZE_MIN), limit)
        if not len(batches):
            break
        past = bisect_right(chosen, batches.lasts[-1])
        if not past:
            break
        views = batches.thinned(acquired_ranges(chosen[:past]))
        left -= sum(map(len, views))
        pieces.append(_Piece(chosen[:past], batches, views))
        chosen = chosen[past:]
    return pieces


def _batches(
    leader: SelectiveLeader, cache: ReadCache, chosen: Sequence[int], room_bytes: int, limit: int
) -> Batches:
    """Return batches with the first of rising offsets and its neighbours, from a cached read or the
    log."""
    known, end = cache.find(chosen[0])
    if known is not None and len(known.data) <= room_bytes:
        return known
    if end is not None:
        chosen = chosen[: bisect_left(chosen, end)]
    guess = _span(chosen, READ_SIZE_MIN / leader.record_size) * leader.record_size * 1.1
    data, _ = leader.read(chosen[0], min(int(guess), room_bytes), limit)
    return scan(data, chosen[0])


def _span(chosen: Sequence[int], gap_max: float) -> int:
    """Return how many offsets one read covers: up to a gap that is worth a new read."""
    last = chosen[0]
    for offset in chosen:
        if offset - last > gap_max:
            break
        last = offset
    return last - chosen[0] + 1


def _scan(
    leader: SelectiveLeader,
    selection: Selection,
    records: int,
    limit: int,
    settings: ShareSettings,
    now_ms: int,
) -> list[StateBatch]:
    """Scan as many records as are needed and one fetch may scan. Return the changes to persist."""
    changes: list[StateBatch] = []
    budget = SCANNED_RECORDS_MAX
    selection.begin_scan()
    while selection.needs_scan(records, limit):
        if budget <= 0 or selection.must_pause:
            if selection.large_read is not None:
                _start(leader, selection.large_read)
            elif not selection.may_choose():
                leader.wake_soon()
            break
        fresh, offset = None, selection.next_scan_offset()
        if not selection.is_open:
            if offset >= limit:
                break
            wanted = int((records - selection.queued) * leader.record_size)
            size = min(max(wanted, SCAN_BYTES_MIN), SCAN_BYTES)
            data, next_offset = leader.read(offset, size, limit)
            aborted = leader.aborted(offset, next_offset) if settings.read_committed else ()
            batches = scan(data, offset, aborted)
            if not len(batches):
                break
            size = max(1, batches.lasts[-1] - batches.bases[0] + 1)
            leader.record_size = len(data) / size
            fresh = batches
            if batches.skipped:
                selection.read_cache.clear()
            else:
                selection.read_cache.add(batches)
        scanned, skipped = selection.scan(now_ms, budget, settings, fresh)
        budget -= max(scanned, 1)
        changes += skipped
    return changes


def _is_reading(selection: Selection) -> bool:
    """Whether the scan waits for the worker thread."""
    read = selection.large_read
    return read is not None and read.is_started and not read.is_done


def _start(leader: SelectiveLeader, read: LargeRead) -> None:
    """Read a large batch in the worker thread, unless that has begun."""
    if not read.is_started:
        read.is_started = True
        leader.read_aside(read.run)
