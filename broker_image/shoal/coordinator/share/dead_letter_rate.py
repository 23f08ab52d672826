"""The rate of a group's dead letters over the last minute, and when it falls again.

A poison record causes one dead letter. A failed service causes one for each record, and moves the
whole queue into the dead-letter topic. A group may therefore set a maximum per minute at which its
delivery stops (KIP-1316 drafts the same for Kafka). The count has a resolution of one second. Time
is an argument.
"""

from __future__ import annotations

from collections import deque

WINDOW_MS = 60_000
_STEP_MS = 1_000


class DeadLetterRate:
    """The dead letters of one group on one broker in the last minute."""

    __slots__ = ("_steps", "_total")

    def __init__(self) -> None:
        #: The begin of each second, and its number of dead letters.
        self._steps: deque[tuple[int, int]] = deque()
        self._total = 0

    def note(self, now_ms: int, dead_letters: int) -> None:
        """Count dead letters."""
        step_ms = now_ms - now_ms % _STEP_MS
        if self._steps and self._steps[-1][0] >= step_ms:
            step_ms, before = self._steps.pop()
            self._steps.append((step_ms, before + dead_letters))
        else:
            self._steps.append((step_ms, dead_letters))
        self._total += dead_letters

    def get_total(self, now_ms: int) -> int:
        """Return the number of dead letters in the last minute."""
        while self._steps and self._steps[0][0] + WINDOW_MS <= now_ms:
            self._total -= self._steps.popleft()[1]
        return self._total

    def find_end_ms(self, now_ms: int, limit: int) -> int | None:
        """Return when the rate will be below `limit` if no more follow. Return None if it is now,
        or without a limit (0)."""
        remaining = self.get_total(now_ms)
        if limit <= 0 or remaining < limit:
            return None
        for step_ms, dead_letters in self._steps:
            remaining -= dead_letters
            if remaining < limit:
                return step_ms + WINDOW_MS
        raise AssertionError("the steps sum up to the total")
