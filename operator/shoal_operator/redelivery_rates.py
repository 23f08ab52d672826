"""RedeliveryRates a minute by share group, from counters that begin anew with their brokers."""

from __future__ import annotations

INTERVAL_MS = 60_000


class RedeliveryRates:
    """Remembers, by group, a count of records and when it was read."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}

    def seen(self, group: str, count: int, now_ms: int) -> None:
        """A counter's value; -1 where no broker told it."""
        known = self._since.get(group)
        if count >= 0 and (known is None or count < known[0]):
            self._since[group] = (count, now_ms)

    def per_minute(self, group: str, count: int, now_ms: int) -> int | None:
        """The rate since it was asked for last; None before a minute has passed since then, or
        where nothing is known."""
        known = self._since.get(group)
        if count < 0 or known is None or now_ms - known[1] < INTERVAL_MS:
            return None
        self._since[group] = (count, now_ms)
        return max(0, round((count - known[0]) * INTERVAL_MS / (now_ms - known[1])))
