"""The acquisition locks of one share partition: who holds records, how many, and until when.

One lock stands for everything that one fetch acquired, so locks are few however many records they
hold. One heap of deadlines serves the partition, and its shell needs one timer. A lock that has
been given back in full leaves its deadline in the heap until that surfaces or until such leftovers
outnumber the locks that live, so the heap stays within twice their number.
"""

from __future__ import annotations

import heapq

_NUMBER_MAX = (1 << 32) - 1
#: Leftover deadlines that are not worth a sweep.
_LEFTOVERS_MIN = 64


class Lock:
    """One acquisition lock: `member_id` has `records` records in `[first, last]` since `since_ms`.

    Renewals do not change `since_ms`. It is 0 where no caller needs it.
    """

    __slots__ = ("deadline_ms", "first", "last", "member_id", "records", "since_ms")

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

    def is_held(self, member_id: str, now_ms: int) -> bool:
        """Whether it is that member's, and has not ended."""
        return self.member_id == member_id and self.deadline_ms > now_ms


class Locks:
    """All locks of a share partition, by number. A number is not used again while it lives."""

    __slots__ = ("_deadlines", "_last_number", "live")

    def __init__(self) -> None:
        self.live: dict[int, Lock] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._last_number = 0

    def next_number(self) -> int:
        """A number for a lock about to be opened."""
        number = self._last_number
        while True:
            number = number % _NUMBER_MAX + 1
            if number not in self.live:
                self._last_number = number
                return number

    def open(self, number: int, lock: Lock) -> None:
        """Let a lock run."""
        self.live[number] = lock
        heapq.heappush(self._deadlines, (lock.deadline_ms, number))

    def give_back(self, number: int, records: int) -> None:
        """`records` of a lock are no longer held; without any left the lock is gone."""
        lock = self.live[number]
        lock.records -= records
        assert lock.records >= 0, f"lock {number} gave back more than it held"
        if lock.records == 0:
            del self.live[number]
            if len(self._deadlines) > 2 * len(self.live) + _LEFTOVERS_MIN:
                self._deadlines = [(x.deadline_ms, n) for n, x in self.live.items()]
                heapq.heapify(self._deadlines)

    def next_deadline_ms(self) -> int | None:
        """When the first of the live locks ends."""
        deadlines = self._deadlines
        while deadlines:
            deadline_ms, number = deadlines[0]
            lock = self.live.get(number)
            if lock is not None and lock.deadline_ms == deadline_ms:
                return deadline_ms
            heapq.heappop(deadlines)
        return None

    def due(self, now_ms: int) -> list[int]:
        """The locks that have ended at `now_ms`, earliest first. They stay until given back."""
        ended = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            ended.append(heapq.heappop(self._deadlines)[1])
        return ended

    def of_member(self, member_id: str) -> list[int]:
        """The locks of a member, oldest first."""
        return [number for number, lock in self.live.items() if lock.member_id == member_id]
