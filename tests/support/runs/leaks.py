"""Processes that a file of tests started and left running: each is a fault of a fixture.

A process inherits `TEST_PROCESS` from the test process that started it, and from pytest the name of
the test, so a leak is found and named even if its parent has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

VARIABLE = "TEST_PROCESS"
#: A killed process gets this long to disappear, in seconds.
ENDING_S = 10.0
#: Python's own helper of shared memory ends with the test process.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Leak(NamedTuple):
    pid: int
    #: The words of its command line, shortened.
    command: str
    #: The test during which it was started.
    test: str


#: Forks that a test has started, each with whether it runs. The kernel has another environment for
#: them.
_forks: dict[Leak, Callable[[], bool]] = {}


def note(
    pid: int, words: Sequence[str], environment: Mapping[str, str], is_running: Callable[[], bool]
) -> None:
    """Count a fork (`forks`) among the processes that its environment says have started it."""
    for leak in [leak for leak, runs in _forks.items() if not runs()]:
        del _forks[leak]
    if environment.get(VARIABLE) == os.environ.get(VARIABLE, ""):
        test = environment.get("PYTEST_CURRENT_TEST", "unknown test")
        _forks[Leak(pid, " ".join(words)[:200], test)] = is_running


def mark() -> None:
    """Mark this process, so that all that it starts can be found. Call it once."""
    os.environ[VARIABLE] = f"{os.getpid()}-{os.urandom(4).hex()}"


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """Let the processes that the block starts, and their children, outlive the file of tests."""
    marker = os.environ.pop(VARIABLE, None)  # None in a block within such a block.
    try:
        yield
    finally:
        if marker is not None:
            os.environ[VARIABLE] = marker


def started() -> list[Leak]:
    """Return the running processes that this test process or its children started."""
    marker = f"{VARIABLE}={os.environ[VARIABLE]}".encode()
    found = (_read(folder, marker) for folder in Path("/proc").glob("[0-9]*"))
    forks = [leak for leak, is_running in _forks.items() if is_running()]
    return forks + [leak for leak in found if leak and leak.pid != os.getpid()]


def _read(folder: Path, marker: bytes) -> Leak | None:
    try:
        environment = (folder / "environ").read_bytes().split(b"\0")
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # It has ended, or belongs to another user.
        return None
    if marker not in environment or not words or any(name in words for name in HELPERS):
        return None
    tests = [pair for pair in environment if pair.startswith(b"PYTEST_CURRENT_TEST=")]
    name = tests[0].partition(b"=")[2].decode(errors="replace") if tests else "unknown test"
    return Leak(int(folder.name), words[:200], name)


def end() -> list[Leak]:
    """Return the processes that still run after `ENDING_S` seconds, and kill them."""
    try:
        eventually(lambda: not started(), timeout_s=ENDING_S)
    except AssertionError:
        leaks = started()
        for leak in leaks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leak.pid, signal.SIGKILL)
        return leaks
    return []
