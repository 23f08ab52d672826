"""Clusters of real broker processes on this machine, for tests: each broker a voter of the quorum.

Ports are chosen beforehand, since the voters are named at the start, and kept over restarts.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from servers import ShoalProcess

CLUSTER_ID = "c2hvYWwtdGVzdC1jbHVzdA"
#: Shorter times than Kafka's, so that a test sees a failover in seconds; not so short that a busy
#: machine takes a slow broker for a dead one.
QUICK = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
}


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class ShoalCluster:
    """`brokers` processes with node ids from 1 on."""

    def __init__(
        self, directory: Path, *, brokers: int = 3, configs: Mapping[str, str] | None = None
    ) -> None:
        ports = free_ports(brokers)
        voters = ",".join(f"{id}@127.0.0.1:{port}" for id, port in enumerate(ports, 1))
        self.nodes: dict[int, ShoalProcess] = {}
        for id, port in enumerate(ports, 1):
            own = {
                "node.id": str(id),
                "shoal.cluster.id": CLUSTER_ID,
                "controller.quorum.voters": voters,
                "default.replication.factor": str(min(3, brokers)),
                "min.insync.replicas": str(min(2, brokers)),
                **QUICK,
                **(configs or {}),
            }
            node = ShoalProcess(directory / f"broker-{id}", configs=own)
            node.bootstrap = f"127.0.0.1:{port}"
            self.nodes[id] = node

    @property
    def bootstrap(self) -> str:
        """All brokers' addresses, as clients take them."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> ShoalCluster:
        """Start all at once: a quorum needs a majority before any of them is ready."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.start(), self.nodes.values()))
        return self

    def stop(self) -> None:
        """End all of them, as a crash would: nothing of a test's cluster is used again."""
        for node in self.nodes.values():
            node.kill9()

    def __enter__(self) -> ShoalCluster:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *error: object) -> None:
        self.stop()
