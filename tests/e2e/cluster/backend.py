"""One interface for the kinds of test cluster; no other code distinguishes them.

Every method is idempotent.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from .commands import Argument, Laps, lock, run
from .layout import CACHE, ClusterError, Layout
from .programs import program

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager


class Cluster(ABC):
    """A cluster; the layout defines its name, and how many nodes it starts with."""

    #: The name of this kind of cluster in the output of `status`.
    kind: str

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.laps = Laps()

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def state(self) -> Path:
        """The directory that exists as long as the cluster."""
        return CACHE / "run" / f"{self.layout.name}-{self.kind}"

    def up(self) -> None:
        """Start the cluster and wait for Ready nodes; build and install what is missing."""
        with self._lock():
            if self.is_up():
                self._require_nodes()
                self.laps(f"{self.layout.name} ({self.kind}) is up already")
                return
            self.require()
            self._down()
            self.state.mkdir(parents=True, exist_ok=True)
            try:
                self._up()
            except BaseException:
                self._keep_logs()
                self._down()
                raise
            self.laps(f"{self.layout.name} ({self.kind}) is up: KUBECONFIG={self.kubeconfig}")

    def provide(self) -> None:
        """Build and install what a cluster needs, and start nothing."""
        with self._lock():
            self.require()
            self._provide()
            self.tool("helm")
            self.laps("everything that a cluster needs is installed")

    def down(self) -> None:
        """Remove the cluster and restore the machine; built programs and images stay."""
        with self._lock():
            self._down()
        self.laps(f"{self.layout.name} ({self.kind}) is down")

    def load(self, archive: Path) -> None:
        """Load the image of a docker or OCI archive into all nodes under its own name."""
        file = archive.stat()
        stamp = f"{archive.resolve()} {file.st_size} {file.st_mtime_ns}"
        with self._lock():
            record = self.state / "loaded.json"
            loaded = json.loads(record.read_text()) if record.exists() else []
            if stamp in loaded:
                return
            self._load(archive)
            record.write_text(json.dumps([*loaded, stamp], indent=1))
        self.laps(f"{archive.name} is loaded")

    def kubectl(
        self, *argv: Argument, stdin_text: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against this cluster; raise ClusterError if `check` and it failed."""
        return self._run(self.tool("kubectl"), argv, stdin_text, check)

    def helm(
        self, *argv: Argument, stdin_text: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run helm against this cluster; raise ClusterError if `check` and it failed."""
        return self._run(self.tool("helm"), argv, stdin_text, check)

    def environment(self) -> dict[str, str]:
        """Return the environment of programs in tests: KUBECONFIG, and a PATH with the tools."""
        directories = dict.fromkeys(str(self.tool(name).parent) for name in ("kubectl", "helm"))
        path = os.pathsep.join([*directories, os.environ.get("PATH", os.defpath)])
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def tool(self, name: str) -> Path:
        """Return the `kubectl` or `helm` of this cluster."""
        return tool(name)

    @property
    @abstractmethod
    def programs(self) -> tuple[str, ...]:
        """The Go programs that a start compiles, unless they are in the cache."""

    @abstractmethod
    def install(self) -> None:
        """Install the packages that building images and starting a cluster take."""

    @abstractmethod
    def is_up(self) -> bool:
        """Return whether the cluster's processes run and its API server answers."""

    @abstractmethod
    def stop_kubelet(self) -> None:
        """End the first node's kubelet and keep it stopped; its containers continue."""

    @abstractmethod
    def start_kubelet(self) -> None:
        """Start the kubelet again."""

    @abstractmethod
    def in_node(self, *argv: str) -> None:
        """Run a program on the first node, in its mounts and network; raise ClusterError if it
        fails."""

    @abstractmethod
    def name_image(self, image: str, other: str) -> None:
        """Give a loaded image another name as well."""

    @abstractmethod
    def require(self) -> None:
        """Raise the reason why this machine cannot have such a cluster, before anything changes."""

    @abstractmethod
    def _provide(self) -> None: ...

    @abstractmethod
    def _up(self) -> None: ...

    @abstractmethod
    def _down(self) -> None: ...

    @abstractmethod
    def _load(self, archive: Path) -> None: ...

    def _require_nodes(self) -> None:
        """Raise unless a cluster that is up has the layout's number of nodes."""
        nodes = len(self.kubectl("get", "nodes", "--output=name").stdout.split())
        if nodes < self.layout.nodes:
            raise ClusterError(
                f"{self.layout.name} is up with {nodes} nodes, and SHOAL_NODES is "
                f"{self.layout.nodes}: take it down first, or set another SHOAL_CLUSTER_INDEX."
            )

    def _run(
        self, binary: Path, argv: tuple[Argument, ...], stdin_text: str | None, check: bool
    ) -> subprocess.CompletedProcess[str]:
        kubeconfig = {"KUBECONFIG": str(self.kubeconfig)}
        return run(binary, *argv, stdin_text=stdin_text, env=kubeconfig, check=check)

    def _answers(self) -> bool:
        ready = ("get", "--raw", "/readyz", "--request-timeout=5s")
        return self.kubeconfig.exists() and self.kubectl(*ready, check=False).returncode == 0

    def _keep_logs(self) -> None:
        """Copy the logs of a cluster that did not start to where `_down` leaves them."""
        logs, kept = self.state / "log", self.state.with_suffix(".failed")
        if logs.is_dir():
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(logs, kept)
            self.laps(f"the logs of the failed start are in {kept}")

    def _lock(self) -> AbstractContextManager[None]:
        """Allow one change at a time, over all processes."""
        return lock(self.state.with_suffix(".lock"))


def tool(name: str) -> Path:
    """Return a pinned `kubectl` or `helm` from the cache, or the machine's own if it has kind."""
    installed = shutil.which(name)
    if installed and docker_answers():
        return Path(installed)
    return program(name)


def docker_answers() -> bool:
    """Return whether a Docker engine can build and run images."""
    if not shutil.which("docker"):
        return False
    return run("docker", "version", "--format", "{{.Server.Version}}", check=False).returncode == 0


def choose(layout: Layout) -> Cluster:
    """Return the cluster that SHOAL_CLUSTER names, or that fits the machine: kind if it has Docker,
    else a local one. A cluster of the user's own is only used if SHOAL_CLUSTER says so."""
    from .context import Context
    from .kind import Kind
    from .local import Local

    wanted = os.environ.get("SHOAL_CLUSTER") or ("kind" if docker_answers() else "local")
    if wanted == "kind":
        return Kind(layout)
    if wanted == "local":
        return Local(layout)
    if wanted == "current-context":
        return Context(layout)
    raise ClusterError(
        f"SHOAL_CLUSTER is {wanted!r}; set it to `kind`, `local` or `current-context`."
    )
