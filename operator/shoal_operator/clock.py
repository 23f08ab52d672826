"""The operator's clocks, so that deciders get time as an argument."""

import datetime
import time


def now_ms() -> int:
    """Milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000


def epoch_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def seconds_since(stamp: str) -> float:
    """Seconds since an RFC 3339 time, such as those of Kubernetes; never less than 0."""
    then = datetime.datetime.fromisoformat(stamp)
    return max(0.0, (datetime.datetime.now(datetime.UTC) - then).total_seconds())
