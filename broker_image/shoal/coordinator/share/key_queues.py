"""Per-key FIFOs of the incomplete records of one share partition, for key order (`selection`).

A key is free while none of its records is acquired. There are two implementations:
`PlainKeyQueues` with dicts, sets and lists, and a C type where the loops are compiled (`compiled`,
`native/key_queues.c`, docs/adr/0046-implement-the-key-queues-as-a-c-type.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shoal.coordinator.share import compiled
from shoal.coordinator.share.states import AVAILABLE

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from shoal.coordinator.share.runs import OffsetRuns
    from shoal.coordinator.share.states import StateBatch

#: Sort the heap if it holds at most this many times the requested records.
SORTED_MAX = 4


class KeyQueues(Protocol):
    """Per-key FIFOs of one share partition.

    Keys are 64-bit hashes, never 0; a record without a key has None. Unknown offsets count as
    records without a key.
    """

    @property
    def records(self) -> int:
        """The number of records with a key."""

    @property
    def keys(self) -> int:
        """The number of keys with a record."""

    @property
    def waiting(self) -> int:
        """The number of keys with more than one record."""

    @property
    def waiting_records(self) -> int:
        """The number of records that wait for another record of their key.

        That is an earlier one, or the rest of several that were acquired together.
        """

    def key_of(self, offset: int) -> int | None:
        """Return the key of a record."""

    def is_reserved(self, offset: int) -> bool:
        """Whether a record is acquired or chosen."""

    def is_free(self, offset: int) -> bool:
        """Whether the key of a record is free."""

    def first_of(self, key: int) -> int | None:
        """Return the first record of a free key, or None."""

    def followers(self, offset: int, count: int) -> Sequence[int]:
        """Return up to `count` records behind `offset`, the first record of its key."""

    def waiting_behind(self, offsets: Iterable[int]) -> int:
        """Return the number of records that wait behind these, by key."""

    def put(self, offset: int, key: int) -> bool:
        """Add a record, and return whether it is the first of its key.

        Raises `ValueError` unless it lies behind all records that were added or reserved before.
        """

    def put_new(self, first: int, keys: array[int], available: list[int]) -> None:
        """Add new records from `first` on with their keys, 0 for none.

        Records that may be acquired are appended to `available`, which stays a heap. Raises
        `ValueError` as `put` does.
        """

    def reserve(self, offset: int) -> None:
        """Note that a record is acquired or chosen."""

    def release(self, offset: int) -> int | None:
        """Note that a record is not acquired any more and not complete. Return its key."""

    def choose(
        self,
        available: list[int],
        runs: OffsetRuns,
        records: int,
        splitting: int,
        chosen: list[int],
    ) -> None:
        """Move up to `records` offsets from the heap `available` to `chosen`, in log order.

        The chosen records are reserved. Outdated entries are dropped. It may stop early, for
        instance at a record that was delivered `splitting` times: the caller chooses the rest.
        """

    def end(self, offsets: Iterable[int], touched: dict[int, None]) -> None:
        """Remove complete records, and add the keys that other records wait for to `touched`."""

    def end_all(
        self, changes: Sequence[StateBatch], below: int, available: list[int], runs: OffsetRuns
    ) -> bool:
        """`end` all records that were acknowledged below an offset, and put the next ones into
        `available`.

        Return False, and change nothing, if this implementation does not support it, or if some
        records have another new state.
        """

    def start_moved(self, start: int, touched: dict[int, None]) -> None:
        """Remove all records below `start`."""


def make_key_queues() -> KeyQueues:
    """Return empty queues, compiled if possible."""
    if compiled.native is None:
        return PlainKeyQueues()
    queues: KeyQueues = compiled.native.KeyQueues()
    return queues


class PlainKeyQueues:
    """`KeyQueues` in Python."""

    __slots__ = ("_busy", "_end", "_key_of", "_queues", "_reserved", "waiting")

    def __init__(self) -> None:
        #: By offset; records without a key are not here.
        self._key_of: dict[int, int] = {}
        self._queues: dict[int, list[int]] = {}
        #: Keys with more than one record in `_queues`.
        self.waiting = 0
        #: Offsets that are acquired or chosen, and their number by key.
        self._reserved: set[int] = set()
        self._busy: dict[int, int] = {}
        #: Records are added from this offset on.
        self._end = 0

    @property
    def records(self) -> int:
        return len(self._key_of)

    @property
    def keys(self) -> int:
        return len(self._queues)

    @property
    def waiting_records(self) -> int:
        follower_count = len(self._key_of) - len(self._queues)
        return follower_count - (len(self._reserved & self._key_of.keys()) - len(self._busy))

    def key_of(self, offset: int) -> int | None:
        return self._key_of.get(offset)

    def is_reserved(self, offset: int) -> bool:
        return offset in self._reserved

    def is_free(self, offset: int) -> bool:
        key = self._key_of.get(offset)
        return key is None or (key not in self._busy and self._queues[key][0] == offset)

    def first_of(self, key: int) -> int | None:
        queue = self._queues.get(key)
        return None if queue is None or key in self._busy else queue[0]

    def followers(self, offset: int, count: int) -> Sequence[int]:
        key = self._key_of.get(offset)
        return [] if key is None else self._queues[key][1 : 1 + count]

    def waiting_behind(self, offsets: Iterable[int]) -> int:
        keys = [self._key_of[offset] for offset in offsets if offset in self._key_of]
        waiting = (len(self._queues[key]) - self._busy.get(key, 0) for key in set(keys))
        return sum(waiting) - len(keys)

    def put(self, offset: int, key: int) -> bool:
        self._check_ascending(offset)
        if not key:
            raise ValueError("a key is not 0")
        self._end = offset + 1
        self._key_of[offset] = key
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = [offset]
            return True
        self.waiting += len(queue) == 1
        queue.append(offset)
        return False

    def put_new(self, first: int, keys: array[int], available: list[int]) -> None:
        self._check_ascending(first)
        self._end = first + len(keys)
        queues, waiting = self._queues, 0
        pairs = zip(range(first, first + len(keys)), keys, strict=True)
        self._key_of.update(x for x in pairs if x[1]) if 0 in keys else self._key_of.update(pairs)
        for offset, key in enumerate(keys, first):
            if key:
                queue = queues.get(key)
                if queue is not None:
                    waiting += len(queue) == 1
                    queue.append(offset)
                    continue
                queues[key] = [offset]
            available.append(offset)
        self.waiting += waiting

    def _check_ascending(self, first: int) -> None:
        if first < self._end:
            raise ValueError("records are put in the order of the log")

    def reserve(self, offset: int) -> None:
        key = self._key_of.get(offset)
        if key is None:
            self._end = max(self._end, offset + 1)
        elif offset not in self._reserved:
            self._busy[key] = self._busy.get(key, 0) + 1
        self._reserved.add(offset)

    def release(self, offset: int) -> int | None:
        key = self._key_of.get(offset)
        if offset in self._reserved:
            self._reserved.discard(offset)
            if key is not None:
                self._decrease_busy(key)
        return key

    def choose(
        self,
        available: list[int],
        runs: OffsetRuns,
        records: int,
        _splitting: int,
        chosen: list[int],
    ) -> None:
        """Choose among new records if no entry is outdated. It takes a third of the time of single
        steps."""
        if not available or records <= 0 or len(available) > SORTED_MAX * records:
            return
        fresh = len(runs) and runs.states[-1] == AVAILABLE and runs.counts[-1] == 0
        if not fresh or available[0] < runs.firsts[-1]:
            return
        available.sort()
        offsets = available[:records]
        keys: list[Any] = list(map(self._key_of.get, offsets))
        key_counts, firsts = dict.fromkeys(keys, 1), offsets
        if key_counts.pop(None, 0):
            firsts = [o for o, key in zip(offsets, keys, strict=True) if key is not None]
            # The queues below detect duplicates among records with a key.
            if len(set(offsets)) < len(offsets):
                return
        if not self._reserved.isdisjoint(offsets) or not self._busy.keys().isdisjoint(key_counts):
            return
        if [self._queues[key][0] for key in key_counts] != firsts:
            return
        del available[:records]
        self._busy.update(key_counts)
        self._reserved.update(offsets)
        self._end = max(self._end, offsets[-1] + 1)
        chosen += offsets

    def end(self, offsets: Iterable[int], touched: dict[int, None]) -> None:
        reserved, key_of, queues = self._reserved, self._key_of, self._queues
        for offset in offsets:
            key = key_of.pop(offset, None)
            if offset in reserved:
                reserved.discard(offset)
                if key is None:
                    continue
                self._decrease_busy(key)
            elif key is None:
                continue
            queue = queues[key]
            if len(queue) == 1:
                del queues[key]
            else:
                queue.remove(offset)
                self.waiting -= len(queue) == 1
                touched[key] = None

    def end_all(
        self, _changes: Sequence[StateBatch], _below: int, _available: list[int], _runs: OffsetRuns
    ) -> bool:
        return False

    def start_moved(self, start: int, touched: dict[int, None]) -> None:
        self.end([offset for offset in self._key_of if offset < start], touched)
        self._reserved = {offset for offset in self._reserved if offset >= start}

    def _decrease_busy(self, key: int) -> None:
        remaining = self._busy[key] - 1
        if remaining:
            self._busy[key] = remaining
        else:
            del self._busy[key]
