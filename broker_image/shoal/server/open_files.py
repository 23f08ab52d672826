"""The descriptors of this process: how many are open, how many may be, and what to do in time.

Each segment of a log needs one, and each connection. A start needs no more than running does, so a
broker that has room can start again.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

#: Errors of a process, or a machine, whose descriptors are used up.
SHORTAGES = (errno.EMFILE, errno.ENFILE)
#: The used part of the limit from which the start of a broker reports it, and the log warns.
SAID_FROM, WARNED_FROM = 0.5, 0.8
CHECK_MS = 60_000
_REMEDY = (
    "Each segment of a log needs one, and each connection. Raise the limit: by `ulimit -n`,"
    " LimitNOFILE= of a systemd unit, or the limit of the container's runtime"
)


def count_open_files() -> int:
    """Return the number of open descriptors."""
    return len(os.listdir("/proc/self/fd")) - 1  # without the one of the listing


def get_limit() -> int:
    """Return the largest number of open descriptors."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def describe_usage() -> str | None:
    """Return how many descriptors are open, if they are many; None if they are few."""
    used, most = count_open_files(), get_limit()
    if used < SAID_FROM * most:
        return None
    return f"{used} of at most {most} files are open. {_REMEDY}."


def explain_shortage(segments: int) -> str:
    """Return why a broker with that number of segments cannot start, with the remedy."""
    return (
        f"Too many open files: the limit is {get_limit()}, and the logs have {segments} segments."
        f" {_REMEDY}; {2 * segments + 1000} leaves room to grow."
    )


class OpenFiles:
    """Warns when the descriptors become few."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._has_warned = False

    def check(self) -> None:
        """Log when most descriptors are used, once until there is room again."""
        used, most = count_open_files(), get_limit()
        if (used >= WARNED_FROM * most) == self._has_warned:
            return
        self._has_warned = not self._has_warned
        if self._has_warned:
            self._log.warning(f"most files that may be open are. {_REMEDY}", used=used, limit=most)
