"""A process that prints lines, and that ends when its standard input does."""

from __future__ import annotations

import signal
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

END_TIMEOUT_S = 90


class LineProcess:
    """A running process; `lines` is its output so far."""

    def __init__(self, command: Sequence[str]) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self.noted(line.rstrip())
                self._changed.notify_all()

    def noted(self, line: str) -> None:
        """For subclasses: a line was printed."""

    def wait_for(self, reached: Callable[[], object], timeout_s: float) -> bool:
        """Wait for a condition that changes with the lines. Return whether it was reached."""
        with self._changed:
            return bool(self._changed.wait_for(reached, timeout_s))

    def write(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill9(self) -> None:
        self._process.kill()
        self._ended()

    def end(self) -> int:
        """End its standard input, and return its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._ended()

    def _ended(self) -> int:
        status = self._process.wait(END_TIMEOUT_S)
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return status
