"""The deadlines of a shard, by key. Soft state, without a clock.

A dict holds the deadlines, and a heap orders the keys. Postponing a deadline, as every heartbeat
does, costs one dict write: the heap keeps the old entry, and `next_ms` corrects it when it comes
up.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

Key = tuple[str, ...]


class Deadlines:
    """Keys, and the time in ms at which each is due."""

    def __init__(self) -> None:
        self._due_ms: dict[Key, int] = {}
        self._queued_ms: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._tie = count()

    def __len__(self) -> int:
        return len(self._due_ms)

    def __contains__(self, key: Key) -> bool:
        return key in self._due_ms

    def get(self, key: Key) -> int | None:
        """When `key` is due; None without a deadline."""
        return self._due_ms.get(key)

    def set(self, key: Key, at_ms: int) -> None:
        """Set the deadline of `key`, earlier or later than before."""
        self._due_ms[key] = at_ms
        queued_ms = self._queued_ms.get(key)
        if queued_ms is None or at_ms < queued_ms:
            self._queue(key, at_ms)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._due_ms.pop(key, None)

    @property
    def next_ms(self) -> int | None:
        """When the earliest key is due; None without deadlines."""
        heap = self._heap
        while heap:
            at_ms, _, key = heap[0]
            if self._queued_ms.get(key) != at_ms:
                heappop(heap)
                continue
            true_ms = self._due_ms.get(key)
            if true_ms == at_ms:
                return at_ms
            heappop(heap)
            del self._queued_ms[key]
            if true_ms is not None:
                self._queue(key, true_ms)
        return None

    def pop_due(self, now_ms: int) -> Key | None:
        """Remove and return the earliest key that is due; None if no key is."""
        at_ms = self.next_ms
        if at_ms is None or at_ms > now_ms:
            return None
        key = heappop(self._heap)[2]
        del self._queued_ms[key]
        del self._due_ms[key]
        return key

    def _queue(self, key: Key, at_ms: int) -> None:
        self._queued_ms[key] = at_ms
        heappush(self._heap, (at_ms, next(self._tie), key))
