"""Fetches of groups with key order, delay, priority or fairness (`coordinator.share.selection`).

A fetch scans a bounded number of new records and bytes, chooses the most urgent known ones, and
reads exactly their batches. If more is to be scanned, it wakes the waiting fetches for another
turn, so that no single fetch takes long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.coordinator.share.acquisition import NOTHING, AcquireRequest, AcquireResult
from shoal.coordinator.share.batches import AbortedTransaction, Batches, scan
from shoal.coordinator.share.reach import Reach
from shoal.coordinator.share.selection import (
    Range,
    Selection,
    build_acquired_ranges,
    encode_ranges,
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
    from shoal.coordinator.share.tenant_limits import TenantLedger

#: Records that one fetch scans: some 5 ms of work.
SCANNED_RECORDS_MAX = 2000
#: A smaller rest of them is not worth a read.
SCANNED_RECORDS_LEFT = 100
#: Minimum and maximum bytes of one read to scan. And the size of a gap between two chosen records
#: up to which one read covers both.
SCAN_BYTES_MIN, SCAN_BYTES = 48 * 1024, 128 * 1024
READ_SIZE_MIN = 16 * 1024
#: A smaller read takes as long, and may have to be repeated, if the batch of its record is larger.
RECORD_READ_BYTES = 4 * 1024
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

    def get_limit(self, settings: ShareSettings) -> int:
        """The offset below which records may be delivered."""

    def is_full(self, settings: ShareSettings) -> bool:
        """Whether the limit on records in flight lets no fetch acquire anything."""

    def read(self, offset: int, size: int, limit: int) -> tuple[bytes | memoryview, int]:
        """About `size` bytes of the log, and the offset behind them. Raises `ApiError`."""

    def list_aborted(self, first: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions among records from `first` to before `end`."""

    def get_tenant_ledger(self, settings: ShareSettings) -> TenantLedger:
        """What the group's tenants use in the share partitions of the topic on this broker, with
        the limits in force."""

    def wake_soon(self) -> None:
        """Wake the waiting fetches in the next turn of the loop."""

    def read_aside(self, call: Callable[[], None]) -> None:
        """Call in a worker thread, then wake the waiting fetches."""


def get_selection(leader: SelectiveLeader, settings: ShareSettings) -> Selection | None:
    """Return the leader's selection under the group's configs in force."""
    policy, selection = settings.selection, leader.selection
    is_fair = policy is not None and bool(policy.fairness_by)
    ledger = leader.get_tenant_ledger(settings) if is_fair else None
    if selection is None or selection.policy != policy or _lacks_limits(selection, ledger):
        end_selection(leader)
        if policy is not None:
            selection = Selection(leader.share, policy, settings.tenants, ledger)
            leader.selection = selection
            if selection.fair is not None:
                selection.fair.wake = leader.wake_soon
    elif selection.fair is not None:
        selection.fair.configure(settings.tenants)
    return leader.selection


def _lacks_limits(selection: Selection, ledger: TenantLedger | None) -> bool:
    """Whether tenants got a first limit, and the queue, in C, has none. Another one reads the log
    anew, in many turns. To move 100,000 tenants would be a turn of a second."""
    fair = selection.fair
    return fair is not None and fair.is_compiled and ledger is not None and ledger.is_limited


def end_selection(leader: SelectiveLeader) -> None:
    """End the leader's selection, if there is one."""
    if leader.selection is not None:
        leader.selection.close()
        leader.selection = None


def may_acquire(leader: SelectiveLeader, settings: ShareSettings) -> bool:
    """Whether a fetch may get something now."""
    selection = get_selection(leader, settings)
    assert selection is not None
    if leader.is_full(settings) or selection.blocked_by_key_holders:
        return False
    if selection.may_choose():
        return True
    return not _is_reading(selection) and selection.needs_scan(1, leader.get_limit(settings))


def fetch(
    leader: SelectiveLeader,
    request: AcquireRequest,
    max_bytes: int,
    settings: ShareSettings,
    now_ms: int,
) -> tuple[list[memoryview], AcquireResult]:
    """Acquire and read. Raises `ApiError` when the log cannot be read."""
    selection = get_selection(leader, settings)
    assert selection is not None
    room = settings.max_record_locks - selection.count_in_flight()
    records = min(request.max_records, room, selection.fetch_limit.records)
    if records <= 0 or selection.blocked_by_key_holders:
        return [], NOTHING
    limit = leader.get_limit(settings)
    changes = _scan(leader, selection, records, limit, settings, now_ms)
    views: list[memoryview] = []
    acquired: list[Range] = []
    total, fresh = 0, False
    number = leader.share.locks.allocate_number()
    if selection.may_choose():
        reach = None
        if selection.fair is not None:
            reach = Reach(int(READ_SIZE_MIN / leader.record_size), READS_MAX)
        chosen, given_up = selection.choose(records, settings, now_ms, reach)
        changes += given_up
        try:
            pieces = _read(leader, selection, chosen, max_bytes, limit)
        except ApiError:
            selection.put_back(chosen, now_ms)
            raise
        read = sum(len(piece.offsets) for piece in pieces)
        selection.put_back(chosen[read:], now_ms)
        read_batches = [piece.batches for piece in pieces if piece.batches is not None]
        acquired = selection.lock_new(chosen[:read], number, read_batches)
        views = [view for piece in pieces for view in piece.views]
        if acquired:
            total, fresh = read, True
        else:
            views = []
            for offsets, batches in _split_by_read(selection.read_cache, pieces):
                got, skipped = selection.lock(offsets, number, batches, settings, now_ms)
                changes += skipped
                acquired += got
                views += batches.build_thinned(got) if got else ()
            total = sum(last - first + 1 for first, last, _ in acquired)
    if changes:
        leader.share.advance()
    if not acquired:
        if selection.needs_scan(records, limit) and not _is_reading(selection):
            leader.wake_soon()  # All entries were outdated.
        return [], AcquireResult((), 0, 0, changes)
    deadline_ms = now_ms + settings.lock_duration_ms
    open_lock(leader.share, number, request.member_id, deadline_ms, acquired, total, now_ms=now_ms)
    return views, AcquireResult(acquired, total, number, changes, fresh, encode_ranges(acquired))


