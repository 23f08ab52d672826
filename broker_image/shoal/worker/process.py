"""The processes of `shoal worker`: one that runs an application's worker, or one above several.

The parent starts children, each a `shoal worker` with a pipe. A child writes its status there each
second, as a line of JSON, and stops when nobody reads it. The parent adds the counts, serves them,
and starts a child again that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.worker import metrics
from shoal.worker.health import Status, serve_health
from shoal.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

log = logging.getLogger("shoal.worker")

#: Seconds between two lines of a child, and after which a silent child counts as unhealthy.
STATUS_S, SILENT_S = 1.0, 30.0
#: Pauses in seconds before a child starts again; one that ran longer than the second starts over.
RESTART_S, RESTART_MAX_S = 1.0, 30.0
#: Seconds between two looks at the files of an application, with --reload.
RELOAD_S = 0.5
#: The exit code of a child whose application cannot be loaded: another start would not help.
USAGE = 2


class InvalidApplication(ValueError):
    """An application that cannot be loaded."""


def load_worker(path: str) -> Worker:
    """Import `module:name` and return the worker. Raises `InvalidApplication`."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InvalidApplication(f"{path!r} is not MODULE:NAME, such as app:worker")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise InvalidApplication(f"there is no module {module_name!r} in {here}") from None
    worker = getattr(module, name, None)
    if not isinstance(worker, Worker):
        raise InvalidApplication(f"{path} is {worker!r}, but not a shoal.worker.Worker")
    return worker


def freeze_imports() -> None:
    """Let garbage collections skip what the modules of this process have made, which stays. They
    would look at all of it each time some ten thousand records have passed."""
    gc.collect()
    gc.freeze()


async def run_worker(worker: Worker, *, listen: str | None, status_fd: int | None) -> None:
    """Run a worker until a signal, and serve its status or write it to a pipe."""

    def read() -> Status:
        return Status(worker.is_healthy, worker.is_ready, worker.snapshot())

    worker.stop_on_signals()
    freeze_imports()
    async with contextlib.AsyncExitStack() as stack:
        if listen is not None:
            url = await stack.enter_async_context(serve_health(listen, read))
            log.info("status at %s/healthz, %s/readyz and %s/metrics", url, url, url)
        if status_fd is not None:
            telling = asyncio.create_task(_tell(worker, read, status_fd))
            stack.callback(telling.cancel)
        await worker.serve()


async def _tell(worker: Worker, read: Callable[[], Status], status_fd: int) -> None:
    """Write the status of this process to its parent. Without a parent, stop."""
    while True:
        try:
            os.write(status_fd, json.dumps(read()).encode() + b"\n")
        except OSError:
            log.warning("the parent process has ended: stopping")
            worker.stop()
            return
        await asyncio.sleep(STATUS_S)


class Child:
    """A process of a worker, and what it has reported."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe, theirs = os.pipe()
        # Ctrl-C at a terminal reaches the parent alone, which signals its children once.
        self.process = subprocess.Popen(
            [*command, f"--status-fd={theirs}"], pass_fds=[theirs], start_new_session=True
        )
        os.close(theirs)
        os.set_blocking(pipe, False)
        self.began_s = self.heard_s = time.monotonic()
        self.status = Status(True, False, [])
        self._pipe = pipe
        self._rest = b""

    def read(self) -> None:
        """Read the newest status."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                if lines:
                    self.status = Status(*json.loads(lines[-1]))
                    self.heard_s = time.monotonic()

    @property
    def is_healthy(self) -> bool:
        return self.status.healthy and time.monotonic() - self.heard_s < SILENT_S

    def close(self) -> list[dict[str, Any]]:
        """Return the last counts of a child that has ended."""
        self.read()
        os.close(self._pipe)
        return [metrics.end_snapshot(snapshot) for snapshot in self.status.snapshots]


class Supervisor:
    """The parent of several children. `run` once."""

    def __init__(self, command: Sequence[str], processes: int, *, reload: bool) -> None:
        """`command` is that of one child."""
        self._command = command
        self._processes = processes
        self._reload = reload
        self._children: list[Child] = []
        #: The counts of children that have ended.
        self._ended: list[dict[str, Any]] = []
        self._stopping = asyncio.Event()
        self._pause_s = RESTART_S
        self._start_at_s = 0.0
        self._exit_code = 0

    async def run(self, listen: str | None) -> int:
        """Keep the children running until a signal; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        async with contextlib.AsyncExitStack() as stack:
            if listen is not None:
                url = await stack.enter_async_context(serve_health(listen, self.read))
                log.info("status at %s/healthz, %s/readyz and %s/metrics", url, url, url)
            files = dict(_list_files()) if self._reload else {}
            while not (self._stopping.is_set() and not self._children):
                self._reap()
                if self._reload and not self._stopping.is_set():
                    if (now := dict(_list_files())) != files:
                        files = now
                        log.info("the application has changed: starting it again")
                        self._end_children()
                        self._start_at_s = 0.0
                self._start()
                await asyncio.sleep(RELOAD_S if self._children else 0.1)
        return self._exit_code

    def read(self) -> Status:
        """Return the status of all children together."""
        for child in self._children:
            child.read()
        snapshots = [snapshot for child in self._children for snapshot in child.status.snapshots]
        everyone = len(self._children) == self._processes
        return Status(
            all(child.is_healthy for child in self._children),
            everyone and all(child.status.ready for child in self._children),
            metrics.add_snapshots([*self._ended, *snapshots]),
        )

    def _start(self) -> None:
        """Start the children that are missing."""
        if self._stopping.is_set() or time.monotonic() < self._start_at_s:
            return
        while len(self._children) < self._processes:
            self._children.append(Child(self._command))

    def _reap(self) -> None:
        """Handle children that have ended."""
        for child in list(self._children):
            child.read()
            code = child.process.poll()
            if code is None:
                continue
            self._children.remove(child)
            self._ended = metrics.add_snapshots([*self._ended, *child.close()])
            if self._stopping.is_set() or code == 0:
                continue
            if code == USAGE and not self._reload:
                self._exit_code = code
                self._on_stop()
                continue
            if time.monotonic() - child.began_s > RESTART_MAX_S:
                self._pause_s = RESTART_S
            log.error("process %d ended with %d: another starts", child.process.pid, code)
            self._start_at_s = time.monotonic() + self._pause_s
            if code == USAGE:
                self._start_at_s = float("inf")  # Until the application changes.
            self._pause_s = min(2 * self._pause_s, RESTART_MAX_S)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            log.warning("a second signal: ending at once")
            for child in self._children:
                child.process.kill()
            os._exit(1)
        self._on_stop()

    def _on_stop(self) -> None:
        self._stopping.set()
        self._end_children()

    def _end_children(self) -> None:
        for child in self._children:
            child.process.terminate()


def _list_files() -> Iterator[tuple[str, int]]:
    """Yield the Python files below the working directory with their times of change."""
    for directory, names, files in os.walk("."):
        names[:] = [n for n in names if not n.startswith((".", "__")) and n != "node_modules"]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError):
                    yield path, os.stat(path).st_mtime_ns
