"""The test cluster without Docker: a real single-node Kubernetes in separate namespaces.

One `unshare` holds the node: its network, mount, process, host name and IPC namespaces. When that
process ends, the kubelet, the control plane, every container and the link end too. `host` restores
the rest. The node reaches the machine, and the machine reaches pods and Services, over one link;
nothing is forwarded beyond it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import control_plane, host
from .backend import Cluster
from .commands import run, wait_for
from .control_plane import CONTAINERD_SOCKET, NODE_NAME
from .images import pause_archive
from .layout import ClusterError
from .programs import program

UNSHARE = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
#: Files of the state directory: the process that holds the node, and the machine's former settings.
NODE, SYSCTLS = "node.pid", "sysctls.json"
CERTIFICATES = (
    "ca",
    "apiserver",
    "apiserver-kubelet-client",
    "front-proxy-ca",
    "front-proxy-client",
)
#: containerd 1.6 holds no lease while it unpacks, so its garbage collector may delete a layer in
#: between. It runs once for many changes, so the next attempt succeeds.
LOAD_ATTEMPTS_MAX = 3
#: `up` removes a node, with everything in it, that runs but has not answered for this time.
ANSWER_S = 60.0


class Local(Cluster):
    """A cluster whose node is a process of this machine."""

    kind = "local"
    #: Kept so that a caller that continues does not leave it as a zombie.
    _node: subprocess.Popen[str] | None = None

    def is_up(self) -> bool:
        """Whether it serves; on a busy machine a running node may be slow to answer."""
        deadline = time.monotonic() + ANSWER_S
        while self._node_pid() is not None:
            if self._answers():
                return True
            if time.monotonic() > deadline:
                return False
        return False

    def stop_kubelet(self) -> None:
        (self.state / "stopped" / "kubelet").touch()
        self._look_at_stopped()

    def start_kubelet(self) -> None:
        (self.state / "stopped" / "kubelet").unlink(missing_ok=True)
        self._look_at_stopped()

    def in_node(self, *argv: str) -> None:
        pid = self._node_pid()
        init = pid and _init_of(pid)
        if not init:
            raise ClusterError(f"Cluster {self.layout.name} is not up: start it with `up`.")
        run("nsenter", f"--target={init}", "--mount", "--net", "--pid", *argv)

    def _require(self) -> None:
        host.require_root()

    def _up(self) -> None:
        self._provide()
        host.require_free_addresses(self.layout)
        host.save_sysctls(self.state / SYSCTLS)
        host.create_cgroups(self.layout)
        self._write_files()
        self._make_certificates()
        self.laps("certificates are made")
        self._start_node()
        wait_for("the API server (see log/)", self._serves, 60)
        self.laps("the API server is ready")
        self.kubectl(
            "--kubeconfig",
            self.state / "pki" / "super-admin.conf",
            "apply",
            "--filename=-",
            stdin_text=control_plane.objects(self.layout),
        )
        wait_for("containerd", self._pulls, 30)
        self._load(pause_archive())
        wait_for("the node", self._is_node_registered, 60)
        self.kubectl("wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=60s")
        self.laps("the node is Ready")
        wait_for("the first ServiceAccount", self._has_service_account, 30)

    def _provide(self) -> None:
        """Compile in one thread while Debian's packages are installed in another."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            # One after the other: each compilation keeps all processors busy.
            programs = pool.submit(lambda: [program(n) for n in ("kubectl", "coredns", "pause")])
            host.install_packages()
            self.laps("Debian packages are installed")
            programs.result()
        self.laps("programs are built")
        pause_archive()

    def _write_files(self) -> None:
        state = self.state
        for name in ("log", "pki", "etcd", "var", "volumes", "stopped", "cni"):
            (state / name).mkdir(exist_ok=True)
        v1 = not (host.CGROUPS / "cgroup.controllers").exists()
        for name, text in control_plane.files(self.layout, cgroup_v1=v1).items():
            (state / name).write_text(text)
        node = {
            "address": self.layout.node_address,
            "prefix": self.layout.node_network.prefixlen,
            "gateway": self.layout.host_address,
            # overlayfs, which containers use, cannot be mounted on overlayfs.
            "in_memory": bool(os.environ.get("SHOAL_CLUSTER_IN_MEMORY")) or _is_overlay(state),
            "processes": control_plane.processes(self.layout, program("hyper"), program("coredns")),
        }
        (state / "node.json").write_text(json.dumps(node, indent=1))

    def _make_certificates(self) -> None:
        hyper, pki = program("hyper"), self.state / "pki"
        config = self.state / "kubeadm.yaml"
        config.write_text(control_plane.kubeadm_config(self.layout, pki))
        for name in CERTIFICATES:
            run(hyper, "kubeadm", "init", "phase", "certs", name, f"--config={config}")
        run(hyper, "kubeadm", "init", "phase", "certs", "sa", f"--cert-dir={pki}")
        phase = ("kubeadm", "init", "phase", "kubeconfig", "all", f"--kubeconfig-dir={pki}")
        run(hyper, *phase, f"--config={config}")
        user = ("kubeadm", "kubeconfig", "user", "--client-name=system:kube-proxy")
        proxy = run(hyper, *user, f"--config={config}").stdout
        (pki / "kube-proxy.conf").write_text(proxy)
        shutil.copy(pki / "admin.conf", self.kubeconfig)

    def _start_node(self) -> None:
        """Start the node, and add its link once its network namespace exists."""
        layout, state = self.layout, self.state
        init = Path(__file__).with_name("node.py")
        with (state / "log" / "node.log").open("ab") as log:
            node = subprocess.Popen(
                [*UNSHARE, "--mount-proc", sys.executable, "-I", str(init), str(state)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._node = node
        (state / NODE).write_text(f"{node.pid} {_start_time(node.pid)}")
        assert node.stdin
        assert node.stdout
        if node.stdout.readline() != "namespaces\n":
            reason = (state / "log" / "node.log").read_text().strip()
            raise ClusterError(f"The node's namespaces could not be made: {reason}")
        link = ("ip", "link", "add", layout.link, "type", "veth", "peer", "name", "eth0")
        run(*link, "netns", str(node.pid))
        run("ip", "address", "add", f"{layout.host_address}/30", "dev", layout.link)
        run("ip", "link", "set", layout.link, "up")
        node.stdin.write("link\n")
        node.stdin.close()
        node.stdout.close()
        # Without these routes the machine would answer pods through its uplink.
        for network in (layout.pod_network, layout.service_network):
            run("ip", "route", "add", str(network), "via", layout.node_address)

    def _down(self) -> None:
        if pid := self._node_pid():
            # The node's init ends last in its namespace, and the process that holds it follows.
            os.kill(_init_of(pid) or pid, signal.SIGKILL)
            wait_for("the node's process to end", lambda: self._node_pid() is None, 30)
        if self._node:
            self._node.wait()
            self._node = None
        if not self.state.exists():
            return
        if (self.state / NODE).exists():
            link = Path("/sys/class/net") / self.layout.link
            # The kernel also removes it with the node's namespaces, but later: after those of some
            # dozen pods, which was seen to take longer than 30 s.
            run("ip", "link", "delete", self.layout.link, check=False)
            wait_for(f"the link {self.layout.link} to go", lambda: not link.exists(), 30)
        host.remove_cgroups(self.layout)
        host.restore_sysctls(self.state / SYSCTLS)
        shutil.rmtree(self.state)

    def _load(self, archive: Path) -> None:
        pid = self._node_pid()
        if pid is None:
            raise ClusterError(f"Cluster {self.layout.name} is not up: start it with `up`.")
        command = (*_inside(pid), "ctr", "--namespace=k8s.io", "images", "import", "-")
        for attempt in range(1, LOAD_ATTEMPTS_MAX + 1):
            # By standard input: at the archive's path the node may have other directories.
            with archive.open("rb") as stream:
                last = attempt == LOAD_ATTEMPTS_MAX
                if run(*command, stdin=stream, check=last).returncode == 0:
                    return

    def _node_pid(self) -> int | None:
        """Return the process that holds the node, unless it ended or its number was reused."""
        file = self.state / NODE
        if not file.exists():
            return None
        pid, started = file.read_text().split()
        return int(pid) if _start_time(int(pid)) == started else None

    def _look_at_stopped(self) -> None:
        pid = self._node_pid()
        init = pid and _init_of(pid)
        if not init:
            raise ClusterError(f"Cluster {self.layout.name} is not up: start it with `up`.")
        os.kill(init, signal.SIGHUP)

    def _serves(self) -> bool:
        if self._node_pid() is None:
            reason = (self.state / "log" / "node.log").read_text().strip()
            raise ClusterError(f"The node ended: {reason}")
        return self._answers()

    def _pulls(self) -> bool:
        pid = self._node_pid()
        version = ("ctr", f"--address={CONTAINERD_SOCKET}", "version")
        return pid is not None and run(*_inside(pid), *version, check=False).returncode == 0

    def _is_node_registered(self) -> bool:
        return self.kubectl("get", "node", NODE_NAME, check=False).returncode == 0

    def _has_service_account(self) -> bool:
        get = ("get", "serviceaccount", "default", "--namespace=default")
        return self.kubectl(*get, check=False).returncode == 0


def _inside(pid: int) -> tuple[str, ...]:
    return ("nsenter", f"--target={pid}", "--mount", "--net")


def _init_of(pid: int) -> int | None:
    """Return the first process of the node, if the process that holds the node has started it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def _start_time(pid: int) -> str | None:
    """Return the clock ticks from boot to the start of a running process, else None."""
    try:
        # The second field, the name in parentheses, may itself hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    state, started = fields[0], fields[19]
    return None if state == "Z" else started


def _is_overlay(path: Path) -> bool:
    return run("stat", "--file-system", "--format=%T", path).stdout.strip() == "overlayfs"
