"""The state and the processes of a test cluster on this machine.

One folder holds everything: `cluster.json` with the cluster id and the nodes' ports and process
ids, and for each node N its data in `N/` and its log in `N.log`. Each node is a voter and a broker.
Brokers listen on the ports from `--port` on, controllers on the ports after those. A cluster of an
earlier release gets controller ports when it starts, and its voters move there (ADR 52).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from shoal.cli.session import Failed
from shoal.log.uuids import uuid_text

STATE = "cluster.json"
NODES_MAX = 9
#: Seconds until a node without its "Ready" line counts as failed.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0
#: The broker's log message when it stops without a controller.
NOT_HANDED_OVER = "without having handed over"
_LOOK_S = 0.05


@dataclass
class Node:
    """One broker. `controller_port` is 0 until one is assigned."""

    id: int
    port: int
    pid: int = 0
    controller_port: int = 0


@dataclass
class LocalCluster:
    """The nodes in one folder; `settings` are their common broker configs."""

    folder: Path
    cluster_id: str
    nodes: list[Node]
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def quorum(self) -> str:
        return ",".join(f"{node.id}@127.0.0.1:{node.controller_port}" for node in self.nodes)

    def node(self, id: int) -> Node:
        """Return the node with this id. Raises `Failed`."""
        for node in self.nodes:
            if node.id == id:
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise Failed(f"there is no broker {id} in {self.folder}. Its brokers are {known}.")

    def data(self, node: Node) -> Path:
        return self.folder / str(node.id)

    def log(self, node: Node) -> Path:
        return self.folder / f"{node.id}.log"

    def save(self) -> None:
        found = {
            "cluster_id": self.cluster_id,
            "settings": self.settings,
            "nodes": [asdict(node) for node in self.nodes],
        }
        fresh = self.folder / f"{STATE}.new"
        fresh.write_text(json.dumps(found, indent=1))
        fresh.replace(self.folder / STATE)

    # Processes

    def runs(self, node: Node) -> bool:
        """Whether the node's process runs, and its pid is not another process's now."""
        if not node.pid:
            return False
        try:
            os.kill(node.pid, 0)
            words = Path(f"/proc/{node.pid}/cmdline")
            return not words.parent.exists() or str(self.data(node)) in words.read_text()
        except OSError:
            return False

    def number_controllers(self) -> bool:
        """Assign free ports after the brokers' to controllers of an earlier release. Return whether
        there were any.
        """
        lacking = [node for node in self.nodes if not node.controller_port]
        port = max(node.port for node in self.nodes) + 1
        for node in lacking:
            while not _is_free(port):
                port += 1
            node.controller_port = port
            port += 1
        return bool(lacking)

    def launch(self, node: Node) -> None:
        words = [
            sys.executable,
            "-m",
            "shoal.cli",
            "server",
            f"--node-id={node.id}",
            f"--listener=127.0.0.1:{node.port}",
            f"--quorum={self.quorum}",
            f"--cluster-id={self.cluster_id}",
            f"--data-dir={self.data(node)}",
            *(f"--set={name}={value}" for name, value in self.settings.items()),
        ]
        with self.log(node).open("w") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node.pid = process.pid
        self.save()

    def wait(self, node: Node) -> None:
        """Wait until the node is ready. Raises `Failed` with its last output."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            said = self.log(node).read_text()
            if "\nReady after" in said:
                return
            _reap(node.pid)
            if not self.runs(node):
                last = said.strip().splitlines()[-1:] or ["it printed nothing"]
                raise Failed(f"broker {node.id} did not start: {last[0]}")
            time.sleep(_LOOK_S)
        raise Failed(
            f"broker {node.id} is not ready after {START_TIMEOUT_S:.0f} s. See {self.log(node)}."
        )

    def stop(self, nodes: list[Node], *, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """Stop nodes and kill those that run after `timeout_s`. Return sentences about deviations.

        The processes have ended when this returns.
        """
        down = [node for node in nodes if not self.runs(node)]
        for node in nodes:
            if node not in down:
                os.kill(node.pid, signal.SIGTERM)
        killed = self._gone(nodes, timeout_s)
        self.kill(killed)
        # When all nodes stop together, the last ones find no controller. That is expected.
        expected = len(nodes) == len(self.nodes) and not down and not killed
        said = {node.id: f"Broker {node.id} was already stopped." for node in down}
        for node in nodes:
            if node in killed:
                said[node.id] = (
                    f"Broker {node.id} was killed: it did not stop within {timeout_s:g} s. It"
                    f" will recover its logs at the next start. See {self.log(node)}"
                )
            elif node in down or expected:
                continue
            elif NOT_HANDED_OVER in self.log(node).read_text():
                said[node.id] = (
                    f"Broker {node.id} stopped without a controller that could move its leaders to"
                    " other brokers. No data is lost."
                )
        self._forget(nodes)
        return [said[id] for id in sorted(said)]

    def kill(self, nodes: list[Node]) -> None:
        """Kill nodes as a crash would. The processes have ended when this returns."""
        for node in nodes:
            if self.runs(node):
                os.kill(node.pid, signal.SIGKILL)
        self._gone(nodes, None)
        self._forget(nodes)

    def _gone(self, nodes: list[Node], timeout_s: float | None) -> list[Node]:
        """Wait until the processes of nodes have ended; return those that still run after the
        timeout.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        left = nodes
        while left := [node for node in left if not _reap(node.pid) and self.runs(node)]:
            if end is not None and time.monotonic() > end:
                return left
            time.sleep(_LOOK_S)
        return []

    def _forget(self, nodes: list[Node]) -> None:
        """Clear the process ids of nodes."""
        for node in nodes:
            node.pid = 0
        self.save()


def _reap(pid: int) -> bool:
    """Whether the process was a child of this one and has ended."""
    if not pid:
        return False
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except OSError:
        return False


def found(folder: Path) -> LocalCluster | None:
    """Return the cluster in a folder, or None. Raises `Failed`."""
    try:
        known = json.loads((folder / STATE).read_text())
        nodes = [Node(**node) for node in known["nodes"]]
        return LocalCluster(folder.resolve(), known["cluster_id"], nodes, known["settings"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failed(f"{folder / STATE} cannot be read: {error}") from None


def made(folder: Path, brokers: int, port: int, settings: dict[str, str]) -> LocalCluster:
    """Return a new cluster on ports from `port` on. Raises `Failed`."""
    if not 1 <= brokers <= NODES_MAX:
        raise Failed(f"--brokers must be 1 to {NODES_MAX}, not {brokers}.")
    ports = range(port, port + 2 * brokers)
    for one in ports:
        if not _is_free(one):
            raise Failed(
                f"another process listens on 127.0.0.1:{one}. Stop it, or choose other ports with"
                " --port."
            )
    nodes = [
        Node(id, ports[id - 1], controller_port=ports[brokers + id - 1])
        for id in range(1, brokers + 1)
    ]
    replicas = str(min(3, brokers))
    defaults = {
        "default.replication.factor": replicas,
        "min.insync.replicas": str(max(1, min(2, brokers - 1))),
    }
    folder.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(folder.resolve(), uuid_text(uuid4()), nodes, defaults | settings)
    cluster.save()
    return cluster


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True
