"""The two compared clusters: three nodes each, combined voter and broker, on loopback.

Both have stock timeouts, three replicas, two in-sync replicas, and internal topics of eight
partitions. Each node of Kafka has the heap of its start script, 1 GiB, unless BENCH_HEAP is set.
With `Security`, all listeners have its protocol: those for clients and brokers, and those for
controllers. In a cluster as deployed, brokers have a listener of their own, as controllers do.
"""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from brokers import SHOAL, WAIT_S, Broker, Kafka, free_port, join
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from load_checks import LoadFailed
from security import BROKERS, DEPLOYED, LISTENER, MUTUAL
from shoal.client.client import SyncClient

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from security import Security

NODES = (1, 2, 3)
CLUSTER_ID = "benchmarkOfShoal0003AA"
#: Directory ids of Kafka's first voters: base64 of 16 bytes.
_DIRECTORIES = {id: f"benchmarkDirectory00{id}A" for id in NODES}
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "8",
    "group.initial.rebalance.delay.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
}


def eventually(probe: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Call `probe` until it returns a true value, and return that."""
    end = time.monotonic() + timeout_s
    while not (found := probe()):
        if time.monotonic() > end:
            raise LoadFailed(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)
    return found


class Node(Broker):
    """A node of a cluster. Clients and brokers use the same listener, unless clients log in."""

    def __init__(
        self, directory: Path, id: int, ports: Mapping[int, int], security: Security | None = None
    ) -> None:
        super().__init__(directory, security)
        assert security is None or security.kind in (MUTUAL, DEPLOYED), "controllers need them too"
        self.id, self.port = id, ports[id]
        self.secured_port = 0
        if security:
            self.secured_port = ports[id + 20] if security.has_logins else self.port

    @property
    def listener(self) -> str:
        """The name of the listener for brokers."""
        if self.security is None:
            return "PLAINTEXT"
        return BROKERS if self.security.has_logins else LISTENER

    def _listeners(self) -> dict[str, str]:
        clients = {LISTENER: self.bootstrap} if self.security else {}
        return clients | {self.listener: self.address}

    def _connection(self) -> socket.socket:
        one = super()._connection()
        if self.security is None:
            return one
        with one:
            return self.security.context().wrap_socket(one, server_hostname="127.0.0.1")


class ShoalNode(Node):
    name = "shoal"

    def __init__(
        self, directory: Path, id: int, ports: Mapping[int, int], security: Security | None = None
    ) -> None:
        super().__init__(directory, id, ports, security)
        self._voters = ",".join(f"{n}@127.0.0.1:{ports[n + 10]}" for n in NODES)

    def command(self) -> list[str]:
        configs = SETTINGS | self._more
        users: Sequence[str] = ()
        if self.security:
            configs["listener.security.protocol.map"] = self._protocols()
            configs["inter.broker.listener.name"] = self.listener
            if not (self.directory / "data").exists():
                users = self.security.scram
        pairs = [f"--set={name}={value}" for name, value in configs.items()]
        return [
            *SHOAL,
            "server",
            f"--node-id={self.id}",
            f"--quorum={self._voters}",
            f"--cluster-id={CLUSTER_ID}",
            "--log-level=warning",
            *(f"--listener={name}://{address}" for name, address in self._listeners().items()),
            f"--data-dir={self.directory / 'data'}",
            *pairs,
            *users,
        ]


class KafkaNode(Node, Kafka):
    def __init__(
        self, directory: Path, id: int, ports: Mapping[int, int], security: Security | None = None
    ) -> None:
        super().__init__(directory, id, ports, security)
        self._controllers = {n: ports[n + 10] for n in NODES}

    def _format(self) -> None:
        path = self._properties
        known = self._controllers
        lines = SETTINGS | {
            "process.roles": "broker,controller",
            "node.id": str(self.id),
            "listeners": join(
                {**self._listeners(), "CONTROLLER": f"127.0.0.1:{known[self.id]}"}, "://"
            ),
            "listener.security.protocol.map": self._protocols(),
            "inter.broker.listener.name": self.listener,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(
                f"127.0.0.1:{port}" for port in known.values()
            ),
            "log.dirs": str(self.directory / "data"),
            **self._more,
        }
        path.write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        voters = ",".join(f"{n}@127.0.0.1:{port}:{_DIRECTORIES[n]}" for n, port in known.items())
        done = subprocess.run(
            [
                *self._java("kafka.tools.StorageTool"),
                "format",
                "--initial-controllers",
                voters,
                "-t",
                CLUSTER_ID,
                "-c",
                str(path),
                "--feature",
                "share.version=1",
                *(self.security.scram if self.security else ()),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise LoadFailed(f"Kafka's data directory: {done.stderr[-2000:]}")


class Cluster:
    """Three nodes of one kind."""

    def __init__(
        self,
        kind: type[Node],
        folder: Path,
        security: Security | None = None,
    ) -> None:
        ports = {n + more: free_port() for n in NODES for more in (0, 10, 20, 30)}
        self.name = kind.name
        self.nodes = {id: kind(folder / str(id), id, ports, security) for id in NODES}
        #: Properties of clients, of librdkafka and of ours.
        self.client = security.client_properties() if security else {}
        self.start_s = 0.0

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        """Start all three and wait until they answer; set `start_s` to the duration."""
        for node in self.nodes.values():
            node.prepare()
        began = time.perf_counter()
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(lambda node: node.start(), self.nodes.values()))
        eventually(lambda: len(self.brokers()) == len(NODES), "the brokers are not all let in")
        self.start_s = time.perf_counter() - began

    def kill9(self) -> None:
        for node in self.nodes.values():
            node.kill9()

    @property
    def has_ended(self) -> bool:
        """Whether a broker ended without a stop."""
        return any(node.has_ended for node in self.nodes.values())

    def last_output(self) -> str:
        """Return the last part of the output of each broker."""
        texts = (f"{id}: {node.last_output()[-900:]}" for id, node in self.nodes.items())
        return "; ".join(texts)

    def check_alive(self) -> None:
        """Raise LoadFailed if a broker ended, or printed that its heap is full."""
        for id, node in self.nodes.items():
            if node.has_ended or "OutOfMemoryError" in node.output():
                raise LoadFailed(f"broker {id} of {self.name} ended: {node.last_output()}")

    def cpu_s(self) -> float:
        return sum(node.cpu_s() for node in self.nodes.values())

    def rss_mb(self) -> float:
        return sum(node.rss_mb() for node in self.nodes.values())

    # Metadata of the cluster

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **self.client})

    def brokers(self) -> list[int]:
        try:
            return sorted(self.admin().list_topics(timeout=10).brokers)
        except KafkaException:
            return []

    def controller(self) -> int:
        """Return the leader of the quorum. AdminClient returns any broker instead."""
        with SyncClient(self.bootstrap, self.client) as client:
            return int(client.run(client.admin.describe_quorum()).leader_id)

    def leaders(self, topic: str) -> list[int]:
        found = self.admin().list_topics(topic, timeout=20).topics[topic].partitions
        return [found[index].leader for index in sorted(found)]

    def in_sync(self, admin: AdminClient) -> bool:
        """Whether every partition has a leader and all of its replicas."""
        try:
            topics = admin.list_topics(timeout=20).topics
        except KafkaException:
            return False
        return all(
            p.leader > 0 and len(p.isrs) == len(p.replicas)
            for topic in topics.values()
            for p in topic.partitions.values()
        )

    def heal(self) -> None:
        """Start killed nodes and wait for all replicas and the original leaders."""
        for node in self.nodes.values():
            if not node.runs:
                node.start()
        admin = self.admin()
        eventually(lambda: self.in_sync(admin), f"{self.name} is not in sync again")
        with SyncClient(self.bootstrap, self.client) as client:
            client.run(client.admin.elect_leaders(None))
