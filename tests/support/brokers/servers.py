"""Real broker processes for tests: started on free ports, stopped, killed, started again.

They are those of `shoal.testing`, with what only the project's own tests look at.
"""

from __future__ import annotations

import subprocess
import urllib.request
from typing import TYPE_CHECKING, cast

from prometheus_client.parser import text_string_to_metric_families
from shoal.monitoring.exposition import parse_samples
from shoal.testing.server_process import ServerProcess, without_configs
from support.brokers import forks

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

__all__ = ["ShoalProcess", "forget_ended", "used", "without_configs"]

#: The brokers that run, or that have ended since the last test.
_used: list[ShoalProcess] = []


def used() -> list[ShoalProcess]:
    """Return the brokers that ran during the current test."""
    return list(_used)


def forget_ended() -> None:
    """Begin a new test: keep only the brokers that run."""
    _used[:] = [broker for broker in _used if broker.is_running]


class ShoalProcess(ServerProcess):
    """One `shoal server` of a test."""

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
        found = parse_samples(self.scrape(), [name], zeros=[name])
        return [s for s in found if s.labels.items() >= labels.items()]

    def resident_mb(self) -> float:
        return self.metric("process_resident_memory_bytes") / 1e6

    def start(self) -> ShoalProcess:
        """Start it and wait until it is ready."""
        self.launch()
        self.wait()
        return self

    def launch(self) -> None:
        """Start it; `wait` waits until it is ready."""
        if self not in _used:
            _used.append(self)
        super().launch()

    def _spawn(self, words: list[str]) -> subprocess.Popen[str]:
        started = forks.start(words, environment=without_configs() | self.environment)
        return cast("subprocess.Popen[str]", started)  # A fork has the methods that are used.

    def refusal(self) -> str:
        """Return the error of a broker that must not start."""
        self.launch()
        assert self._process is not None
        try:
            self._process.wait(self.start_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError("it still runs:\n" + "\n".join(self.log[-40:])) from None
        status = self._reap()
        said = [line for line in self.log if line.startswith("shoal server: ")]
        assert status == 1, (status, self.log)
        assert len(said) == 1, self.log
        assert not any("Traceback" in line for line in self.log), self.log
        return said[0]

    def kill9(self) -> None:
        """Kill it, as a crash would."""
        self.kill()

    def restart(self) -> ShoalProcess:
        """Stop cleanly and start again, on the same port."""
        self.stop()
        return self.start()
