"""The console beside a broker: `shoal server --console HOST:PORT`.

It is a process of its own, so that pages never delay the broker. It ends with the broker: its
standard input is a pipe that closes when the broker's process ends, even by a kill.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: What the console needs beside the broker.
PACKAGES = ("aiohttp", "jinja2")
_LISTENS = re.compile(r"listens on (\S+:\d+)\.$")
_METRICS = re.compile(r"^Metrics are at (\S+)\.$")
_READY = "Ready after "
#: Seconds until a console that does not stop is killed.
STOP_S = 5.0


def describe_missing() -> str:
    """Return what the console lacks, as a sentence; empty if nothing.

    The command serves a wheel and a clone. An extra of `shoal` would not: a package index does not
    have this package, or it has another one of this name.
    """
    lacks = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not lacks:
        return ""
    names = " ".join(lacks)
    return (
        f"the console needs {' and '.join(lacks)}. Install"
        f" {'it' if len(lacks) == 1 else 'them'} with `{sys.executable} -m pip install {names}`."
    )


class SideConsole:
    """Starts the console once the broker is ready. `say` passes on the broker's lines."""

    def __init__(self, listen: str, say: Callable[[str], None], bootstrap: str = "") -> None:
        """`bootstrap` is the broker's address; the default is the first that it says."""
        self._listen, self._say = listen, say
        self._bootstrap, self._metrics = bootstrap, ""
        self._process: subprocess.Popen[bytes] | None = None

    def say(self, line: str) -> None:
        """Pass on a line of the broker. Start the console after the one that says it is ready."""
        self._say(line)
        if (match := _LISTENS.search(line)) and not self._bootstrap:
            self._bootstrap = match[1]
        if match := _METRICS.search(line):
            self._metrics = match[1].rpartition("://")[2]
        if line.startswith(_READY) and self._process is None:
            self._start()

    def _start(self) -> None:
        words = [f"--listen={self._listen}", f"--bootstrap-server={self._bootstrap}"]
        words += [f"--metrics={self._metrics}"] if self._metrics else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal.cli", "console", *words, "--until-input-ends"],
            stdin=subprocess.PIPE,
        )

    def stop(self) -> None:
        """End the console."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
