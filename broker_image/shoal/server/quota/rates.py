"""Rates, and how long to wait until a rate is below its limit again.

A `Rate` is measured as in Kafka: the sum of several samples, each of one window, divided by the
time since the oldest sample began. That time counts as at least all windows but one, so that a
burst at the start does not violate a limit. A `TokenBucket` holds tokens, which are refilled at a
rate up to a burst.
"""

from __future__ import annotations

import math
from collections import deque


class Rate:
    """The sum per second over the last `samples` windows of `window_ms` milliseconds."""

    __slots__ = ("_begin_ms", "_current", "_past", "_samples", "_window_ms")

    def __init__(self, samples: int, window_ms: int, now_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        #: Begin and sum of the samples before the current one.
        self._past: deque[tuple[int, float]] = deque()
        self._begin_ms = now_ms
        self._current = 0.0

    def add(self, value: float, now_ms: int) -> None:
        """Add `value` to the current sample."""
        if now_ms - self._begin_ms >= self._window_ms:
            self._past.append((self._begin_ms, self._current))
            self._begin_ms, self._current = now_ms, 0.0
        self._current += value

    def measure(self, now_ms: int) -> tuple[float, int]:
        """Return the sum per second, and the milliseconds over which it was measured."""
        oldest = now_ms - self._samples * self._window_ms
        while self._past and self._past[0][0] <= oldest:
            self._past.popleft()
        if not self._past and self._begin_ms <= oldest:
            self._begin_ms, self._current = now_ms, 0.0
        begin_ms = self._past[0][0] if self._past else self._begin_ms
        elapsed_ms = now_ms - begin_ms
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        span_ms = max(elapsed_ms + max(0, missing) * self._window_ms, self._window_ms)
        total = self._current + sum(value for _, value in self._past)
        return total * 1000 / span_ms, span_ms

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing was added for longer than the measured time."""
        return now_ms - self._begin_ms > (self._samples + 1) * self._window_ms

    def compute_throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return the milliseconds until the rate is down to `limit` per second, 0 if it is."""
        rate, span_ms = self.measure(now_ms)
        return round((rate - limit) / limit * span_ms) if rate > limit else 0


class TokenBucket:
    """Tokens, refilled at `limit` per second up to `burst_s` seconds' worth. It may be in debt."""

    __slots__ = ("_at_ms", "tokens")

    def __init__(self, limit: float, burst_s: float, now_ms: int) -> None:
        self.tokens = limit * burst_s
        self._at_ms = now_ms

    def fill(self, limit: float, burst_s: float, now_ms: int, *, debt_s: float = math.inf) -> int:
        """Refill the bucket. Return the milliseconds until it has tokens; 0 if it has some. Of a
        debt that takes longer than `debt_s` to refill, the excess is dropped."""
        gained = (now_ms - self._at_ms) / 1000 * limit
        self.tokens = min(max(self.tokens, -limit * debt_s) + gained, limit * burst_s)
        self._at_ms = now_ms
        return 0 if self.tokens > 0 else max(1, round(-self.tokens / limit * 1000))

    def take(self, count: float) -> None:
        """Take `count` tokens, even if the bucket has fewer."""
        self.tokens -= count
