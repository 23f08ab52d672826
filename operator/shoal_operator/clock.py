"""The operator's clocks. Decisions get the time as an argument."""

import datetime
import time


def now_ms() -> int:
    """Return milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000


def epoch_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def count_seconds_since(stamp: str) -> float:
    """Return the seconds since an RFC 3339 time, at least 0."""
    moment = datetime.datetime.fromisoformat(stamp)
    return max(0.0, (datetime.datetime.now(datetime.UTC) - moment).total_seconds())


def parse_time_ms(text: str) -> int:
    """Return an RFC 3339 time as milliseconds since the epoch. The API server also accepts small
    letters in it."""
    return int(datetime.datetime.fromisoformat(text.upper()).timestamp() * 1000)
