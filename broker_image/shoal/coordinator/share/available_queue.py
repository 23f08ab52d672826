"""What of a share partition may be acquired now, the most urgent first: a heap of offsets or, with
priority, of the time from which a record is as urgent as any, with its offset.

Entries may be outdated: who takes one checks whether its record is still to be had. With priority
one entry a record is true, and the others are passed by, for an entry tells since when a record
waits: one that was delivered in between and comes back waits anew. (Without, all are alike.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from shoal.coordinator.share.record_facts import PRIORITY_MAX
from shoal.coordinator.share.settings import SelectionPolicy

OFFSET_BITS = 64
OFFSET_MASK = (1 << OFFSET_BITS) - 1


class AvailableQueue:
    """Of one share partition."""

    __slots__ = ("_ageing_ms", "_entry_of", "_ranked", "_taken", "entries", "priority_of")

    def __init__(self, policy: SelectionPolicy) -> None:
        self._ranked = bool(policy.priority_header)
        self._ageing_ms = policy.priority_ageing_ms
        #: A heap.
        self.entries: list[int] = []
        #: Priorities above 0, by offset, of records that are not complete.
        self.priority_of: dict[int, int] = {}
        #: With priority: the entry that is true, by offset; and those that were taken last.
        self._entry_of: dict[int, int] = {}
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def offsets(self) -> set[int]:
        """Return the offsets of all entries, outdated ones included."""
        return set(self._entry_of) if self._ranked else set(self.entries)

    def push(self, offset: int, now_ms: int) -> None:
        """A record may be acquired. One that may already waits since then."""
        if not self._ranked:
            heapq.heappush(self.entries, offset)
        elif offset not in self._entry_of:
            steps = PRIORITY_MAX - self.priority_of.get(offset, 0)
            self._push(offset, now_ms + steps * self._ageing_ms << OFFSET_BITS | offset)

    def _push(self, offset: int, entry: int) -> None:
        self._entry_of[offset] = entry
        heapq.heappush(self.entries, entry)

    def begin(self) -> None:
        """Records are chosen anew."""
        self._taken = {}

    def pop(self) -> int | None:
        """Take the most urgent record out; None without any."""
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
        """A record that was taken is not chosen now."""
        if self._ranked:
            self.restore(offset)
        else:
            self.push(offset, now_ms)

    def restore(self, offset: int) -> None:
        """A record that was chosen last is not acquired after all: it has waited all the same, as
        soon as it may be acquired again."""
        entry = self._taken.pop(offset, None)
        if entry is not None:
            self._push(offset, entry)

    def forget(self, offset: int) -> None:
        """A record is delivered beside others of its key: what it waited for is over."""
        self._entry_of.pop(offset, None)

    def end(self, offsets: Iterable[int]) -> None:
        """Records are complete."""
        if self._ranked:
            for offset in offsets:
                self.priority_of.pop(offset, None)
                self._entry_of.pop(offset, None)

    def start_moved(self, start: int) -> None:
        """What lay below an offset is gone."""
        self.priority_of = {o: p for o, p in self.priority_of.items() if o >= start}
        self._entry_of = {o: e for o, e in self._entry_of.items() if o >= start}
