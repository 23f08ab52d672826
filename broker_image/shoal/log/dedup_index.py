"""The ids of the records that a partition's leader has appended within the deduplication window.

The index maps the digest of an id to the offset of its record. It is a hash table of packed
entries: a bucket is one `bytes` with the digest and the offset of each of its entries, in the order
of the offsets. The table grows by one bucket at a time (linear hashing), so no append pays for a
growth of the whole. An id takes less than 16 bytes.

Times are kept apart from the ids. A slot is a range of offsets with the time of its last append, so
an id expires when its offset is below the first slot that is young enough. Its entry is removed
later, when the sweep comes by. The offsets of aborted transactions
are ranges: one for each batch, not for each id.

The index knows neither clock nor log. `deduplication` fills it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING

from shoal.record.dedup_ids import DIGEST_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

_OFFSET_SIZE = 5
_ENTRY_SIZE = DIGEST_SIZE + _OFFSET_SIZE
#: Entries of a bucket on average, when one is split: 1 kB. More take less memory, and longer to
#: search and to copy.
_BUCKET_ENTRIES = 64
#: Bytes of a digest that choose its bucket.
_HASH_SIZE = 4
#: Slots in a window. An id may stay known for this fraction longer.
_SLOTS = 1_000
#: Buckets that an added id sweeps: the table is swept once in half as many ids as it has buckets.
_SWEPT = 2


#: Aborted batches that are kept together: to join them takes milliseconds. A transaction may have
#: a million batches, and those of others lie between them.
_JOINED_MAX = 20_000


class _BatchOffsets:
    """The offsets of some batches, ascending."""

    __slots__ = ("_firsts", "lasts")

    def __init__(self) -> None:
        self._firsts, self.lasts = array("q"), array("q")

    def append(self, first: int, last: int) -> None:
        """Add the batch behind the others."""
        self._firsts.append(first)
        self.lasts.append(last)

    def join(self, other: _BatchOffsets) -> None:
        """Add other batches, which may lie between these."""
        for own, more in ((self._firsts, other._firsts), (self.lasts, other.lasts)):
            at = bisect_right(own, more[0])
            own[at:] = array("q", sorted((*own[at:], *more)))

    def drop_below(self, offset: int) -> None:
        """Remove the batches that end below an offset."""
        count = bisect_left(self.lasts, offset)
        del self._firsts[:count], self.lasts[:count]

    def has(self, offset: int) -> bool:
        """Whether an offset is in one of the batches."""
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset <= self.lasts[at]


class DedupIndex:
    """Owns the ids of one partition since `base_offset`, for a window of `window_ms`."""

    def __init__(self, window_ms: int, base_offset: int) -> None:
        self.window_ms = window_ms
        self._base = base_offset
        self._buckets: list[bytes] = [b""]
        #: The table has 2^level + split buckets; those before `split` are divided by one more bit.
        self._level = self._split = self._sweep = 0
        self._entries = 0
        #: [first offset, first time, last time, number of ids] of each slot, in milliseconds.
        self._slots: deque[list[int]] = deque()
        #: Offsets below it are expired.
        self._floor = base_offset
        self._count = 0
        #: The offsets of aborted batches.
        self._freed: list[_BatchOffsets] = []
        #: The offsets of the batches with ids of each open transaction, by producer id.
        self._open: dict[int, _BatchOffsets] = {}

    def __len__(self) -> int:
        """The number of ids that have not expired, with those of aborted records."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """The memory of the table in bytes."""
        return sys.getsizeof(self._buckets) + sum(map(sys.getsizeof, self._buckets))

    def expire(self, now_ms: int) -> None:
        """Forget the ids that were appended `window_ms` ago."""
        slots, limit = self._slots, now_ms - self.window_ms
        if not slots or slots[0][2] > limit:
            return
        while slots and slots[0][2] <= limit:
            self._count -= slots.popleft()[3]
        self._floor = slots[0][0] if slots else self._floor
        if not slots:
            self._buckets, self._entries = [b""], 0
            self._level = self._split = self._sweep = 0
            self._freed.clear()
            return
        for freed in self._freed:
            freed.drop_below(self._floor)
        self._freed = [freed for freed in self._freed if freed.lasts]

    def find(self, digest: bytes) -> int | None:
        """Return the offset of the record with that id, or None. Call `expire` before."""
        bucket = self._buckets[self._find_place(digest)]
        # The latest entry counts. If it does not, neither do those before it.
        at = bucket.rfind(digest)
        while at >= 0:
            if at % _ENTRY_SIZE == 0:
                end = at + _ENTRY_SIZE
                offset = int.from_bytes(bucket[at + DIGEST_SIZE : end], "little") + self._base
                return offset if offset >= self._floor and not self._is_freed(offset) else None
            at = bucket.rfind(digest, 0, at + DIGEST_SIZE - 1)
        return None

    def note_batch(
        self,
        ids: Iterable[tuple[int, bytes]],
        *,
        base_offset: int,
        last_offset: int,
        now_ms: int,
        transaction: int | None,
    ) -> None:
        """Note the (offset delta, digest) of appended records, whose ids are not known.

        `now_ms` is not before that of the last batch. `transaction` is the producer id of a
        transactional batch.
        """
        slots = self._slots
        if not slots or now_ms - slots[-1][1] > self.window_ms // _SLOTS:
            slots.append([base_offset, now_ms, now_ms, 0])
        slot = slots[-1]
        slot[2] = now_ms
        self._floor = max(self._floor, slots[0][0])
        count = 0
        for delta, digest in ids:
            self._add(digest, base_offset + delta)
            count += 1
        slot[3] += count
        self._count += count
        if self._entries > self._count:
            for _ in range(_SWEPT * count):
                self._sweep = (self._sweep + 1) % len(self._buckets)
                self._remove_expired(self._sweep)
        if transaction is not None and count:
            self._open.setdefault(transaction, _BatchOffsets()).append(base_offset, last_offset)

    def note_marker(self, producer_id: int, *, aborted: bool) -> None:
        """End the transaction of a producer. An abort frees its ids."""
        batches = self._open.pop(producer_id, None)
        if not aborted or batches is None:
            return
        if self._freed and len(self._freed[-1].lasts) + len(batches.lasts) <= _JOINED_MAX:
            self._freed[-1].join(batches)
        else:
            self._freed.append(batches)

    def _is_freed(self, offset: int) -> bool:
        return any(freed.has(offset) for freed in self._freed)

    def _find_place(self, digest: bytes) -> int:
        number = int.from_bytes(digest[:_HASH_SIZE], "little")
        place = number & ((1 << self._level) - 1)
        return place if place >= self._split else number & ((2 << self._level) - 1)

    def _add(self, digest: bytes, offset: int) -> None:
        place = self._find_place(digest)
        entry = digest + (offset - self._base).to_bytes(_OFFSET_SIZE, "little")
        self._buckets[place] += entry
        self._entries += 1
        if self._entries > _BUCKET_ENTRIES * len(self._buckets):
            self._split_bucket()

    def _remove_expired(self, place: int) -> None:
        """Remove the entries of a bucket below the floor, which are its first ones."""
        bucket, end, floor = self._buckets[place], 0, self._floor - self._base
        while end < len(bucket):
            offset = bucket[end + DIGEST_SIZE : end + _ENTRY_SIZE]
            if int.from_bytes(offset, "little") >= floor:
                break
            end += _ENTRY_SIZE
        if end:
            self._buckets[place] = bucket[end:]
            self._entries -= end // _ENTRY_SIZE

    def _split_bucket(self) -> None:
        """Divide the next bucket by one more bit of its digests."""
        bucket, bit = self._buckets[self._split], 1 << self._level
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        for at in range(0, len(bucket), _ENTRY_SIZE):
            number = int.from_bytes(bucket[at : at + _HASH_SIZE], "little")
            parts[number & bit != 0].append(bucket[at : at + _ENTRY_SIZE])
        self._buckets[self._split] = b"".join(parts[0])
        self._buckets.append(b"".join(parts[1]))
        self._split += 1
        if self._split == bit:
            self._level, self._split = self._level + 1, 0
