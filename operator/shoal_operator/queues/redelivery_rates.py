"""Redeliveries per minute by share group, from counters that restart with their brokers."""

from __future__ import annotations

INTERVAL_MS = 60_000


class RedeliveryRates:
    """Remembers a count of records by group, and when it was read."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}

    def record(self, group: str, count: int, now_ms: int) -> None:
        """Record a counter's value; -1 means that no broker reported it."""
        previous = self._since.get(group)
        if count >= 0 and (previous is None or count < previous[0]):
            self._since[group] = (count, now_ms)

    def compute_per_minute(self, group: str, count: int, now_ms: int) -> int | None:
        """Return the rate since the last call that returned one.

        The result is None within `INTERVAL_MS` of that call, and without a recorded count.
        """
        previous = self._since.get(group)
        if count < 0 or previous is None or now_ms - previous[1] < INTERVAL_MS:
            return None
        self._since[group] = (count, now_ms)
        return max(0, round((count - previous[0]) * INTERVAL_MS / (now_ms - previous[1])))
