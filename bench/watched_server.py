"""`shoal server` with a clock on its event loop: `python bench/watched_server.py server ...`.

A beat of the loop is due every 5 ms. How late it comes is the time for which the loop ran something
else, or did not run. The CPU time of the loop's thread since the last beat bounds the first of
both, and other processes do not distort it. At SIGUSR2 the process writes the longest of both since
the last signal, in ms, into the file that BENCH_PAUSES names.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from shoal.cli.main import main
from shoal.server import process

BEAT_S = 0.005
VARIABLE = "BENCH_PAUSES"


class Beats:
    """Owns the longest pause so far. `pause_ms` is CPU time, `late_ms` is wall time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop, self._path = loop, path
        self._pause_ms = self._late_ms = 0.0
        self._used_ns, self._due_s = time.thread_time_ns(), loop.time()
        loop.add_signal_handler(signal.SIGUSR2, self._report)
        loop.call_soon(self._beat)

    def _beat(self) -> None:
        used_ns, now_s = time.thread_time_ns(), self._loop.time()
        late_ms = (now_s - self._due_s) * 1000
        self._late_ms = max(self._late_ms, late_ms)
        self._pause_ms = max(self._pause_ms, min(late_ms, (used_ns - self._used_ns) / 1e6))
        self._used_ns, self._due_s = used_ns, self._loop.time() + BEAT_S
        self._loop.call_later(BEAT_S, self._beat)

    def _report(self) -> None:
        found = {"pause_ms": self._pause_ms, "late_ms": self._late_ms}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(self._path)
        self._pause_ms = self._late_ms = 0.0


def watch() -> None:
    """Let a broker that is ready count its beats."""
    ready = process.tune_collector

    def ready_and_watched() -> None:
        ready()
        beats.append(Beats(asyncio.get_running_loop(), Path(os.environ[VARIABLE])))

    beats: list[Beats] = []
    setattr(process, "tune_collector", ready_and_watched)  # noqa: B010


if __name__ == "__main__":
    watch()
    main()
