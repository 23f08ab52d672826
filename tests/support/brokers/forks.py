"""Processes of `python -m shoal.cli` and its plugin for kubectl, started as forks of one that has
imported it (`fork_server`).

A fork costs a fifth of the CPU of a new interpreter. `start` takes an interpreter where a fork
could differ: under coverage.py, in a network of its own, with other variables that Python or a
module reads when it starts, and for first users, whose passwords leave the kernel's tables.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import functools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shoal.testing.server_process import without_configs
from support.brokers.fork_server import NUMBER, REQUEST_BYTES_MAX
from support.runs import coverage_contexts, leaks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODULE = "shoal.cli"
PROGRAM = [sys.executable, "-m", MODULE]
#: What can be a fork, if `python -m` runs it.
_MODULES = (MODULE, "shoal.cli.kubectl_plugin")
#: Variables with these beginnings are read before the program runs.
_READ_EARLY = ("PYTHON", "PURE_PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG")
_FIRST_USERS = re.compile("add.scram", re.IGNORECASE)
#: `FORKS=0` starts interpreters, to compare.
SWITCH = "FORKS"


def start(
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    streams: tuple[int, int, int] | None = None,
    folder: Path | None = None,
    can_be_interrupted: bool = False,
    has_terminal: bool = False,
) -> Fork | subprocess.Popen[str]:
    """Start a command with these standard streams, by default this process' input and pipes, in
    this process' folder or another one.

    `can_be_interrupted` lets Ctrl-C end it even if a shell runs the tests in the background.
    `has_terminal` makes its standard input its controlling terminal.
    """
    if not _can_be_fork(words, environment) or not _get_server().suits(environment):
        return _start_interpreter(
            words, environment, streams, folder, can_be_interrupted, has_terminal
        )
    request = {
        "module": words[2],
        "words": words,
        "arguments": words[3:],
        "environment": environment,
        "folder": str(folder or Path.cwd()),
        "can_be_interrupted": can_be_interrupted,
        "has_terminal": has_terminal,
    }
    return Fork(_get_server(), request, streams)


def _can_be_fork(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    return (
        os.environ.get(SWITCH) != "0"
        and list(words[:2]) == PROGRAM[:2]
        and words[2] in _MODULES
        and not any(_FIRST_USERS.search(text) for text in (*words, *environment))
        and not coverage_contexts.is_measuring()
    )


def _read_conditions(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return what has an effect before the program runs, and this thread's network."""
    early = {k: v for k, v in environment.items() if k.startswith(_READ_EARLY)}
    return early, os.readlink("/proc/thread-self/ns/net")


def _start_interpreter(
    words: Sequence[str],
    environment: Mapping[str, str],
    streams: tuple[int, int, int] | None,
    folder: Path | None,
    can_be_interrupted: bool,
    has_terminal: bool,
) -> subprocess.Popen[str]:
    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if has_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    stdin, stdout, stderr = streams or (None, subprocess.PIPE, subprocess.PIPE)
    return subprocess.Popen(
        words,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=has_terminal,
        preexec_fn=prepare if can_be_interrupted else None,
    )


class Fork:
    """A child of the fork server, with the face of `subprocess.Popen`."""

    stdin = None

    def __init__(
        self, server: _Server, request: dict[str, Any], streams: tuple[int, int, int] | None
    ) -> None:
        self.args: Sequence[str] = request["words"]
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self._reading = threading.Lock()
        self._pipe, given = os.pipe()
        passed = [given]
        if streams is None:
            (out, written_out), (err, written_err) = os.pipe(), os.pipe()
            self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
            streams = (0, written_out, written_err)
            passed += [written_out, written_err]
        server.ask(json.dumps(request).encode(), [*streams, given])
        for descriptor in passed:
            os.close(descriptor)
        self.pid = self._read_number()
        leaks.note(self.pid, self.args, request["environment"], lambda: self.poll() is None)

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._read_end(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status. Raises `subprocess.TimeoutExpired`."""
        status = self._read_end(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_end(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._pipe], [], [], timeout_s)[0]:
            with self._reading:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(self._read_number())
                    os.close(self._pipe)
        return self.returncode

    def _read_number(self) -> int:
        number = os.read(self._pipe, NUMBER.size)
        assert number, f"the fork server has ended; {SWITCH}=0 does without it"
        (value,) = NUMBER.unpack(number)
        return value


class _Server:
    """The fork server of this test process. It ends when this process does."""

    def __init__(self) -> None:
        self._socket, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES_MAX)
        program = Path(__file__).with_name("fork_server.py")
        with given, leaks.unmarked():
            self._process = subprocess.Popen(
                [sys.executable, program, str(given.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[given.fileno()],
                env=without_configs(),
            )
        self._conditions = _read_conditions(os.environ)
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a program would start here as in an interpreter with this environment."""
        return self._conditions == _read_conditions(environment)

    def ask(self, message: bytes, descriptors: list[int]) -> None:
        assert len(message) < REQUEST_BYTES_MAX
        rights = array.array("i", descriptors)
        self._socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


@functools.cache
def _get_server() -> _Server:
    return _Server()
