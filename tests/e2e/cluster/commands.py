"""Running other programs, waiting for a condition, and printing how long each step took."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .layout import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: Lines of a failed program's output in the error message.
OUTPUT_LINES_MAX = 15
#: Pause between two checks of a condition without a notification.
POLL_S = 0.05

Argument = str | Path


def run(
    *argv: Argument,
    stdin_text: str | None = None,
    stdin: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run to the end and return the result; `env` is added to this process's environment.

    Raises ClusterError with the end of the output if `check` and the program failed.
    """
    words = [str(word) for word in argv]
    try:
        result = subprocess.run(
            words,
            input=stdin_text,
            stdin=stdin,
            env={**os.environ, **env} if env else None,
            cwd=cwd,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise ClusterError(f"{words[0]} is not installed.") from None
    if check and result.returncode:
        tail = "\n".join((result.stdout + result.stderr).splitlines()[-OUTPUT_LINES_MAX:])
        raise ClusterError(f"`{' '.join(words)}` ended with {result.returncode}:\n{tail}")
    return result


def wait_for(what: str, condition: Callable[[], bool], timeout_s: float) -> None:
    """Return once `condition()` holds; raise ClusterError with `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"Waited {timeout_s:g} s for {what} in vain.")
        pause.wait(POLL_S)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a file's lock: one process at a time continues, the next waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Laps:
    """Prints each finished step with the seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __call__(self, step: str) -> None:
        print(f"{time.monotonic() - self.start:6.1f} s  {step}", file=sys.stderr, flush=True)
