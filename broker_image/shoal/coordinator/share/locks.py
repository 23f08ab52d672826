"""The acquisition locks of one share partition: member, number of records, and deadline.

One lock covers all records of one fetch, so locks are few. One heap of deadlines serves the
partition, and its shell needs one timer. The deadline of an ended lock stays in the heap until it
comes up, or until such deadlines outnumber the live locks. So the heap has at most twice as many
entries as there are locks.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.coordinator.share.runs import OffsetRuns

_NUMBER_MAX = (1 << 32) - 1
#: Up to this many deadlines of ended locks are not removed.
_LEFTOVERS_MIN = 64


class Lock:
    """One acquisition lock: `member_id` has `records` records in `[first, last]` since `since_ms`.

    Renewals do not change `since_ms`. It is 0 where no caller needs it. `ends_as` is the state of
    cancelled records once they are given back (`cancellation`); 0 for records that are not
    cancelled.
    """

    __slots__ = ("deadline_ms", "ends_as", "first", "last", "member_id", "records", "since_ms")

    def __init__(
        self,
        member_id: str,
        deadline_ms: int,
        *,
        first: int,
        last: int,
        records: int,
        since_ms: int = 0,
    ) -> None:
        self.member_id = member_id
        self.deadline_ms = deadline_ms
        self.first = first
        self.last = last
        self.records = records
        self.since_ms = since_ms
        self.ends_as = 0

    def is_owned_by(self, member_id: str, now_ms: int) -> bool:
        """Whether the lock is that member's and has not expired."""
        return self.member_id == member_id and self.deadline_ms > now_ms


class Locks:
    """All locks of a share partition by number. Numbers of live locks are not reused."""

    __slots__ = ("_deadlines", "_last_number", "live")

    def __init__(self) -> None:
        self.live: dict[int, Lock] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._last_number = 0

    @property
    def records(self) -> int:
        """The number of records under live locks."""
        return sum(lock.records for lock in self.live.values())

    def allocate_number(self) -> int:
        """Return a number for a new lock."""
        number = self._last_number
        while True:
            number = number % _NUMBER_MAX + 1
            if number not in self.live:
                self._last_number = number
                return number

    def open(self, number: int, lock: Lock) -> None:
        """Start a lock."""
        self.live[number] = lock
        heapq.heappush(self._deadlines, (lock.deadline_ms, number))

    def give_back(self, number: int, records: int) -> None:
        """Remove `records` from a lock; without any left, the lock ends."""
        lock = self.live[number]
        lock.records -= records
        assert lock.records >= 0, f"lock {number} gave back more than it held"
        if lock.records == 0:
            del self.live[number]
            if len(self._deadlines) > 2 * len(self.live) + _LEFTOVERS_MIN:
                self._deadlines = [(x.deadline_ms, n) for n, x in self.live.items()]
                heapq.heapify(self._deadlines)

    def find_next_deadline_ms(self) -> int | None:
        """Return when the next live lock expires."""
        deadlines = self._deadlines
        while deadlines:
            deadline_ms, number = deadlines[0]
            lock = self.live.get(number)
            if lock is not None and lock.deadline_ms == deadline_ms:
                return deadline_ms
            heapq.heappop(deadlines)
        return None

    def take_expired(self, now_ms: int) -> list[int]:
        """Return the locks that have expired at `now_ms`, earliest first. They stay until given
        back."""
        ended = []
        while (deadline_ms := self.find_next_deadline_ms()) is not None and deadline_ms <= now_ms:
            ended.append(heapq.heappop(self._deadlines)[1])
        return ended

    def find_by_member(self, member_id: str) -> list[int]:
        """Return the locks of a member, oldest first."""
        return [number for number, lock in self.live.items() if lock.member_id == member_id]


def split_renewals(
    runs: OffsetRuns, locks: Locks, ranges: Iterable[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the acquired ranges of a renewal that are not cancelled, and those that are."""
    kept: list[tuple[int, int]] = []
    cancelled: list[tuple[int, int]] = []
    for first, last in ranges:
        for run in range(runs.find_run(first), runs.find_run(last) + 1):
            part = max(first, runs.firsts[run]), min(last, runs.get_last(run))
            (cancelled if locks.live[runs.locks[run]].ends_as else kept).append(part)
    return kept, cancelled
