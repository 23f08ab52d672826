"""Durations as users write them, and the wait before a failed record is delivered again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.queues.timestamps import parse_duration_ms

if TYPE_CHECKING:
    from random import Random

#: `"5m"`, a number of seconds, or a `timedelta`.
Duration = str | int | float | timedelta
#: The share of a wait by which it is randomly shortened or lengthened, so that records that failed
#: together do not return together. Groups have the same default
#: (`share.redelivery.backoff.jitter`).
JITTER = 0.2


def parse_seconds(duration: Duration) -> float:
    """Return the seconds of a duration. Raises `ValueError` with a sentence."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        parsed_ms = parse_duration_ms(duration)
        if parsed_ms is None:
            raise ValueError(f"{duration!r} is not a duration. Write 200ms, 5s, 2m, 1h or 1d.")
        seconds = parsed_ms / 1000
    else:
        seconds = float(duration)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{duration!r} is not a duration: it is at least 0 and finite.")
    return seconds


class Backoff(NamedTuple):
    """An exponential wait with jitter: `first_s`, twice as long each time, at most `longest_s`."""

    first_s: float
    longest_s: float

    @classmethod
    def from_text(cls, text: Duration) -> Backoff:
        """Parse `1s..5m`, or one duration for a wait that does not grow. Raises `ValueError`."""
        if not isinstance(text, str) or ".." not in text:
            seconds = parse_seconds(text)
            return cls(seconds, seconds)
        first, _, longest = text.partition("..")
        parsed = cls(parse_seconds(first), parse_seconds(longest))
        if parsed.first_s > parsed.longest_s:
            raise ValueError(f"back-off {text!r} begins above its maximum. Swap them.")
        return parsed

    def draw_wait_s(self, delivery_count: int, random: Random) -> float:
        """Return the wait after this delivery, which is 1 for the first."""
        # A float has no power of two above 1023, and no wait grows that often.
        doublings = min(max(delivery_count - 1, 0), 64)
        wait_s = min(self.first_s * 2.0**doublings, self.longest_s)
        return min(wait_s * random.uniform(1 - JITTER, 1 + JITTER), self.longest_s)
