"""Kafka's command-line tools in one JVM for the whole test process: a call takes a tenth of the
time of a JVM of its own. `compat/java/ToolRunner.java` is the other side."""

from __future__ import annotations

import base64
import functools
import queue
import subprocess
import threading
from typing import IO, NamedTuple

from support.kafka.java_classes import SOURCES, java
from support.runs import leaks

SOURCE = SOURCES / "ToolRunner.java"


class Ended(NamedTuple):
    """What came of a call."""

    status: int
    out: str
    errors: str


class ToolRunner:
    """A JVM that runs tools one after the other. It ends with this process."""

    def __init__(self) -> None:
        with leaks.unmarked():
            self._process = subprocess.Popen(
                java(str(SOURCE)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._turn = threading.Lock()
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def run(self, main: str, *words: str, timeout_s: float) -> Ended:
        """Run a tool to its end, by its class."""
        line = " ".join(base64.b64encode(word.encode()).decode() for word in (main, *words))
        with self._turn:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            try:
                answer = self._answers.get(timeout=timeout_s)
            except queue.Empty:
                answer = ""
            if not answer:
                self._process.kill()
                shared.cache_clear()
                raise AssertionError(f"no answer from {main} within {timeout_s} s: {words}")
        status, out, errors = answer.rstrip("\n").split(" ")
        return Ended(int(status), _text(out), _text(errors))

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put("")  # The JVM has ended.


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


@functools.cache
def shared() -> ToolRunner:
    """Return the runner of this process."""
    return ToolRunner()
