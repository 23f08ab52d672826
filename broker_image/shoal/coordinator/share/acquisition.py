"""Which records of a share partition a fetch gets.

Records that came back go first, since they are the oldest; then new ones from behind the window, as
far as its cap allows. Policies that hold records back (their key is held, their time has not come)
belong here, beside the window: they say which of the available offsets may be taken.

Rules:
* `batch_optimized` takes a record batch whole, past the number of records asked for if need be,
  unless the batch has more offsets than any group may hold; `record_limit` never takes more than
  asked for (KIP-1206).
* Near the delivery count limit a record is delivered in ever smaller company, so that one that
  kills its consumers does not take its batch along (KAFKA-17541): from half of the limit on in
  halves of its last piece, and alone at its last attempt. Such a piece is all that its fetch gets.
* A batch that comes back is checked against its CRC; a corrupt one is archived and passed by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.coordinator.share.batches import Batches
from shoal.coordinator.share.delivery_failure import Cause
from shoal.coordinator.share.locks import Lock
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import SharePartition, StateBatch


class Wanted(NamedTuple):
    """What a member asks of one share partition."""

    member_id: str
    max_records: int
    #: Acquired ranges are cut at the next batch once they hold so many records.
    batch_size: int
    #: `record_limit` instead of `batch_optimized`.
    strict: bool = False


class Acquired(NamedTuple):
    """What a fetch got."""

    #: Offsets that the member now holds, in order: first, last, delivery count.
    records: Sequence[tuple[int, int, int]]
    #: How many records those are.
    total: int
    #: The lock they are under; 0 for none.
    lock: int
    #: What was passed by on the way, to be persisted; no reply has to wait for it.
    changes: Sequence[StateBatch]
    #: None of them was delivered before, and that is known without a look at each.
    fresh: bool = False
    #: The records as they lie in the answer; empty where that is not made here.
    encoded: bytes = b""


NOTHING = Acquired((), 0, 0, ())


def acquire(
    share: SharePartition,
    now_ms: int,
    wanted: Wanted,
    batches: Batches,
    settings: ShareSettings,
    first_wanted: int,
) -> Acquired:
    """Lock records for a member; `batches` are the log's from `share.next_fetch_offset()` on,
    which is `first_wanted`."""
    if not len(batches) or wanted.max_records <= 0:
        return NOTHING
    changes: list[StateBatch] = []
    _pass_by(share, batches, changes)
    _take_in(share, wanted, batches, settings, first_wanted, changes)
    number = share.locks.next_number()
    records: list[tuple[int, int, int]] = []
    acquired, offset, reach = 0, first_wanted, batches.lasts[-1]
    while acquired < wanted.max_records:
        run = share.available_from(offset)
        if run is None or run[0] > reach:
            break
        first, last, count, piece = run
        last = min(last, reach)
        if count >= settings.delivery_count_limit:
            share.archive(first, last, changes, Cause.LIMIT if settings.dead_letters else None)
            offset = last + 1
            continue
        split = count >= settings.splitting_count
        if split and acquired:
            break
        last = _end_of_take(first, last, wanted, acquired, batches)
        if split:
            last = min(last, first + _piece_size(piece or last - first + 1, count, settings) - 1)
        corrupt = batches.first_corrupt(first, last) if count else None
        if corrupt is not None and corrupt[0] <= first:
            cause = Cause.CORRUPT if settings.dead_letters else None
            share.archive(first, min(last, corrupt[1]), changes, cause)
            offset = min(last, corrupt[1]) + 1
            continue
        if corrupt is not None:
            last = corrupt[0] - 1
        for low, high in _ranges(first, last, wanted, batches):
            share.lock(low, high, number)
            records.append((low, high, count + 1))
        acquired += last - first + 1
        offset = last + 1
        if split:
            break
    if acquired:
        deadline_ms = now_ms + settings.lock_duration_ms
        lock = Lock(
            wanted.member_id,
            deadline_ms,
            first=records[0][0],
            last=records[-1][1],
            records=acquired,
            since_ms=now_ms,
        )
        share.locks.open(number, lock)
    if changes:
        share.advance()
    return Acquired(records, acquired, number if acquired else 0, changes)


def _pass_by(share: SharePartition, batches: Batches, changes: list[StateBatch]) -> None:
    """Archive what the window still thinks available and the log no longer has, or never offers."""
    for first, last in batches.passed_by:
        if first < share.end_offset:
            share.archive(first, min(last, share.end_offset - 1), changes)


def _take_in(
    share: SharePartition,
    wanted: Wanted,
    batches: Batches,
    settings: ShareSettings,
    first_wanted: int,
    changes: list[StateBatch],
) -> None:
    """Lengthen the window by whole batches, as far as records are wanted and the cap allows."""
    reach = batches.lasts[-1]
    if reach < share.end_offset:
        return
    room = settings.max_record_locks - share.in_flight
    missing = min(room, wanted.max_records - _available(share, first_wanted))
    ahead = [x for x in batches.passed_by if x[1] >= share.end_offset]
    for first, last in [*ahead, (reach + 1, reach)]:
        if missing <= 0:
            return
        if first > share.end_offset:
            before = share.end_offset
            share.extend(min(batches.end_of_take(before + missing - 1), first - 1))
            missing -= share.end_offset - before
        if share.end_offset < first or last < first:
            return
        share.archive(max(first, share.end_offset), last, changes)


def _available(share: SharePartition, offset: int) -> int:
    """How many offsets from `offset` on are available in the window."""
    total = 0
    while (run := share.available_from(offset)) is not None:
        total += run[1] - run[0] + 1
        offset = run[1] + 1
    return total


def _end_of_take(first: int, last: int, wanted: Wanted, acquired: int, batches: Batches) -> int:
    """Where a fetch stops within available offsets `[first, last]`."""
    cut = first + wanted.max_records - acquired - 1
    if last <= cut:
        return last
    return cut if wanted.strict else min(last, batches.end_of_take(cut))


def _piece_size(piece: int, count: int, settings: ShareSettings) -> int:
    """How many records go together whose last piece was so large and that were delivered `count`
    times."""
    return 1 if count + 1 >= settings.delivery_count_limit else max(1, piece // 2)


def _ranges(first: int, last: int, wanted: Wanted, batches: Batches) -> Iterator[tuple[int, int]]:
    """Cut what is acquired at batches, into ranges of at least `batch_size` records."""
    while not wanted.strict and last - first >= wanted.batch_size > 0:
        high = batches.last_of(first + wanted.batch_size - 1)
        if high >= last:
            break
        yield first, high
        first = high + 1
    yield first, last
