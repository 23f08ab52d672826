"""Several brokers on this machine, for trying out: what is known of them, and their processes.

All is in one folder: `cluster.json` (the cluster's id, the nodes' ports and process ids), and for
each node N its data in `N/` and what it says in `N.log`. Nodes are each a voter and a broker.
Brokers listen on the ports from `--port` on, controllers on the ports after those. A cluster of an
earlier release gets ports for its controllers when it starts, and its voters move there (ADR 0052).
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
#: A node that has not said "Ready" for so long will not, as far as its user is concerned.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0
#: What a broker logs that ends without a controller.
NOT_HANDED_OVER = "without having handed over"
_LOOK_S = 0.05


@dataclass
class Node:
    """`controller_port` is 0 until it has one."""

    id: int
    port: int
    pid: int = 0
    controller_port: int = 0


@dataclass
class LocalCluster:
    """The nodes under one folder; `settings` are the broker configs that all have."""

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
        """Raises `Failed`."""
        for node in self.nodes:
            if node.id == id:
                return node
        known = ", ".join(str(node.id) for node in self.nodes)
        raise Failed(f"there is no broker {id} in {self.folder}: it has {known}")

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

    # Processes.

    def runs(self, node: Node) -> bool:
        """Whether the process is there, and is that node's and no later one with its number."""
        if not node.pid:
            return False
        try:
            os.kill(node.pid, 0)
            words = Path(f"/proc/{node.pid}/cmdline")
            return not words.parent.exists() or str(self.data(node)) in words.read_text()
        except OSError:
            return False

    def number_controllers(self) -> bool:
        """Give controllers of an earlier release free ports behind the brokers. Return whether
        there were any."""
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
        """Until it is ready. Raises `Failed` with what it said."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            said = self.log(node).read_text()
            if "\nReady after" in said:
                return
            _reap(node.pid)
            if not self.runs(node):
                last = said.strip().splitlines()[-1:] or ["it said nothing"]
                raise Failed(f"broker {node.id} did not start: {last[0]}")
            time.sleep(_LOOK_S)
        raise Failed(
            f"broker {node.id} is not ready after {START_TIMEOUT_S:.0f} s: see {self.log(node)}"
        )

    def stop(self, nodes: list[Node], *, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """Stop nodes, those cleanly that can within `timeout_s`, and kill the others: sentences
        about what went otherwise than it should. They are gone when this returns."""
        down = [node for node in nodes if not self.runs(node)]
        for node in nodes:
            if node not in down:
                os.kill(node.pid, signal.SIGTERM)
        killed = self._gone(nodes, timeout_s)
        self.kill(killed)
        # Where all stop together the last ones find no controller, as they should not.
        expected = len(nodes) == len(self.nodes) and not down and not killed
        said = {node.id: f"Broker {node.id} was down already." for node in down}
        for node in nodes:
            if node in killed:
                said[node.id] = (
                    f"Broker {node.id} was killed: it did not stop within {timeout_s:g} s. It will"
                    f" look through its logs when it starts. See {self.log(node)}"
                )
            elif node in down or expected:
                continue
            elif NOT_HANDED_OVER in self.log(node).read_text():
                said[node.id] = (
                    f"Broker {node.id} stopped, and no controller was there to take over what it"
                    " led. Nothing is lost by that."
                )
        self._forget(nodes)
        return [said[id] for id in sorted(said)]

    def kill(self, nodes: list[Node]) -> None:
        """End nodes as a crash would; they are gone when this returns."""
        for node in nodes:
            if self.runs(node):
                os.kill(node.pid, signal.SIGKILL)
        self._gone(nodes, None)
        self._forget(nodes)

    def _gone(self, nodes: list[Node], timeout_s: float | None) -> list[Node]:
        """Wait until their processes have ended: those that have not within that time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        left = nodes
        while left := [node for node in left if not _reap(node.pid) and self.runs(node)]:
            if end is not None and time.monotonic() > end:
                return left
            time.sleep(_LOOK_S)
        return []

    def _forget(self, nodes: list[Node]) -> None:
        """They have no process."""
        for node in nodes:
            node.pid = 0
        self.save()


def _reap(pid: int) -> bool:
    """Whether the process was a child of this one, and has ended."""
    if not pid:
        return False
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except OSError:
        return False


def found(folder: Path) -> LocalCluster | None:
    """The cluster in a folder, if there is one. Raises `Failed`."""
    try:
        known = json.loads((folder / STATE).read_text())
        nodes = [Node(**node) for node in known["nodes"]]
        return LocalCluster(folder.resolve(), known["cluster_id"], nodes, known["settings"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failed(f"{folder / STATE} cannot be read: {error}") from None


def made(folder: Path, brokers: int, port: int, settings: dict[str, str]) -> LocalCluster:
    """A new cluster, on ports from `port` on. Raises `Failed`."""
    if not 1 <= brokers <= NODES_MAX:
        raise Failed(f"--brokers is 1 to {NODES_MAX}, not {brokers}")
    ports = range(port, port + 2 * brokers)
    for one in ports:
        if not _is_free(one):
            raise Failed(
                f"another process listens on 127.0.0.1:{one}: stop it, or choose other ports by"
                " --port"
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
