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
    from collections.abc import Iterable

    from shoal.coordinator.share.settings import SelectionPolicy

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

    def offsets(self) -> set[int]:
        """Return the offsets of all entries, outdated ones included."""
        return set(self._entry_of) if self._ranked else set(self.entries)

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

    def begin(self) -> None:
        """Begin a new choice of records."""
        self._taken = {}

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

    def end(self, offsets: Iterable[int]) -> None:
        """Remove complete records."""
        if self._ranked:
            for offset in offsets:
                self.priority_of.pop(offset, None)
                self._entry_of.pop(offset, None)

    def start_moved(self, start: int) -> None:
        """Remove records below an offset."""
        self.priority_of = {o: p for o, p in self.priority_of.items() if o >= start}
        self._entry_of = {o: e for o, e in self._entry_of.items() if o >= start}
