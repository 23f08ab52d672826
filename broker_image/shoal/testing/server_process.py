"""A `shoal server` as a child process: on a port that it chooses, and ready when `start` returns.

The project's own tests use it, too (tests/support/brokers/servers.py).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LISTENS = re.compile(r"listens on (\S+:\d+)")
_METRICS = re.compile(r"(https?://\S+)/metrics")
#: These end a hang, in seconds. They are not limits on speed.
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 180
#: The listener of a broker that has not started yet: any free port.
ANY_PORT = "127.0.0.1:0"


class BrokerFailed(Exception):
    """A broker did not start or did not stop. The message has the end of its log."""


def without_configs() -> dict[str, str]:
    """Return the environment without SHOAL_ variables. Some are for clients, and a broker refuses
    those that name no config."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}


class ServerProcess:
    """One `shoal server` with a data directory and a port that it keeps over restarts.

    Configs may name the directory instead, by log.dir or log.dirs.
    """

    #: What runs `shoal server` with the arguments that follow.
    program: Sequence[str] = (sys.executable, "-m", "shoal.cli", "server")

    def __init__(
        self,
        data_dir: Path,
        *,
        configs: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        metrics: str = ANY_PORT,
        flags: Sequence[str] = (),
        command: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        listener: str = "PLAINTEXT",
    ) -> None:
        """`command` is put before the broker's command and must exec it. `listener` is the name of
        the first listener. `metrics` is empty for a broker without that endpoint."""
        self.data_dir = data_dir
        self._metrics_listener = metrics
        self.configs = dict(configs or {})
        self.environment = dict(environment or {})
        self.flags = tuple(flags)
        #: Put before the broker's command at the next start.
        self.command = tuple(command)
        self.start_timeout_s = start_timeout_s
        self.bootstrap = ANY_PORT
        self._listener = listener
        self.metrics_url = ""
        self._said_ready = False
        self.log: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been stopped."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it; `wait` waits until it is ready."""
        assert self._process is None
        self._process = self._spawn([*self.command, *self.program, *self._make_arguments()])
        self._ready = ready = threading.Event()
        self._said_ready = False
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [
            threading.Thread(target=self._read, args=(stream, ready), daemon=True)
            for stream in streams
        ]
        for reader in self._readers:
            reader.start()

    def _spawn(self, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=without_configs() | self.environment,
        )

    def _make_arguments(self) -> list[str]:
        arguments = [f"--set={name}={value}" for name, value in self.configs.items()]
        if "listeners" not in self.configs:
            arguments.append(f"--listener={self._listener}://{self.bootstrap}")
        if self._metrics_listener:
            arguments.append(f"--metrics={self._metrics_listener}")
        if not self.configs.keys() & {"log.dir", "log.dirs"}:
            arguments.append(f"--data-dir={self.data_dir}")
        return [*arguments, *self.flags]

    def wait(self) -> None:
        """Wait until it is ready. Raises `BrokerFailed`."""
        assert self._process is not None
        self._ready.wait(self.start_timeout_s)
        if not (self._said_ready and self.is_running):
            self.kill()
            raise BrokerFailed(f"the broker did not start:\n{self._read_end_of_log()}")

    def stop(self) -> int:
        """Stop it cleanly; return its exit status. Raises `BrokerFailed`."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def kill(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def _reap(self) -> int:
        """Wait until the process has ended; return its exit status."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"the broker did not stop:\n{self._read_end_of_log()}") from None
        for reader in self._readers:
            reader.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return status

    def _read_end_of_log(self) -> str:
        return "\n".join(self.log[-40:])

    def _read(self, stream: IO[str], ready: threading.Event) -> None:
        for line in stream:
            self.log.append(line.rstrip())
            if match := _METRICS.search(line):
                self.metrics_url = match[1]
            if (match := _LISTENS.search(line)) and self.bootstrap.endswith(":0"):
                self.bootstrap = match[1]
            if line.startswith("Ready"):
                self._said_ready = True
                ready.set()
        ready.set()  # the process has ended


class BoundProcess(ServerProcess):
    """A server that ends with this process, however that ends, and then removes its data. Ctrl-C at
    the terminal does not reach it."""

    program = (sys.executable, "-m", "shoal.testing.bound_server")

    def _spawn(self, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            # It closes when this process has ended, and so tells the server.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=without_configs() | self.environment,
            start_new_session=True,
        )
