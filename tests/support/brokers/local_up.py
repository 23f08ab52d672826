"""A `shoal up` of a folder of manifests, as a process with its own state folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import yaml
from support.brokers import commands, forks
from support.runs.conditions import eventually

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

API = "shoal.dev/v1beta1"
PLAIN = {
    "name": "plain",
    "port": 9092,
    "tls": {"enabled": False},
    "authentication": {"type": "none"},
}


def make_manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return a custom resource."""
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def make_queue(command: list[str], **scaling: Any) -> list[dict[str, Any]]:
    """Return a cluster without TLS, a topic of two partitions, a group, and consumers that run
    this command."""
    container = {"name": "consumer", "command": command}
    return [
        make_manifest("QueueCluster", "main", storage={"size": "1Gi"}, listeners=[PLAIN]),
        make_manifest("QueueTopic", "jobs", cluster="main", partitions=2),
        make_manifest(
            "ShareGroup", "workers", cluster="main", topics=["jobs"], startOffset="Earliest"
        ),
        make_manifest(
            "ShareConsumer",
            "printers",
            shareGroup="workers",
            scaling=scaling,
            deployment={"template": {"spec": {"containers": [container]}}},
        ),
    ]


def write_manifests(folder: Path, manifests: list[dict[str, Any]], name: str = "all.yaml") -> None:
    """Write manifests into a file of a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(yaml.safe_dump_all(manifests))


class LocalUp:
    """`shoal up` in a folder; `words` are more arguments."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self._words = folder, words
        self.state = folder / ".shoal"
        self._process: forks.Fork | subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it in the background."""
        with (
            open(os.devnull) as nothing,
            (self.folder / "up.out").open("ab") as output,
            contextlib.chdir(self.folder),
        ):
            self._process = forks.start(
                [*commands.SHOAL, "up", *self._words],
                environment=dict(os.environ),
                streams=(nothing.fileno(), output.fileno(), output.fileno()),
                can_be_interrupted=True,
            )

    @property
    def output(self) -> str:
        """What it has printed."""
        return (self.folder / "up.out").read_text()

    @property
    def process(self) -> forks.Fork | subprocess.Popen[str]:
        assert self._process is not None, "it was not started"
        return self._process

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal, and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def close(self) -> None:
        """End whatever runs."""
        if self._process is not None and self._process.poll() is None:
            self.end()
        self.run("down")

    def run(
        self, *words: str, stdin: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Call a `shoal` command in the folder; an `up` among them must not stay."""
        with contextlib.chdir(self.folder):
            return commands.call(
                *words, stdin=stdin, environment={**os.environ, **(environment or {})}
            )

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return a resource, empty if it does not exist. A command would take a second, so this
        reads its file, which is what the command reads."""
        file = self.state / "objects" / f"{kind}s" / "default" / f"{name}.yaml"
        loaded: dict[str, Any] = yaml.safe_load(file.read_text()) if file.exists() else {}
        return loaded

    def get_status(self, kind: str, name: str) -> dict[str, Any]:
        """Return the status of a resource, with the conditions by type."""
        status = self.get(kind, name).get("status", {})
        return {**status, **{c["type"]: c for c in status.get("conditions", [])}}

    def wait_until(
        self, kind: str, name: str, *, ready: str = "True", reason: str = "", message: str = ""
    ) -> Any:
        """Wait for the condition Ready of a resource, with a part of its message; return its
        status."""

        def probe() -> Any:
            status = self.get_status(kind, name)
            condition = status.get("Ready", {})
            fits = condition.get("status") == ready and reason in ("", condition.get("reason"))
            return status if fits and message in condition.get("message", "") else None

        try:
            return eventually(probe)
        except AssertionError:
            last = f"{self.get_status(kind, name)}\n{self.output}"
            raise AssertionError(
                f"{kind} {name} is not {ready} {reason} {message}: {last}"
            ) from None

    def list_processes(self) -> dict[str, int]:
        """Return the pids of the processes by pod and container."""
        file = self.state / "processes.json"
        rows = json.loads(file.read_text()) if file.exists() else []
        return {row["owner"]: row["pid"] for row in rows}
