"""Clusters of real broker processes for tests: on free ports; killed, frozen, restarted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from shoal.client.errors import ClientError
from shoal.client.net.connection import Connection, connect
from shoal.client.settings import Settings
from shoal.protocol.api import ApiKey
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import HANDLERS
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from support.brokers.networks import Network

#: A busy machine is slow.
START_TIMEOUT_S = 240.0
CLUSTER_ID = "tests-cluster"
#: With these configs a stalled machine elects no other leader. Brokers see at once that one has
#: ended, by its connections. Only these timeouts, which are longer than any wait of a test, reveal
#: one that is frozen or cut off; a test of that sets its own.
CALM = {
    "broker.session.timeout.ms": "100000",
    "controller.quorum.fetch.timeout.ms": "120000",
    "replica.lag.time.max.ms": "100000",
}


class ShoalCluster:
    """Nodes 1 to n. Each is a voter and a broker unless `roles` says otherwise."""

    #: The network that the nodes' hosts are on; loopback if None.
    network: Network | None = None
    #: The name of the nodes' first listener.
    listener: str = "PLAINTEXT"
    #: The properties of clients for that listener.
    client: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        configs: Mapping[str, str] | None = None,
        roles: Mapping[int, str] | None = None,
        racks: Sequence[str] = (),
        network: Network | None = None,
        listener: str = "PLAINTEXT",
        client: Mapping[str, str] | None = None,
    ) -> None:
        """`listener` is the name of the nodes' first listener, and `client` has the properties of
        clients for it. With a `network`, each node runs on its own host, which clients can reach.
        `controllers` maps a voter's id to its port for controllers."""
        self.network = network
        self.listener = listener
        self.client = dict(client or {})
        if network is None:
            ports = [f"127.0.0.1:{port}" for port in free_ports(2 * nodes)]
            self.addresses = dict(enumerate(ports[:nodes], 1))
            self.controllers = dict(enumerate(ports[nodes:], 1))
        else:
            self.addresses = {id: f"{address}:9092" for id, address in network.addresses.items()}
            self.controllers = {id: f"{host}:9093" for id, host in network.addresses.items()}
        self.roles = {id: (roles or {}).get(id, "broker,controller") for id in self.addresses}
        voters = [id for id, role in self.roles.items() if "controller" in role]
        # A node without a broker has one listener, which tests send requests to.
        for id in voters:
            if self.roles[id] == "controller":
                self.controllers[id] = self.addresses[id]
        self.quorum = ",".join(f"{id}@{self.controllers[id]}" for id in voters)
        self.nodes: dict[int, ShoalProcess] = {}
        for id in self.addresses:
            own = {"process.roles": self.roles[id]}
            if network is not None:
                own["shoal.insecure.listeners.enable"] = "true"
            if racks:
                own["broker.rack"] = racks[id - 1]
            self.nodes[id] = self.node(id, folder / str(id), {**(configs or {}), **own})

    def node(self, id: int, folder: Path, configs: Mapping[str, str], *flags: str) -> ShoalProcess:
        """A node's process, not started. `flags` come last and override the others."""
        process = ShoalProcess(
            folder,
            configs=configs,
            start_timeout_s=START_TIMEOUT_S,
            listener=self.listener,
            command=self.network.command(id) if self.network is not None else (),
            flags=[
                f"--node-id={id}",
                f"--quorum={self.quorum}",
                f"--cluster-id={CLUSTER_ID}",
                *flags,
            ],
        )
        process.bootstrap = self.addresses.get(id, "127.0.0.1:0")
        return process

    def joining(self, id: int) -> list[str]:
        """Add an address to the cluster. Return the flags of a node there that is to become a
        voter."""
        ports = free_ports(2)
        self.addresses[id], self.controllers[id] = (f"127.0.0.1:{port}" for port in ports)
        self.roles[id] = "broker,controller"
        return [
            f"--listener=CONTROLLER://{self.controllers[id]}",
            "--set=controller.listener.names=CONTROLLER",
        ]

    def start(self, ids: Iterable[int] | None = None) -> Self:
        """Start these nodes (default: all) and wait until they are ready. After starting all nodes,
        also wait until each broker's metadata lists all brokers, which can take a moment longer."""
        nodes = [self.nodes[id] for id in ids or self.nodes]
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait()
        if ids is None:
            eventually(self._all_known, timeout_s=60, what="each broker lists all brokers")
        return self

    def _all_known(self) -> bool:
        wanted = set(self.brokers)
        return all({b.node_id for b in self.metadata(id).brokers} == wanted for id in wanted)

    def stop(self) -> None:
        """Stop all nodes. Frozen nodes are thawed first."""
        for node in self.nodes.values():
            node.kill9()

    @property
    def brokers(self) -> list[int]:
        return [id for id, role in self.roles.items() if "broker" in role]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses[id] for id in self.brokers)

    def freeze(self, id: int) -> None:
        os.kill(self.nodes[id].pid, signal.SIGSTOP)

    def thaw(self, id: int) -> None:
        os.kill(self.nodes[id].pid, signal.SIGCONT)

    # What the nodes report.

    def ask(self, id: int, api_key: ApiKey, fields: Mapping[str, Any]) -> Any:
        """Return one node's response, from its listener for controllers if only that serves the
        API.

        Raises `ClientError`, or `AssertionError` with the node's output if it has ended.
        """
        of_controllers = HANDLERS[api_key].on is Listeners.CONTROLLER
        addresses = self.controllers if of_controllers else self.addresses
        host, _, port = addresses[id].rpartition(":")

        async def main() -> Any:
            given = {**self.client, "request.timeout.ms": "60000"}
            settings = Settings.from_bootstrap(addresses[id], given)
            connection: Connection = await connect(settings, (host, int(port)))
            try:
                return await connection.request(api_key, fields)
            finally:
                connection.close()

        try:
            return asyncio.run(main())
        except ClientError:
            node = self.nodes.get(id)
            assert node is None or node.is_running, "\n".join(
                [f"node {id} ended:", *node.log[-60:]]
            )
            raise

    def metadata(self, id: int) -> Any:
        """Return a broker's Metadata response for all topics."""
        return self.ask(id, ApiKey.METADATA, {"topics": None})

    def on_all(self, name: str, brokers: list[int]) -> list[Any]:
        """Return the partitions of a topic once all these brokers report the same ones. As in
        Kafka, CreateTopics is answered before every broker has applied the change."""

        def look() -> list[Any] | None:
            found = [self.topic(id, name) for id in brokers]
            return found[0] if all(one == found[0] for one in found) else None

        return eventually(look, timeout_s=60, what=f"{name} on all brokers")

    def topic(self, id: int, name: str) -> list[Any]:
        """Return the partitions of a topic in a broker's metadata, by index."""
        (found,) = [t for t in self.metadata(id).topics if t.name == name] or [None]
        assert found is not None, f"broker {id} has no metadata of {name}"
        return sorted(found.partitions, key=lambda p: p.partition_index)

    def controller(self, *, asked: int | None = None, but: int | None = None) -> int:
        """Return the id of the quorum's leader as a node reports it; wait until there is one."""
        ids = [asked] if asked is not None else [i for i in self.brokers if i != but]

        def look() -> int | None:
            for id in ids:
                with contextlib.suppress(ClientError):
                    found = self.describe_quorum(id).leader_id
                    if found not in (-1, but):
                        return found
            return None

        return eventually(look, timeout_s=60, what="no controller")

    def describe_quorum(self, id: int) -> Any:
        """Return the only partition of a DescribeQuorum response."""
        topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        answer = self.ask(id, ApiKey.DESCRIBE_QUORUM, {"topics": topics})
        if answer.error_code:
            raise ClientError(str(answer.error_message))
        return answer.topics[0].partitions[0]


@contextlib.contextmanager
def running(cluster: ShoalCluster) -> Iterator[ShoalCluster]:
    try:
        yield cluster.start()
    finally:
        cluster.stop()
