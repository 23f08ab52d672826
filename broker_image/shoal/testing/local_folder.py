"""`shoal_up`: a folder of manifests on this machine, for a test of the application they are for."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.testing.server_process import BrokerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOAL = (sys.executable, "-m", "shoal.cli")


@dataclass(frozen=True)
class RunningFolder:
    """What `shoal up` runs. `client_properties` is a file for Kafka clients: the addresses and, if
    the cluster has TLS, a certificate that may do everything."""

    client_properties: Path

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers."""
        lines = self.client_properties.read_text().splitlines()
        pairs = dict(line.split("=", 1) for line in lines)
        return pairs["bootstrap.servers"]

    def read_logs(self, name: str) -> str:
        """Return what the processes of a ShareConsumer or QueueCluster have printed, with the pod
        before each line; empty if none has run yet."""
        words = [*_SHOAL, "logs", name, f"--dir={self.client_properties.parents[1]}"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def shoal_up(folder: str | Path, *, brokers: int | None = None) -> Iterator[RunningFolder]:
    """Run the manifests in a folder until the block ends; it begins when all are ready.

    with shoal_up("queue") as queue:
        producer = Producer({"bootstrap.servers": queue.bootstrap})

    Consumers run in the folder. Objects and records are in a temporary directory, so each block
    begins without any. `brokers` replaces the number that QueueClusters declare. Raises
    `BrokerFailed` with what `shoal up` has printed if a manifest is refused or a resource does not
    become ready.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-up-") as temporary:
        state = Path(temporary) / ".shoal"
        words = [f"--filename={folder}", f"--state={state}", "--detach"]
        words += [f"--brokers={brokers}"] if brokers is not None else []
        try:
            _run("up", *words)
            yield RunningFolder(state / "client.properties")
        finally:
            if (state / "objects").is_dir():
                _run("down", f"--dir={temporary}")


def _run(*words: str) -> str:
    done = subprocess.run([*_SHOAL, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerFailed(f"`shoal {words[0]}` failed: {done.stderr.strip()}")
    return done.stdout