def scan_ahead(
    leader: SelectiveLeader, settings: ShareSettings, now_ms: int
) -> tuple[list[StateBatch], bool]:
    """Scan about `SCANNED_RECORDS_MAX` records that no fetch has scanned.

    Return the changes to persist for skipped offsets, and whether a further scan finds more.
    Raises `ApiError` when the log cannot be read.
    """
    selection = get_selection(leader, settings)
    assert selection is not None
    records, limit = selection.policy.lookahead, leader.get_limit(settings)
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


def _split_by_read(cache: ReadCache, pieces: Sequence[_Piece]) -> list[tuple[list[int], Batches]]:
    """Return chosen offsets by the read that contains them."""
    parts = []
    for piece in pieces:
        batches = piece.batches
        parts += (
            cache.split_by_read(piece.offsets) if batches is None else [(piece.offsets, batches)]
        )
    return parts


def _read(
    leader: SelectiveLeader, selection: Selection, chosen: list[int], max_bytes: int, limit: int
) -> list[_Piece]:
    """Read the chosen rising offsets, as far as one fetch may read."""
    pieces: list[_Piece] = []
    bytes_left = max_bytes
    while chosen and len(pieces) < READS_MAX and (bytes_left > 0 or not pieces):
        past, view = selection.read_cache.gather(chosen, bytes_left, READ_SIZE_MIN)
        if past:
            bytes_left -= len(view)
            pieces.append(_Piece(chosen[:past], None, [view]))
            chosen = chosen[past:]
            continue
        batches = _get_batches(
            leader, selection.read_cache, chosen, max(bytes_left, READ_SIZE_MIN), limit
        )
        if not len(batches):
            break
        past = bisect_right(chosen, batches.lasts[-1])
        if not past:
            break
        views = batches.build_thinned(build_acquired_ranges(chosen[:past]))
        bytes_left -= sum(map(len, views))
        pieces.append(_Piece(chosen[:past], batches, views))
        chosen = chosen[past:]
    return pieces


def _get_batches(
    leader: SelectiveLeader, cache: ReadCache, chosen: Sequence[int], room_bytes: int, limit: int
) -> Batches:
    """Return batches with the first of rising offsets and its neighbours, from a cached read or the
    log."""
    cached, end = cache.find(chosen[0])
    if cached is not None and len(cached.data) <= room_bytes:
        return cached
    if end is not None:
        chosen = chosen[: bisect_left(chosen, end)]
    guess = _compute_span(chosen, READ_SIZE_MIN / leader.record_size) * leader.record_size * 1.1
    data, _ = leader.read(chosen[0], min(max(int(guess), RECORD_READ_BYTES), room_bytes), limit)
    return scan(data, chosen[0])


def _compute_span(chosen: Sequence[int], gap_max: float) -> int:
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
    # A fair group looks as far ahead as it may.
    wanted = records if selection.fair is None else selection.policy.fairness_lookahead
    selection.begin_scan()
    while selection.needs_scan(records, limit):
        if budget < SCANNED_RECORDS_LEFT or selection.must_pause:
            if selection.large_read is not None:
                _start(leader, selection.large_read)
            elif not selection.may_choose():
                leader.wake_soon()
            break
        fresh, offset = None, selection.find_next_scan_offset()
        if not selection.is_open:
            if offset >= limit:
                break
            estimate = int(min(wanted - selection.queued, budget) * leader.record_size)
            size = min(max(estimate, SCAN_BYTES_MIN), SCAN_BYTES)
            data, next_offset = leader.read(offset, size, limit)
            aborted = leader.list_aborted(offset, next_offset) if settings.read_committed else ()
            batches = scan(data, offset, aborted)
            if not len(batches):
                break
            size = max(1, batches.lasts[-1] - batches.bases[0] + 1)
            leader.record_size = len(data) / size
            fresh = batches
            if batches.skipped:
                selection.read_cache.clear()
            else:
                selection.keep_read(batches)
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
