"""The processes that `shoal up` started: by pid and start time, so that none of another is ended.

A pid alone may be another process's by now. After `kill -9` of `shoal up`, the next one reads the
list and ends what still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from shoal_operator.local.state_folder import read_json, write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_operator.local.containers import Launch

log = structlog.get_logger()
#: Seconds for processes of an earlier run to stop, before they are killed.
LEFTOVER_SECONDS = 20.0
_LOOK_SECONDS = 0.05


def get_start(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty if there is no such process, or
    if it has ended and only waits for its parent."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in ("Z", "X") else fields[18]


def is_same(pid: int, start: str) -> bool:
    """Return whether a process still runs that had this pid and start time."""
    return bool(start) and get_start(pid) == start


class _Row(NamedTuple):
    """A running process. Those of brokers stop after those of all others. `cleanup` are the words
    that remove what it leaves when it is killed, such as a container of Docker."""

    pid: int
    start: str
    owner: str
    is_broker: bool
    cleanup: Sequence[str] = ()


class ProcessTable:
    """The processes of one state folder, each the leader of a process group."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._running: dict[int, _Row] = {}

    async def start(
        self, launch: Launch, log: Path, owner: str, *, is_broker: bool
    ) -> asyncio.subprocess.Process:
        """Start a process whose output goes to the end of `log`. Raises `OSError`."""
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *launch.words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=launch.env,
                cwd=launch.folder,
                start_new_session=True,
            )
        row = _Row(process.pid, get_start(process.pid), owner, is_broker, launch.cleanup)
        self._running[process.pid] = row
        self._save()
        return process

    def forget(self, pid: int) -> None:
        """Note that a process has ended."""
        self._running.pop(pid, None)
        self._save()

    def _save(self) -> None:
        rows = [row._asdict() for row in self._running.values()]
        try:
            write_text(self._file, json.dumps(rows, indent=1))
        except OSError as error:
            log.error("cannot note the processes", error=str(error))

    def end_leftovers(self) -> list[str]:
        """End the processes of an earlier run, brokers last; return their owners. Returns when
        they are gone."""
        noted = [_Row(**row) for row in read_json(self._file) or []]
        rows = [row for row in noted if is_same(row.pid, row.start)]
        for of_brokers in (False, True):
            _end([row for row in rows if row.is_broker is of_brokers])
        for row in noted:
            _remove_remains(row)
        self._save()
        return [row.owner for row in rows]


def _end(rows: list[_Row]) -> None:
    """End processes, and kill those that take longer than `LEFTOVER_SECONDS`."""
    for row in rows:
        send_signal(row.pid, signal.SIGTERM)
    end = time.monotonic() + LEFTOVER_SECONDS
    while alive := [row for row in rows if is_same(row.pid, row.start)]:
        if time.monotonic() > end:
            for row in alive:
                send_signal(row.pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _remove_remains(row: _Row) -> None:
    """Remove what a process leaves, also if it has ended by itself."""
    if row.cleanup:
        with contextlib.suppress(OSError):
            subprocess.run(row.cleanup, capture_output=True, check=False)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to the group of a process that `ProcessTable` started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
