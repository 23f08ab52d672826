"""Records of a share partition that may be acquired, the most urgent first.

It is a heap of offsets. With priority, it is a heap of the time at which a record becomes as urgent
as any other, with its offset. Entries may be outdated, so the caller checks whether a record is
still available. With priority, one entry of a record is current, and the others are skipped: a
record that was delivered in between waits from its return on.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from shoal.coordinator.share.record_facts import PRIORITY_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.coordinator.share.reach import Reach
    from shoal.coordinator.share.runs import OffsetRuns
    from shoal.coordinator.share.settings import SelectionPolicy
    from shoal.coordinator.share.states import StateBatch

OFFSET_BITS = 64
OFFSET_MASK = (1 << OFFSET_BITS) - 1


class AvailableQueue:
    """The heap of one share partition."""

    __slots__ = ("_ageing_ms", "_entry_of", "_ranked", "_taken", "entries", "priority_of")

    def __init__(self, policy: SelectionPolicy) -> None:
        self._ranked = bool(policy.priority_header)
        self._ageing_ms = policy.priority_ageing_ms
        #: A heap.
        self.entries: list[int] = []
        #: Priorities above 0 of incomplete records, by offset.
        self.priority_of: dict[int, int] = {}
        #: With priority: the current entry by offset, and the entries of the last choice.
        self._entry_of: dict[int, int] = {}
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def has_ready(self) -> bool:
        """Whether `pop` would return a record, or only drops outdated entries."""
        return bool(self.entries)

    def get_offsets(self) -> set[int]:
        """Return the offsets of all entries, outdated ones included."""
        return set(self._entry_of) if self._ranked else set(self.entries)

    def add(self, offset: int, priority: int, _tenant_name: bytes) -> None:
        """Note the facts of an incomplete record, which is available or not."""
        if priority:
            self.priority_of[offset] = priority

    def push(self, offset: int, now_ms: int) -> None:
        """Add an available record. One that is in the heap keeps its time."""
        if not self._ranked:
            heapq.heappush(self.entries, offset)
        elif offset not in self._entry_of:
            steps = PRIORITY_MAX - self.priority_of.get(offset, 0)
            self._push(offset, now_ms + steps * self._ageing_ms << OFFSET_BITS | offset)

    def _push(self, offset: int, entry: int) -> None:
        self._entry_of[offset] = entry
        heapq.heappush(self.entries, entry)

    def begin(self, _now_ms: int, _records: int = 1) -> None:
        """Begin a new choice of up to `records` records."""
        self._taken = {}

    def choose(
        self,
        _runs: OffsetRuns,
        _records: int,
        _splitting: int,
        _reach: Reach | None,
        _now_ms: int,
        _chosen: list[int],
    ) -> bool:
        """Move up to `records` offsets to `chosen`, those that may be taken at once.

        Return whether that is all that the choice gets. Otherwise the caller chooses on by `pop`:
        this queue has no loop for it, or a record was delivered `splitting` times.
        """
        return False

    def end_all(self, _changes: Sequence[StateBatch], _below: int, _now_ms: int) -> bool:
        """`end` all records below an offset that these changes complete. Return False, and change
        nothing, if some do not complete any, or this queue has no loop for it."""
        return False

    def pop(self) -> int | None:
        """Remove and return the most urgent record, or None."""
        while self.entries:
            entry = heapq.heappop(self.entries)
            offset = entry & OFFSET_MASK
            if not self._ranked:
                return offset
            if self._entry_of.get(offset) == entry:
                self._taken[offset] = self._entry_of.pop(offset)
                return offset
        return None

    def may_take(self, _offset: int) -> bool:
        """Whether no limit lets an available record wait."""
        return True

    def count_deliverable(self, offsets: Iterable[int] | None) -> int:
        """Return how many of these records, or of all entries, limits allow to deliver now."""
        return len(self) if offsets is None else len(list(offsets))

    def take(self, offset: int, now_ms: int) -> None:
        """Note that a record is chosen."""

    def hold(self, offset: int, now_ms: int) -> None:
        """Note that a member has a record that was chosen before it was added here."""

    def release(self, offsets: Iterable[int], now_ms: int) -> None:
        """Note that no member has these records any more, though they are not complete."""

    def put_back(self, offset: int, now_ms: int) -> None:
        """Return a record that is not chosen now."""
        if self._ranked:
            self.restore(offset)
        else:
            self.push(offset, now_ms)

    def restore(self, offset: int) -> None:
        """Return a chosen record that is not acquired. It keeps the time that it has waited."""
        entry = self._taken.pop(offset, None)
        if entry is not None:
            self._push(offset, entry)

    def forget(self, offset: int) -> None:
        """Remove a record that is delivered together with others of its key."""
        self._entry_of.pop(offset, None)

    def end(self, offsets: Iterable[int], _now_ms: int) -> None:
        """Remove complete records."""
        if self._ranked:
            for offset in offsets:
                self.priority_of.pop(offset, None)
                self._entry_of.pop(offset, None)

    def drop_below(self, start: int, _now_ms: int) -> None:
        """Remove records below an offset."""
        self.priority_of = {o: p for o, p in self.priority_of.items() if o >= start}
        self._entry_of = {o: e for o, e in self._entry_of.items() if o >= start}
