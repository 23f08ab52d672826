"""The test cluster with a Docker engine: nodes of kind, of the same Kubernetes version."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from .backend import Cluster, docker_answers, tool
from .commands import run
from .layout import KUBERNETES_VERSION, POLICIES, POLICIES_API, ZONE, ClusterError, Layout
from .programs import program

if TYPE_CHECKING:
    from pathlib import Path

#: kind's own release notes list the node image of each Kubernetes version.
NODE_IMAGE = f"kindest/node:{KUBERNETES_VERSION}"
NO_TAINTS = {"kind": "InitConfiguration", "nodeRegistration": {"taints": []}}


def config(layout: Layout) -> dict[str, object]:
    """Return the configuration of a cluster; each node has a zone of its own."""
    nodes = [
        {
            "role": "worker" if node else "control-plane",
            "labels": {ZONE: layout.zone(node)},
            # kind keeps pods off a control plane that has workers.
            **({} if node else {"kubeadmConfigPatches": [json.dumps(NO_TAINTS)]}),
        }
        for node in range(layout.nodes)
    ]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "featureGates": {POLICIES: True},
        "runtimeConfig": {POLICIES_API: "true"},
        "nodes": nodes,
    }


class Kind(Cluster):
    """A cluster of the kind command; its nodes are containers."""

    kind = "kind"

    def is_up(self) -> bool:
        return self._answers()

    def stop_kubelet(self) -> None:
        run("docker", "exec", self._node, "systemctl", "stop", "kubelet")

    def start_kubelet(self) -> None:
        run("docker", "exec", self._node, "systemctl", "start", "kubelet")

    def in_node(self, *argv: str) -> None:
        run("docker", "exec", self._node, *argv)

    def name_image(self, image: str, other: str) -> None:
        for node in self._kind("get", "nodes").split():
            tag = ("ctr", "--namespace=k8s.io", "images", "tag", "--force", image, other)
            run("docker", "exec", node, *tag)

    @property
    def _node(self) -> str:
        return f"{self.layout.name}-control-plane"

    def require(self) -> None:
        if not docker_answers():
            raise ClusterError("kind needs a Docker engine, and none answers `docker version`.")

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(name for name in ("kubectl", "helm", "kind") if not shutil.which(name))

    def install(self) -> None:
        """Docker brings all that building an image takes."""

    def _provide(self) -> None:
        tool("kubectl"), tool("helm")
        self.laps("programs are installed")

    def _up(self) -> None:
        self._provide()
        file = self.state / "kind.json"
        file.write_text(json.dumps(config(self.layout)))
        create = ("create", "cluster", f"--image={NODE_IMAGE}", "--wait=180s", f"--config={file}")
        self._kind(*create, f"--kubeconfig={self.kubeconfig}")
        self.laps("the node is Ready")

    def _down(self) -> None:
        if self.state.exists():
            self._kind("delete", "cluster", f"--kubeconfig={self.kubeconfig}")
        shutil.rmtree(self.state, ignore_errors=True)

    def _load(self, archive: Path) -> None:
        self._kind("load", "image-archive", str(archive))

    def _kind(self, *argv: str) -> str:
        installed = shutil.which("kind")
        return run(installed or program("kind"), *argv, f"--name={self.layout.name}").stdout
