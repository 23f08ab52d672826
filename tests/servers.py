"""Real broker processes for tests: started on free ports, stopped, killed, started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import IO, TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families
from shoal.client.exposition import samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from prometheus_client.samples import Sample

_LISTENS = re.compile(r"listens on (\S+:\d+)")
_METRICS = re.compile(r"(https?://\S+)/metrics")
#: These end a hang. They are not limits on speed.
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 180


def without_configs() -> dict[str, str]:
    """Return the environment without SHOAL_ variables. Some are for the tests, and a broker refuses
    those that name no config."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}


#: The brokers that run, or that have ended since the last test.
_used: list[ShoalProcess] = []


def used() -> list[ShoalProcess]:
    """Return the brokers that ran during the current test."""
    return list(_used)


def forget_ended() -> None:
    """Begin a new test: keep only the brokers that run."""
    _used[:] = [broker for broker in _used if broker.is_running]


class ShoalProcess:
    """One `shoal server` with a data directory and a port that it keeps over restarts.

    Configs may name the directory instead, by log.dir or log.dirs.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        configs: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        metrics: str = "127.0.0.1:0",
        flags: Sequence[str] = (),
        command: Sequence[str] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        listener: str = "PLAINTEXT",
    ) -> None:
        """`command` is put before the broker's command and must exec it. `listener` is the name of
        the first listener."""
        self.data_dir = data_dir
        self._metrics_listener = metrics
        self.configs = dict(configs or {})
        self.environment = dict(environment or {})
        self.flags = tuple(flags)
        #: Put before the broker's command at the next start.
        self.command = tuple(command)
        self.start_timeout_s = start_timeout_s
        self.bootstrap = "127.0.0.1:0"
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

    def scrape(self) -> str:
        """Return the current text of `/metrics`."""
        with urllib.request.urlopen(f"{self.metrics_url}/metrics", timeout=60) as answer:
            return answer.read().decode()

    def metric(self, name: str) -> float:
        """Return a metric's value by its name with labels, such as `lag{group="g"}`."""
        ((wanted,),) = (family.samples for family in text_string_to_metric_families(f"{name} 0"))
        for sample in self.samples(wanted.name):
            if sample.labels == wanted.labels:
                return sample.value
        raise AssertionError(f"no metric {name}")

    def samples(self, name: str, **labels: str) -> list[Sample]:
        """Return the samples of a metric that have these labels."""
        found = samples(self.scrape(), [name], zeros=[name])
        return [s for s in found if s.labels.items() >= labels.items()]

    def resident_mb(self) -> float:
        return self.metric("process_resident_memory_bytes") / 1e6

    def start(self) -> ShoalProcess:
        """Start it and wait until it is ready."""
        self.launch()
        return self.wait()

    def launch(self) -> None:
        """Start it; `wait` waits until it is ready."""
        assert self._process is None
        if self not in _used:
            _used.append(self)
        pairs = [f"--set={name}={value}" for name, value in self.configs.items()]
        if not self.configs.keys() & {"log.dir", "log.dirs"}:
            pairs.append(f"--data-dir={self.data_dir}")
        self._process = subprocess.Popen(
            [
                *self.command,
                sys.executable,
                "-m",
                "shoal.cli",
                "server",
                f"--listener={self._listener}://{self.bootstrap}",
                f"--metrics={self._metrics_listener}",
                *pairs,
                *self.flags,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=without_configs() | self.environment,
        )
        self._ready = ready = threading.Event()
        self._said_ready = False
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [
            threading.Thread(target=self._read, args=(stream, ready), daemon=True)
            for stream in streams
        ]
        for reader in self._readers:
            reader.start()

    def wait(self) -> ShoalProcess:
        """Wait until it is ready."""
        assert self._process is not None
        self._ready.wait(self.start_timeout_s)
        if not (self._said_ready and self.is_running):
            self.kill9()
            raise AssertionError("the broker did not start:\n" + "\n".join(self.log[-40:]))
        return self

    def refusal(self) -> str:
        """Return the error of a broker that must not start."""
        self.launch()
        assert self._process is not None
        try:
            self._process.wait(self.start_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError("it still runs:\n" + "\n".join(self.log[-40:])) from None
        status = self._ended()
        said = [line for line in self.log if line.startswith("shoal server: ")]
        assert status == 1, (status, self.log)
        assert len(said) == 1, self.log
        assert not any("Traceback" in line for line in self.log), self.log
        return said[0]

    def stop(self) -> int:
        """Stop it cleanly; return its exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill9(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def restart(self) -> ShoalProcess:
        """Stop cleanly and start again, on the same port."""
        self.stop()
        return self.start()

    def _ended(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError("the broker did not stop:\n" + "\n".join(self.log[-40:])) from None
        for reader in self._readers:
            reader.join()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        return status

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
