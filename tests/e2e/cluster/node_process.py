"""One node of the local cluster: its files, and the process that holds its namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from . import host
from .commands import run, wait_for
from .control_plane import CONTAINERD_SOCKET
from .layout import ClusterError, Layout

UNSHARE = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
#: File of a node's state: the process that holds it.
PID = "node.pid"
#: containerd 1.6 holds no lease while it unpacks, so its garbage collector may delete a layer in
#: between. It runs once for many changes, so the next attempt succeeds.
LOAD_ATTEMPTS_MAX = 3


class NodeProcess:
    """The node with this number; `state` is its directory."""

    #: Kept so that a caller that continues does not leave it as a zombie.
    _held: subprocess.Popen[str] | None = None

    def __init__(self, layout: Layout, number: int, state: Path) -> None:
        self.layout, self.number, self.state = layout, number, state

    @property
    def name(self) -> str:
        return self.layout.node_name(self.number)

    @property
    def pid(self) -> int | None:
        """The process that holds the node, unless it ended or its number was reused."""
        file = self.state / PID
        if not file.exists():
            return None
        pid, started = file.read_text().split()
        return int(pid) if _start_time(int(pid)) == started else None

    @property
    def init(self) -> int:
        """The first process of the node. Raises `ClusterError` if it does not run."""
        pid = self.pid
        init = pid and _init_of(pid)
        if not init:
            raise ClusterError(f"Cluster {self.layout.name} is not up: start it with `up`.")
        return init

    def start(self) -> None:
        """Start the node, and connect it to the bridge once its network namespace exists."""
        init = Path(__file__).with_name("node.py")
        with (self.state / "log" / "node.log").open("ab") as log:
            node = subprocess.Popen(
                [*UNSHARE, "--mount-proc", sys.executable, "-I", str(init), str(self.state)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._held = node
        (self.state / PID).write_text(f"{node.pid} {_start_time(node.pid)}")
        assert node.stdin
        assert node.stdout
        if node.stdout.readline() != "namespaces\n":
            raise ClusterError(f"The node's namespaces could not be made: {self.log}")
        port = self.layout.port(self.number)
        link = ("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0")
        run(*link, "netns", str(node.pid))
        run("ip", "link", "set", port, "master", self.layout.link, "up")
        node.stdin.write("link\n")
        node.stdin.close()
        node.stdout.close()
        # Without this route the machine would answer pods through its uplink.
        pods, address = self.layout.pods_of(self.number), self.layout.address(self.number)
        run("ip", "route", "add", str(pods), "via", address)

    def end(self) -> None:
        """End the node with all its processes, and remove its port of the bridge."""
        if pid := self.pid:
            # The node's init ends last in its namespace, and the process that holds it follows.
            os.kill(_init_of(pid) or pid, signal.SIGKILL)
            wait_for("the node's process to end", lambda: self.pid is None, 30)
        if self._held:
            self._held.wait()
            self._held = None
        if (self.state / PID).exists():
            # The kernel also removes it with the node's namespaces, but later: after those of some
            # dozen pods, which was seen to take longer than 30 s.
            host.remove_link(self.layout.port(self.number))

    def look_at_stopped(self) -> None:
        """Make the node's init read again which processes must not run."""
        os.kill(self.init, signal.SIGHUP)

    def run(self, *argv: str) -> None:
        """Run a program on the node. Raises `ClusterError` if it fails."""
        run("nsenter", f"--target={self.init}", "--mount", "--net", "--pid", *argv)

    def load(self, archive: Path) -> None:
        """Load an image into the node's containerd."""
        command = ("--namespace=k8s.io", "images", "import", "-")
        for attempt in range(1, LOAD_ATTEMPTS_MAX + 1):
            # By standard input: at the archive's path the node may have other directories.
            with archive.open("rb") as stream:
                last = attempt == LOAD_ATTEMPTS_MAX
                if self._ctr(*command, stdin=stream, last=last):
                    return

    def pulls(self) -> bool:
        """Return whether containerd answers."""
        return self.pid is not None and self._ctr(f"--address={CONTAINERD_SOCKET}", "version")

    def _ctr(self, *argv: str, stdin: IO[bytes] | None = None, last: bool = False) -> bool:
        if self.pid is None:
            raise ClusterError(f"Cluster {self.layout.name} is not up: start it with `up`.")
        inside = ("nsenter", f"--target={self.pid}", "--mount", "--net")
        return run(*inside, "ctr", *argv, stdin=stdin, check=last).returncode == 0

    @property
    def log(self) -> str:
        return (self.state / "log" / "node.log").read_text().strip()


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
