"""Free ports of this machine, below those that the system gives to clients.

Several test processes run side by side. Each has ports of its own, so that none takes a port that
another one has found free.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import random
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Linux gives clients ports from 32,768 on (`net.ipv4.ip_local_port_range`).
FIRST, END = 10_000, 32_000
#: Ports of one process.
SHARE = 500


class _Share:
    """The ports of this process, and the lock that keeps them while it runs."""

    def __init__(self, first: int, lock: TextIO) -> None:
        self._lock = lock
        self.first = first
        self.next = first + random.randrange(SHARE)

    def runs(self, count: int) -> Iterator[list[int]]:
        """Yield `count` consecutive ports, time and again, those that were used last at the end."""
        for _ in range(SHARE):
            if self.next + count > self.first + SHARE:
                self.next = self.first
            first = self.next
            # Before the yield: the caller may take these ports and never come back.
            self.next += count
            yield list(range(first, first + count))


@functools.cache
def _share() -> _Share:
    for first in range(FIRST, END, SHARE):
        lock = (Path(tempfile.gettempdir()) / f"shoal-test-ports-{first}").open("w")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _Share(first, lock)
        lock.close()
    raise RuntimeError(f"{(END - FIRST) // SHARE} processes have taken all ports for tests")


def _are_free(ports: list[int]) -> bool:
    with contextlib.ExitStack() as stack:
        for port in ports:
            one = stack.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` free ports."""
    free = (run[0] for run in _share().runs(1) if _are_free(run))
    found = list(itertools.islice(free, count))
    assert len(found) == count, f"{len(found)} of {count} ports are free"
    return found


def free_run(count: int) -> int:
    """Return a free port that is followed by `count - 1` free ones."""
    return next(run[0] for run in _share().runs(count) if _are_free(run))
