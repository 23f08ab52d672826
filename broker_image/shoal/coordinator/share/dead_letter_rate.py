"""A flood of dead letters: how many a group had in the last minute, and when that falls again.

A poison record costs one letter; a service that is down costs one a record, and drains the queue
into the dead-letter topic. A group may therefore name a number of letters a minute at which its
delivery is held (KIP-1316 drafts the like for Kafka). Counted second by second; time comes as an
argument.
"""

from __future__ import annotations

from collections import deque

WINDOW_MS = 60_000
_STEP_MS = 1_000


class DeadLetterRate:
    """The dead letters of one group on one broker in the last minute."""

    __slots__ = ("_steps", "_total")

    def __init__(self) -> None:
        #: When a second began, and how many letters it had.
        self._steps: deque[tuple[int, int]] = deque()
        self._total = 0

    def note(self, now_ms: int, dead_letters: int) -> None:
        """Count some."""
        step_ms = now_ms - now_ms % _STEP_MS
        if self._steps and self._steps[-1][0] >= step_ms:
            step_ms, before = self._steps.pop()
            self._steps.append((step_ms, before + dead_letters))
        else:
            self._steps.append((step_ms, dead_letters))
        self._total += dead_letters

    def total(self, now_ms: int) -> int:
        """Letters of the last minute."""
        while self._steps and self._steps[0][0] + WINDOW_MS <= now_ms:
            self._total -= self._steps.popleft()[1]
        return self._total

    def ends_ms(self, now_ms: int, limit: int) -> int | None:
        """When there will have been fewer than `limit` in a minute, if no more come; None for
        now, or without a limit (0)."""
        left = self.total(now_ms)
        if limit <= 0 or left < limit:
            return None
        for step_ms, dead_letters in self._steps:
            left -= dead_letters
            if left < limit:
                return step_ms + WINDOW_MS
        raise AssertionError("the steps sum up to the total")
