"""The test cluster without Docker: a real Kubernetes of one or more nodes in separate namespaces.

One `unshare` holds each node: its network, mount, process, host name and IPC namespaces. When that
process ends, its kubelet, every container and, with the first node, the control plane end too.
`host` restores the rest. The nodes and the machine reach each other, pods and Services over one
bridge; nothing is forwarded beyond it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from . import control_plane, host
from .backend import Cluster
from .commands import run, wait_for
from .images import pause_archive
from .layout import ClusterError
from .node_process import NodeProcess
from .programs import program

if TYPE_CHECKING:
    from pathlib import Path

#: Files of the state directory: the machine's former settings, and the nodes except for the first.
SYSCTLS, NODES = "sysctls.json", "nodes"
CERTIFICATES = (
    "ca",
    "apiserver",
    "apiserver-kubelet-client",
    "front-proxy-ca",
    "front-proxy-client",
)
#: What a node without the control plane needs of the certificates.
NODE_PKI = ("ca.crt", "kube-proxy.conf", "super-admin.conf")
#: `up` removes a node, with everything in it, that runs but has not answered for this time.
ANSWER_S = 60.0


class Local(Cluster):
    """A cluster whose nodes are processes of this machine."""

    kind = "local"
    programs = ("hyper", "coredns", "pause", "helm")
    #: Empty until the cluster is started or found.
    _found: tuple[NodeProcess, ...] = ()

    @property
    def _nodes(self) -> tuple[NodeProcess, ...]:
        """The nodes: those of a cluster that has been started, else those of the layout."""
        folder = self.state / NODES
        count = 1 + len(list(folder.iterdir())) if folder.exists() else self.layout.nodes
        if len(self._found) != count:
            self._found = tuple(
                NodeProcess(self.layout, n, self._state_of(n)) for n in range(count)
            )
        return self._found

    def _state_of(self, node: int) -> Path:
        return self.state / NODES / self.layout.node_name(node) if node else self.state

    def is_up(self) -> bool:
        """Whether it serves; on a busy machine a running node may be slow to answer."""
        deadline = time.monotonic() + ANSWER_S
        while self.state.exists() and all(node.pid for node in self._nodes):
            if self._answers():
                return True
            if time.monotonic() > deadline:
                return False
        return False

    def stop_kubelet(self) -> None:
        (self.state / "stopped" / "kubelet").touch()
        self._nodes[0].look_at_stopped()

    def start_kubelet(self) -> None:
        (self.state / "stopped" / "kubelet").unlink(missing_ok=True)
        self._nodes[0].look_at_stopped()

    def in_node(self, *argv: str) -> None:
        self._nodes[0].run(*argv)

    def name_image(self, image: str, other: str) -> None:
        for node in self._nodes:
            node.run("ctr", "--namespace=k8s.io", "images", "tag", "--force", image, other)

    def require(self) -> None:
        host.require_root()

    def _up(self) -> None:
        self._provide()
        host.require_free_addresses(self.layout)
        host.save_sysctls(self.state / SYSCTLS)
        host.create_cgroups(self.layout)
        # From now on, this directory has the number of nodes.
        (self.state / NODES).mkdir()
        for number in range(1, self.layout.nodes):
            self._state_of(number).mkdir()
        first, *others = self._nodes
        self._write_files(first)
        self._make_certificates()
        self.laps("certificates are made")
        host.add_bridge(self.layout)
        first.start()
        wait_for("the API server (see log/)", self._serves, 60)
        self.laps("the API server is ready")
        self.kubectl(
            "--kubeconfig",
            self.state / "pki" / "super-admin.conf",
            "apply",
            "--filename=-",
            stdin_text=control_plane.objects(self.layout),
        )
        self._join(first)
        for node in others:
            self._write_files(node)
            self._copy_certificates(node)
            node.start()
            self._join(node)
        wait_for("the first ServiceAccount", self._has_service_account, 30)

    def _join(self, node: NodeProcess) -> None:
        """Wait until a node that has been started is Ready."""
        wait_for(f"containerd of {node.name}", node.pulls, 30)
        node.load(pause_archive())
        wait_for(node.name, lambda: self._is_registered(node), 60)
        self.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=60s")
        self.laps(f"{node.name} is Ready")

    def install(self) -> None:
        self.require()
        host.install_packages()
        self.laps("Debian packages are installed")

    def _provide(self) -> None:
        """Compile in one thread while Debian's packages are installed in another."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            installed = pool.submit(self.install)
            # One after the other: each compilation keeps all processors busy.
            for name in self.programs:
                program(name)
                self.laps(f"{name} is built")
            installed.result()
        pause_archive()

    def _write_files(self, node: NodeProcess) -> None:
        layout, state = self.layout, node.state
        for name in ("log", "pki", "etcd", "var", "volumes", "stopped", "cni"):
            (state / name).mkdir(exist_ok=True)
        v1 = not (host.CGROUPS / "cgroup.controllers").exists()
        for name, text in control_plane.files(layout, node.number, cgroup_v1=v1).items():
            (state / name).write_text(text)
        hyper, coredns = program("hyper"), program("coredns")
        others = [n for n in range(layout.nodes) if n != node.number]
        settings = {
            "address": layout.address(node.number),
            "prefix": layout.node_network.prefixlen,
            "gateway": layout.host_address,
            "routes": {str(layout.pods_of(n)): layout.address(n) for n in others},
            # overlayfs, which containers use, cannot be mounted on overlayfs.
            "in_memory": bool(os.environ.get("SHOAL_CLUSTER_IN_MEMORY")) or _is_overlay(state),
            "processes": control_plane.processes(layout, node.number, hyper, coredns),
        }
        (state / "node.json").write_text(json.dumps(settings, indent=1))

    def _make_certificates(self) -> None:
        hyper, pki = program("hyper"), self.state / "pki"
        config = self.state / "kubeadm.yaml"
        config.write_text(control_plane.kubeadm_config(self.layout, pki))
        for name in CERTIFICATES:
            run(hyper, "kubeadm", "init", "phase", "certs", name, f"--config={config}")
        run(hyper, "kubeadm", "init", "phase", "certs", "sa", f"--cert-dir={pki}")
        phase = ("kubeadm", "init", "phase", "kubeconfig", "all", f"--kubeconfig-dir={pki}")
        run(hyper, *phase, f"--config={config}")
        (pki / "kube-proxy.conf").write_text(self._access_of("system:kube-proxy"))
        shutil.copy(pki / "admin.conf", self.kubeconfig)

    def _copy_certificates(self, node: NodeProcess) -> None:
        """Give a node without the control plane its own certificates and those that it needs."""
        for name in NODE_PKI:
            shutil.copy(self.state / "pki" / name, node.state / "pki")
        own = self._access_of(f"system:node:{node.name}", "--org=system:nodes")
        (node.state / "pki" / "kubelet.conf").write_text(own)

    def _access_of(self, user: str, *argv: str) -> str:
        """Return a new kubeconfig for a user."""
        command = ("kubeadm", "kubeconfig", "user", f"--client-name={user}", *argv)
        return run(program("hyper"), *command, f"--config={self.state / 'kubeadm.yaml'}").stdout

    def _down(self) -> None:
        for node in reversed(self._nodes):
            node.end()
        if not self.state.exists():
            return
        host.remove_link(self.layout.link)
        host.remove_cgroups(self.layout)
        host.restore_sysctls(self.state / SYSCTLS)
        shutil.rmtree(self.state)

    def _load(self, archive: Path) -> None:
        for node in self._nodes:
            node.load(archive)

    def _serves(self) -> bool:
        first, *_ = self._nodes
        if first.pid is None:
            raise ClusterError(f"The node ended: {first.log}")
        return self._answers()

    def _is_registered(self, node: NodeProcess) -> bool:
        return self.kubectl("get", "node", node.name, check=False).returncode == 0

    def _has_service_account(self) -> bool:
        get = ("get", "serviceaccount", "default", "--namespace=default")
        return self.kubectl(*get, check=False).returncode == 0


def _is_overlay(path: Path) -> bool:
    return run("stat", "--file-system", "--format=%T", path).stdout.strip() == "overlayfs"
