"""The `shoal` command: called in this process, in the background, or at a terminal.

A process costs half a second, a call 20 ms. So only commands that change the interpreter, or that a
test runs beside others, get a process of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
import threading
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

from shoal.cli.main import app
from support.brokers import forks
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RUN_TIMEOUT_S = 180
SHOAL = tuple(forks.PROGRAM)
#: These start servers, handle signals, or leave threads of a library behind.
OWN_PROCESS = {"cluster", "console", "demo", "server", "storage", "top", "worker"}


def call(
    *words: str, stdin: str = "", environment: Mapping[str, str], errors_to_output: bool = False
) -> subprocess.CompletedProcess[str]:
    """Call a command in this process, with its streams and environment, until it exits.

    The streams are those of the whole process, so only the main thread may call it.
    """
    assert threading.current_thread() is threading.main_thread()
    status: object = None
    out = _Stream()
    err = out if errors_to_output else _Stream()
    with _streams(_Stream(stdin), out, err), mock.patch.dict(os.environ, environment, clear=True):
        try:
            app(words, prog_name="shoal")
        except SystemExit as ended:
            status = ended.code
    assert status is None or isinstance(status, int), status
    return subprocess.CompletedProcess(words, status or 0, out.getvalue(), err.getvalue())


def run_process(
    words: Sequence[str], *, environment: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a process of its own, which is a fork where that can be."""
    with contextlib.ExitStack() as stack:
        given, out, err = (
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)
        )
        given.write(stdin)
        given.seek(0)
        streams = (given.fileno(), out.fileno(), err.fileno())
        process = forks.start(words, environment=environment, streams=streams)
        try:
            status = process.wait(RUN_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(list(words), status, out.read(), err.read())


def is_callable(*words: str) -> bool:
    """Whether this thread can call a command, rather than start it."""
    return words[0] not in OWN_PROCESS and threading.current_thread() is threading.main_thread()


class _Stream(io.TextIOWrapper):
    """A standard stream in memory."""

    def __init__(self, text: str = "") -> None:
        super().__init__(io.BytesIO(text.encode()), "utf-8", write_through=True)

    def getvalue(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@contextlib.contextmanager
def _streams(stdin: _Stream, out: _Stream, err: _Stream) -> Iterator[None]:
    """Put streams in memory in the place of the standard streams."""
    with (
        mock.patch.object(sys, "stdin", stdin),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        yield


class Shoal:
    """Commands against one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "SHOAL_BOOTSTRAP_SERVERS": bootstrap}

    def run(
        self, *words: str, stdin: str = "", status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end. Expect this exit status, and no traceback."""
        done = self.start_to_end(*words, stdin=stdin)
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        return done

    def start_to_end(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run to the end, with any exit status. Expect no traceback."""
        if is_callable(*words):
            return call(*words, stdin=stdin, environment=self.environment)
        return self.start_process_to_end(*words, stdin=stdin)

    def start_process_to_end(
        self, *words: str, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run in a process of its own, as a shell would."""
        done = run_process([*SHOAL, *words], environment=self.environment, stdin=stdin)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def says(self, *words: str, stdin: str = "") -> str:
        """Return what the command prints."""
        return self.run(*words, stdin=stdin).stdout

    def json(self, *words: str) -> Any:
        """Return what the command prints with `--format json`."""
        return json.loads(self.says(*words, "--format", "json"))

    def refusal(self, *words: str, status: int = 1, stdin: str = "") -> str:
        """Return the error output of a command that must fail."""
        done = self.run(*words, stdin=stdin, status=status)
        return done.stderr

    def mistake(self, *words: str) -> str:
        """Return the error output of wrong usage. Even a server is called in this process: it ends
        before it starts."""
        done = call(*words, environment=self.environment)
        assert done.returncode == 2, (words, done)
        return done.stderr

    def start(self, *words: str) -> RunningCommand:
        """Start a command that runs until it is interrupted."""
        return RunningCommand([*SHOAL, *words], self.environment)

    def at_a_terminal(self, *words: str, columns: int = 80) -> Terminal:
        """Start an interactive command at a terminal with this number of columns."""
        return Terminal([*SHOAL, *words], self.environment, columns)


class RunningCommand:
    """A command in the background; `lines` grows as it prints."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._process = forks.start(words, environment=environment, can_be_interrupted=True)
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.rstrip("\n"))

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status."""
        self._process.send_signal(signal.SIGINT)
        try:
            status = self._process.wait(RUN_TIMEOUT_S)
        finally:
            self.kill()
        return status

    def kill(self) -> None:
        """Kill the command, as a crash would."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


class Terminal:
    """A command at a pseudo-terminal."""

    def __init__(self, words: list[str], environment: dict[str, str], columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self._process = forks.start(
            words,
            # A worker of pytest has the size of its own terminal here.
            environment={k: v for k, v in environment.items() if k not in ("COLUMNS", "LINES")},
            streams=(slave, slave, slave),
            can_be_interrupted=True,
            has_terminal=True,
        )
        os.close(slave)
        self.text = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # The other end is closed.
                return
            self.text += data.decode(errors="replace").replace("\r\n", "\n")

    def expect(self, words: str) -> None:
        """Wait until the screen has shown this text; discard everything up to its end."""
        eventually(lambda: words in self.text, what=f"{words!r} in {self.text!r}")
        self.text = self.text.partition(words)[2]

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def ended(self) -> int:
        """Wait for the end of the command; return its exit status."""
        try:
            return self._process.wait(RUN_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the command, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1
