"""One interface over the two kinds of test cluster; nothing else tells them apart.

Every method may be called again: what is there already stays, what is gone stays gone.
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
    """A cluster of one node, called by its layout's name."""

    #: What `status` calls this kind of cluster.
    kind: str

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.laps = Laps()

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def state(self) -> Path:
        """The directory that lives as long as the cluster."""
        return CACHE / "run" / f"{self.layout.name}-{self.kind}"

    def up(self) -> None:
        """Brings the cluster to a Ready node, building and installing what is missing."""
        with self._lock():
            if self.is_up():
                self.laps(f"{self.layout.name} ({self.kind}) is up already")
                return
            self._require()
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
        """Builds and installs what a cluster needs, and starts nothing."""
        with self._lock():
            self._require()
            self._provide()
            tool("helm")
            self.laps("all that a cluster needs is there")

    def down(self) -> None:
        """Takes the cluster away and puts the machine back; built programs and images stay."""
        with self._lock():
            self._down()
        self.laps(f"{self.layout.name} ({self.kind}) is down")

    def load(self, archive: Path) -> None:
        """Makes the image of a docker or OCI archive known to the node under its own name."""
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
        """Runs kubectl against this cluster; raises ClusterError when `check` and it failed."""
        return self._run(tool("kubectl"), argv, stdin_text, check)

    def helm(
        self, *argv: Argument, stdin_text: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs helm against this cluster; raises ClusterError when `check` and it failed."""
        return self._run(tool("helm"), argv, stdin_text, check)

    def environment(self) -> dict[str, str]:
        """What a program started by a test needs: KUBECONFIG, and a PATH with the tools."""
        directories = dict.fromkeys(str(tool(name).parent) for name in ("kubectl", "helm"))
        path = os.pathsep.join([*directories, os.environ.get("PATH", os.defpath)])
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": path}

    @abstractmethod
    def is_up(self) -> bool:
        """Whether the cluster's processes run and its API server answers."""

    @abstractmethod
    def stop_kubelet(self) -> None:
        """Ends the node's kubelet and keeps it down; its containers go on."""

    @abstractmethod
    def start_kubelet(self) -> None:
        """Lets the kubelet run again."""

    @abstractmethod
    def in_node(self, *argv: str) -> None:
        """Runs a program on the node, among its mounts and network; raises ClusterError."""

    def name_image(self, image: str, other: str) -> None:
        """Gives an image that is loaded another name as well."""
        self.in_node("ctr", "--namespace=k8s.io", "images", "tag", "--force", image, other)

    @abstractmethod
    def _require(self) -> None:
        """Raises what keeps this machine from having such a cluster, before anything changes."""

    @abstractmethod
    def _provide(self) -> None: ...

    @abstractmethod
    def _up(self) -> None: ...

    @abstractmethod
    def _down(self) -> None: ...

    @abstractmethod
    def _load(self, archive: Path) -> None: ...

    def _run(
        self, binary: Path, argv: tuple[Argument, ...], stdin_text: str | None, check: bool
    ) -> subprocess.CompletedProcess[str]:
        kubeconfig = {"KUBECONFIG": str(self.kubeconfig)}
        return run(binary, *argv, stdin_text=stdin_text, env=kubeconfig, check=check)

    def _answers(self) -> bool:
        ready = ("get", "--raw", "/readyz", "--request-timeout=5s")
        return self.kubeconfig.exists() and self.kubectl(*ready, check=False).returncode == 0

    def _keep_logs(self) -> None:
        """Copies the logs of a cluster that did not come up to where `_down` leaves them."""
        logs, kept = self.state / "log", self.state.with_suffix(".failed")
        if logs.is_dir():
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(logs, kept)
            self.laps(f"the logs of the failed start are in {kept}")

    def _lock(self) -> AbstractContextManager[None]:
        """One change at a time, whichever process asks for it."""
        return lock(self.state.with_suffix(".lock"))


def tool(name: str) -> Path:
    """A pinned `kubectl` or `helm` from the cache, the machine's own on a machine with kind."""
    installed = shutil.which(name)
    if installed and docker_answers():
        return Path(installed)
    return program(name)


def docker_answers() -> bool:
    """Whether a Docker engine is there to build and run images."""
    if not shutil.which("docker"):
        return False
    return run("docker", "version", "--format", "{{.Server.Version}}", check=False).returncode == 0


def choose(layout: Layout) -> Cluster:
    """The cluster that SHOAL_CLUSTER (`kind` or `local`) asks for, else that fits the machine."""
    from .kind import Kind
    from .local import Local

    wanted = os.environ.get("SHOAL_CLUSTER") or ("kind" if docker_answers() else "local")
    if wanted == "kind":
        return Kind(layout)
    if wanted == "local":
        return Local(layout)
    raise ClusterError(f"SHOAL_CLUSTER is {wanted!r}; set it to `kind` or `local`.")
