"""A worker of a test in a process of its own, which prints events and ends with its input."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod


class WorkerProcess(ABC):
    """Runs a script. A subclass reads the lines that it prints."""

    def __init__(self, script: str, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, script, *words],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.noted(line)

    @abstractmethod
    def noted(self, line: bytes) -> None:
        """Read a line, in another thread. What it fills exists before `__init__` is called."""

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def stop(self) -> None:
        """End it as an application does: it commits and leaves."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._reader.join()
