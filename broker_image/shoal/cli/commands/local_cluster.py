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

from shoal.cli.session import CommandError
from shoal.log.uuids import format_uuid

STATE = "cluster.json"
NODES_MAX = 9
#: Seconds until a node without its "Ready" line counts as failed.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0
#: The broker's log message when it stops without a controller.
NOT_HANDED_OVER = "without having handed over"
_LOOK_S = 0.05


@dataclass
class LocalNode:
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
    nodes: list[LocalNode]
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def quorum(self) -> str:
        return ",".join(f"{node.id}@127.0.0.1:{node.controller_port}" for node in self.nodes)

    def find_node(self, id: int) -> LocalNode:
        """Return the node with this id. Raises `CommandError`."""
        for node in self.nodes:
            if node.id == id:
                return node
        ids = ", ".join(str(node.id) for node in self.nodes)
        raise CommandError(f"there is no broker {id} in {self.folder}. Its brokers are {ids}.")

    def get_data_dir(self, node: LocalNode) -> Path:
        return self.folder / str(node.id)

    def get_log_path(self, node: LocalNode) -> Path:
        return self.folder / f"{node.id}.log"

    def save(self) -> None:
        state = {
            "cluster_id": self.cluster_id,
            "settings": self.settings,
            "nodes": [asdict(node) for node in self.nodes],
        }
        fresh = self.folder / f"{STATE}.new"
        fresh.write_text(json.dumps(state, indent=1))
        fresh.replace(self.folder / STATE)

    # Processes

    def is_running(self, node: LocalNode) -> bool:
        """Whether the node's process runs, and its pid is not another process's now."""
        if not node.pid:
            return False
        try:
            os.kill(node.pid, 0)
            words = Path(f"/proc/{node.pid}/cmdline")
            return not words.parent.exists() or str(self.get_data_dir(node)) in words.read_text()
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

    def launch(self, node: LocalNode) -> None:
        words = [
            sys.executable,
            "-m",
            "shoal.cli",
            "server",
            f"--node-id={node.id}",
            f"--listener=127.0.0.1:{node.port}",
            f"--quorum={self.quorum}",
            f"--cluster-id={self.cluster_id}",
            f"--data-dir={self.get_data_dir(node)}",
            *(f"--set={name}={value}" for name, value in self.settings.items()),
        ]
        with self.get_log_path(node).open("w") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node.pid = process.pid
        self.save()

    def wait_until_ready(self, node: LocalNode) -> None:
        """Wait until the node is ready. Raises `CommandError` with its last output."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            output = self.get_log_path(node).read_text()
            if "\nReady after" in output:
                return
            _reap(node.pid)
            if not self.is_running(node):
                last = output.strip().splitlines()[-1:] or ["it printed nothing"]
                raise CommandError(f"broker {node.id} did not start: {last[0]}")
            time.sleep(_LOOK_S)
        raise CommandError(
            f"broker {node.id} is not ready after {START_TIMEOUT_S:.0f} s. See "
            f"{self.get_log_path(node)}."
        )

    def stop(self, nodes: list[LocalNode], *, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """Stop nodes and kill those that run after `timeout_s`. Return sentences about deviations.

        The processes have ended when this returns.
        """
        down = [node for node in nodes if not self.is_running(node)]
        for node in nodes:
            if node not in down:
                os.kill(node.pid, signal.SIGTERM)
        killed = self._wait_until_ended(nodes, timeout_s)
        self.kill(killed)
        # When all nodes stop together, the last ones find no controller. That is expected.
        expected = len(nodes) == len(self.nodes) and not down and not killed
        sentences = {node.id: f"Broker {node.id} was already stopped." for node in down}
        for node in nodes:
            if node in killed:
                sentences[node.id] = (
                    f"Broker {node.id} was killed: it did not stop within {timeout_s:g} s. It"
                    f" will recover its logs at the next start. See {self.get_log_path(node)}"
                )
            elif node in down or expected:
                continue
            elif NOT_HANDED_OVER in self.get_log_path(node).read_text():
                sentences[node.id] = (
                    f"Broker {node.id} stopped without a controller that could move its leaders to"
                    " other brokers. No data is lost."
                )
        self._forget(nodes)
        return [sentences[id] for id in sorted(sentences)]

    def kill(self, nodes: list[LocalNode]) -> None:
        """Kill nodes as a crash would. The processes have ended when this returns."""
        for node in nodes:
            if self.is_running(node):
                os.kill(node.pid, signal.SIGKILL)
        self._wait_until_ended(nodes, None)
        self._forget(nodes)

    def _wait_until_ended(self, nodes: list[LocalNode], timeout_s: float | None) -> list[LocalNode]:
        """Wait until the processes of nodes have ended; return those that still run after the
        timeout.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        remaining = nodes
        while remaining := [
            node for node in remaining if not _reap(node.pid) and self.is_running(node)
        ]:
            if end is not None and time.monotonic() > end:
                return remaining
            time.sleep(_LOOK_S)
        return []

    def _forget(self, nodes: list[LocalNode]) -> None:
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


def load_cluster(folder: Path) -> LocalCluster | None:
    """Return the cluster in a folder, or None. Raises `CommandError`."""
    try:
        state = json.loads((folder / STATE).read_text())
        nodes = [LocalNode(**node) for node in state["nodes"]]
        return LocalCluster(folder.resolve(), state["cluster_id"], nodes, state["settings"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{folder / STATE} cannot be read: {error}") from None


def create_cluster(folder: Path, brokers: int, port: int, settings: dict[str, str]) -> LocalCluster:
    """Return a new cluster on ports from `port` on. Raises `CommandError`."""
    if not 1 <= brokers <= NODES_MAX:
        raise CommandError(f"--brokers must be 1 to {NODES_MAX}, not {brokers}.")
    ports = range(port, port + 2 * brokers)
    for node_port in ports:
        if not _is_free(node_port):
            raise CommandError(
                f"another process listens on 127.0.0.1:{node_port}. Stop it, or choose other ports "
                "with --port."
            )
    nodes = [
        LocalNode(id, ports[id - 1], controller_port=ports[brokers + id - 1])
        for id in range(1, brokers + 1)
    ]
    replicas = str(min(3, brokers))
    defaults = {
        "default.replication.factor": replicas,
        "min.insync.replicas": str(max(1, min(2, brokers - 1))),
    }
    folder.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(folder.resolve(), format_uuid(uuid4()), nodes, defaults | settings)
    cluster.save()
    return cluster


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True
