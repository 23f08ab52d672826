"""Chooses the records of a share partition that a fetch gets.

Records that are available again go first, since they are the oldest. New records from behind the
window follow, up to the limit on records in flight. No acquisition exceeds that limit, so a batch
that is larger is delivered in parts.

Rules:
* `batch_optimized` acquires whole record batches, even past the requested number of records.
  `record_limit` never exceeds the requested number (KIP-1206).
* Near the delivery count limit, a record is delivered with fewer others, so that a record that
  kills its consumers does not fail its whole batch (KAFKA-17541). From half of the limit on, each
  delivery halves the piece; the last attempt delivers the record alone. Such a piece is a fetch of
  its own.
* A redelivered batch is checked against its CRC. A corrupt one is archived and skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.delivery_failure import FailureCause
from shoal.coordinator.share.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.coordinator.share.batches import Batches
    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.coordinator.share.states import StateBatch
    from shoal.protocol.share import AcquiredRange


class AcquireRequest(NamedTuple):
    """What a member requests from one share partition."""

    member_id: str
    max_records: int
    #: An acquired range ends at the next batch once it has this many records.
    batch_size: int
    #: `record_limit` instead of `batch_optimized`.
    strict: bool = False
    #: Only the headers of batches are wanted, with their sizes in the log.
    headers_only: bool = False


class AcquireResult(NamedTuple):
    """What a fetch acquired."""

    #: Offsets that the member now holds, in order.
    records: Sequence[AcquiredRange]
    #: Number of those records.
    total: int
    #: Number of their lock; 0 for none.
    lock: int
    #: State batches to persist for skipped offsets. No reply waits for them.
    changes: Sequence[StateBatch]
    #: Whether it is certain that none of them was delivered before.
    fresh: bool = False
    #: The ranges encoded for the answer; empty if the caller encodes them.
    encoded: bytes = b""


NOTHING = AcquireResult((), 0, 0, ())


def acquire(
    share: SharePartition,
    now_ms: int,
    request: AcquireRequest,
    batches: Batches,
    settings: ShareSettings,
    first_wanted: int,
) -> AcquireResult:
    """Lock records for a member. `batches` are those of the log from `first_wanted` on, which is
    `share.next_fetch_offset()`."""
    if not len(batches) or request.max_records <= 0:
        return NOTHING
    changes: list[StateBatch] = []
    _archive_skipped(share, batches, changes)
    _extend_window(share, request, batches, settings, first_wanted, changes)
    number = share.locks.allocate_number()
    records, acquired = _lock(share, number, request, batches, settings, first_wanted, changes)
    if acquired:
        deadline_ms = now_ms + settings.lock_duration_ms
        lock = Lock(
            request.member_id,
            deadline_ms,
            first=records[0][0],
            last=records[-1][1],
            records=acquired,
            since_ms=now_ms,
        )
        share.locks.open(number, lock)
    if changes:
        share.advance()
    return AcquireResult(records, acquired, number if acquired else 0, changes)


def _lock(
    share: SharePartition,
    number: int,
    request: AcquireRequest,
    batches: Batches,
    settings: ShareSettings,
    offset: int,
    changes: list[StateBatch],
) -> tuple[list[AcquiredRange], int]:
    """Lock available offsets from `offset` on. Return their ranges with delivery counts, and their
    number."""
    records: list[AcquiredRange] = []
    acquired, reach, limit = 0, batches.lasts[-1], settings.delivery_count_limit
    most = share.compute_lockable_max(settings.max_record_locks)
    enough = min(request.max_records, most)
    while acquired < enough:
        run = share.find_available(offset)
        if run is None or run[0] > reach:
            break
        first, last, count, piece = run
        last = min(last, reach)
        split = count >= settings.splitting_count
        if count < limit:
            if split and acquired:
                break
            take_end = _find_take_end(first, last, request, acquired, batches)
            last = min(take_end, first + most - acquired - 1)
            if split:
                size = _compute_piece_size(piece or last - first + 1, count, settings)
                last = min(last, first + size - 1)
        bad = _find_undeliverable(first, last, count, batches, limit) if count else None
        if bad is not None and bad[0] <= first:
            share.archive(first, bad[1], changes, bad[2] if settings.dead_letters else None)
            offset = bad[1] + 1
            continue
        if bad is not None:
            last = bad[0] - 1
        for low, high in _cut_ranges(first, last, request, batches):
            share.lock(low, high, number)
            records.append((low, high, count + 1))
        acquired += last - first + 1
        offset = last + 1
        if split:
            break
    return records, acquired


def _find_undeliverable(
    first: int, last: int, count: int, batches: Batches, limit: int
) -> tuple[int, int, FailureCause] | None:
    """Return the first of `[first, last]`, delivered `count` times, that must not be delivered
    again, and the cause: all of them at the delivery limit, or the offsets of a corrupt batch."""
    if count >= limit:
        return first, last, FailureCause.LIMIT
    corrupt = batches.find_first_corrupt(first, last)
    return None if corrupt is None else (corrupt[0], min(last, corrupt[1]), FailureCause.CORRUPT)


def _archive_skipped(share: SharePartition, batches: Batches, changes: list[StateBatch]) -> None:
    """Archive available offsets that the log has lost, or never delivers."""
    for first, last in batches.skipped:
        if first < share.end_offset:
            share.archive(first, min(last, share.end_offset - 1), changes)


def _extend_window(
    share: SharePartition,
    request: AcquireRequest,
    batches: Batches,
    settings: ShareSettings,
    first_wanted: int,
    changes: list[StateBatch],
) -> None:
    """Extend the window by whole batches, up to the requested number. Cut the last batch at the
    limit on records in flight."""
    reach = batches.lasts[-1]
    if reach < share.end_offset:
        return
    room = settings.max_record_locks - share.in_flight
    missing = request.max_records - _count_available(share, first_wanted)
    skipped_ahead = [x for x in batches.skipped if x[1] >= share.end_offset]
    for first, last in [*skipped_ahead, (reach + 1, reach)]:
        if missing <= 0 or room <= 0:
            return
        before = share.end_offset
        if first > before:
            batch_end = batches.find_last_offset(before + min(missing, room) - 1)
            share.extend(min(batch_end, before + room - 1, first - 1))
            missing -= share.end_offset - before
            room -= share.end_offset - before
        if share.end_offset < first or last < first:
            return
        share.archive(max(first, share.end_offset), last, changes)


def _count_available(share: SharePartition, offset: int) -> int:
    """Return the number of available offsets in the window from `offset` on."""
    total = 0
    while (run := share.find_available(offset)) is not None:
        first, last, _, _ = run
        total += last - first + 1
        offset = last + 1
    return total


def _find_take_end(
    first: int, last: int, request: AcquireRequest, acquired: int, batches: Batches
) -> int:
    """Return the last offset that a fetch takes of the available offsets `[first, last]`."""
    cut = first + request.max_records - acquired - 1
    if last <= cut:
        return last
    return cut if request.strict else min(last, batches.find_last_offset(cut))


def _compute_piece_size(piece: int, count: int, settings: ShareSettings) -> int:
    """Return the size of the next piece of records that were delivered `count` times, in pieces of
    `piece` records."""
    return 1 if count + 1 >= settings.delivery_count_limit else max(1, piece // 2)


def _cut_ranges(
    first: int, last: int, request: AcquireRequest, batches: Batches
) -> Iterator[tuple[int, int]]:
    """Cut acquired offsets at batch ends, into ranges of at least `batch_size` records."""
    while not request.strict and last - first >= request.batch_size > 0:
        high = batches.find_last_offset(first + request.batch_size - 1)
        if high >= last:
            break
        yield first, high
        first = high + 1
    yield first, last
