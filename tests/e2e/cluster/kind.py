"""The test cluster with a Docker engine: one kind node, of the same Kubernetes version."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from .backend import Cluster, docker_answers, tool
from .commands import run
from .layout import KUBERNETES_VERSION, POLICIES, POLICIES_API, ClusterError
from .programs import program

if TYPE_CHECKING:
    from pathlib import Path

#: kind's own release notes list the node image of each Kubernetes version.
NODE_IMAGE = f"kindest/node:{KUBERNETES_VERSION}"
CONFIG = {
    "kind": "Cluster",
    "apiVersion": "kind.x-k8s.io/v1alpha4",
    "featureGates": {POLICIES: True},
    "runtimeConfig": {POLICIES_API: "true"},
}


class Kind(Cluster):
    """A cluster of the kind command; its node is a container."""

    kind = "kind"

    def is_up(self) -> bool:
        return self._answers()

    def stop_kubelet(self) -> None:
        run("docker", "exec", self._node, "systemctl", "stop", "kubelet")

    def start_kubelet(self) -> None:
        run("docker", "exec", self._node, "systemctl", "start", "kubelet")

    def in_node(self, *argv: str) -> None:
        run("docker", "exec", self._node, *argv)

    @property
    def _node(self) -> str:
        return f"{self.layout.name}-control-plane"

    def _require(self) -> None:
        if not docker_answers():
            raise ClusterError("kind needs a Docker engine, and none answers `docker version`.")

    def _provide(self) -> None:
        tool("kubectl"), tool("helm")
        self.laps("programs are installed")

    def _up(self) -> None:
        self._provide()
        config = self.state / "kind.json"
        config.write_text(json.dumps(CONFIG))
        create = ("create", "cluster", f"--image={NODE_IMAGE}", "--wait=180s", f"--config={config}")
        self._kind(*create, f"--kubeconfig={self.kubeconfig}")
        self.laps("the node is Ready")

    def _down(self) -> None:
        if self.state.exists():
            self._kind("delete", "cluster", f"--kubeconfig={self.kubeconfig}")
        shutil.rmtree(self.state, ignore_errors=True)

    def _load(self, archive: Path) -> None:
        self._kind("load", "image-archive", str(archive))

    def _kind(self, *argv: str) -> None:
        installed = shutil.which("kind")
        run(installed or program("kind"), *argv, f"--name={self.layout.name}")
