"""A quorum on its clients' ports, as in clusters before ADR 52, and its move to separate ports:
it is served as before until it has moved, and on no listener of clients afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CALM_CONFIGS, Writer, check
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.protocol.api import ApiKey
from shoal.quorum import wire
from support.brokers.clusters import ShoalCluster
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VOTERS = (1, 2, 3)
#: Broker 4 is not a voter, and is down while the voters move.
ROLES = {4: "broker"}
WARNING = "clients can reach the metadata quorum"
SHARED = {"controller.listener.names": "PLAINTEXT"}
QUORUM_APIS = (
    (ApiKey.VOTE, 2),
    (ApiKey.BEGIN_QUORUM_EPOCH, 1),
    (ApiKey.END_QUORUM_EPOCH, 1),
    (ApiKey.FETCH_SNAPSHOT, 1),
    (ApiKey.UPDATE_RAFT_VOTER, 0),
    (ApiKey.ENVELOPE, 0),
    (ApiKey.ALTER_PARTITION, 3),
    (ApiKey.BROKER_REGISTRATION, 4),
    (ApiKey.BROKER_HEARTBEAT, 1),
    (ApiKey.ALLOCATE_PRODUCER_IDS, 0),
)


def serves(address: str, key: ApiKey, version: int) -> bool:
    """Return whether the request is answered there; it is empty and changes nothing."""
    with WireClient(address) as client:
        client.send(key, version, {})
        try:
            client.receive(key, version)
        except ConnectionResetError:
            return False
    return True


def has_metadata_log(address: str) -> bool:
    """Return whether a Fetch finds the metadata log there."""
    row = {"topic_id": wire.TOPIC_ID, "partitions": [{"partition": 0, "current_leader_epoch": 1}]}
    body = {"max_wait_ms": 0, "session_epoch": -1, "topics": [row]}
    with WireClient(address) as client:
        answer = client.call(ApiKey.FETCH, 18, body)
    return not any(p.error_code == 100 for t in answer.responses for p in t.partitions)


def quorum_endpoints(cluster: ShoalCluster, asked: int) -> dict[int, str]:
    """Return the voters' endpoints in the quorum's log, as a broker reports them."""
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = cluster.ask(asked, ApiKey.DESCRIBE_QUORUM, {"topics": topics})
    return {
        node.node_id: f"{node.listeners[0].host}:{node.listeners[0].port}" for node in answer.nodes
    }


def warned(node: ShoalProcess) -> int:
    return sum(WARNING in line for line in node.log)


class OldStyle(ShoalCluster):
    """Four nodes whose voters are at the clients' ports."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 4, configs=CALM_CONFIGS, roles=ROLES)
        self.moved = self.controllers
        self.controllers = dict(self.addresses)
        for id in self.nodes:
            self.configure(id, SHARED if id in VOTERS else {}, self.addresses)

    def configure(self, id: int, own: dict[str, str], quorum: dict[int, str]) -> None:
        """Give a node other settings for its next start."""
        node = self.nodes[id]
        node.configs = {**CALM_CONFIGS, "process.roles": self.roles[id], **own}
        voters = ",".join(f"{voter}@{quorum[voter]}" for voter in VOTERS)
        node.flags = (*(f for f in node.flags if "--quorum" not in f), f"--quorum={voters}")

    def restart(self, id: int) -> None:
        node = self.nodes[id]
        assert node.stop() == 0
        node.log.clear()
        node.start()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[OldStyle]:
    found = OldStyle(tmp_path)
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.mark.nightly
def test_a_quorum_at_the_clients_ports_works_and_moves_with_a_roll(old: OldStyle) -> None:
    admin = AdminClient({"bootstrap.servers": old.bootstrap})
    admin.create_topics([NewTopic("t", 4, 3)], operation_timeout=60)["t"].result(60)
    with Writer(old, "t") as writer:
        writer.more(50)
        # As after an upgrade: the settings name no listener for controllers, only the log has them.
        for id in VOTERS[:1]:
            old.configure(id, {}, old.addresses)
            old.restart(id)
            writer.more(20)
            assert warned(old.nodes[id]) == 1
            assert all(serves(old.addresses[id], *api) for api in QUORUM_APIS)
        assert set(quorum_endpoints(old, 1).values()) == {old.addresses[id] for id in VOTERS}
        old.nodes[4].stop()
        # The move: ports for controllers on all nodes, one after another.
        for id in VOTERS:
            old.configure(id, {}, old.moved)
            old.restart(id)
            writer.more(20)
            where = old.moved[id]
            eventually(lambda id=id, where=where: quorum_endpoints(old, id)[id] == where)
        old.configure(4, {}, old.moved)
        old.nodes[4].start()
        writer.more(50)
    check(old, "t", writer)
    for id, address in old.addresses.items():
        eventually(lambda address=address: not serves(address, *QUORUM_APIS[0]))
        assert not any(serves(address, *api) for api in QUORUM_APIS), id
        assert not has_metadata_log(address)
    assert all(has_metadata_log(old.moved[id]) for id in VOTERS)
    old.restart(1)
    assert warned(old.nodes[1]) == 0


def test_all_voters_move_at_once(old: OldStyle) -> None:
    """As `shoal cluster start` does with a cluster of an earlier release."""
    for node in old.nodes.values():
        node.kill9()
    for id in old.nodes:
        old.configure(id, {}, old.moved)
    old.start()
    eventually(
        lambda: quorum_endpoints(old, 4) == {id: old.moved[id] for id in VOTERS},
        what="the voters have moved",
    )
    assert not any(serves(address, *QUORUM_APIS[0]) for address in old.addresses.values())


def test_a_new_quorum_is_not_put_at_the_clients_ports(tmp_path: Path) -> None:
    cluster = ShoalCluster(tmp_path, 1)
    (address,) = cluster.addresses.values()
    node = cluster.node(1, tmp_path / "data", {}, f"--quorum=1@{address}")
    said = node.refusal()
    port = int(address.rpartition(":")[2])
    assert f"has node 1 at {address}, where its clients connect" in said
    assert f"for instance 1@127.0.0.1:{port + 1}" in said
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_a_lone_broker_grows_by_a_listener_for_controllers(tmp_path: Path) -> None:
    """It has none at first, and the voter that joins later uses no other listener."""
    cluster = ShoalCluster(tmp_path, 1)
    first = cluster.nodes[1] = ShoalProcess(tmp_path / "lone")
    try:
        first.start()
        cluster.addresses[1] = first.bootstrap
        assert not any(serves(first.bootstrap, *api) for api in QUORUM_APIS)
        assert not has_metadata_log(first.bootstrap)
        first.stop()
        (port,) = free_ports(1)
        cluster.controllers[1] = f"127.0.0.1:{port}"
        cluster.quorum = f"1@127.0.0.1:{port}"
        first.flags = (
            f"--listener=CONTROLLER://127.0.0.1:{port}",
            "--set=controller.listener.names=CONTROLLER",
        )
        first.start()
        flags = cluster.joining(2)
        cluster_id = cluster.metadata(1).cluster_id
        join = {"controller.quorum.auto.join.enable": "true"}
        cluster.nodes[2] = cluster.node(
            2, tmp_path / "2", join, *flags, f"--cluster-id={cluster_id}"
        ).start()
        eventually(lambda: quorum_endpoints(cluster, 1) == cluster.controllers)
        assert not any(serves(address, *QUORUM_APIS[0]) for address in cluster.addresses.values())
    finally:
        cluster.stop()


def test_clients_that_take_all_connections_leave_the_quorum_its_own(tmp_path: Path) -> None:
    """`max.connections` counts listeners for controllers separately."""
    (port,) = free_ports(1)
    flags = [
        f"--listener=CONTROLLER://127.0.0.1:{port}",
        "--set=controller.listener.names=CONTROLLER",
        "--set=max.connections=3",
    ]
    broker = ShoalProcess(tmp_path, flags=flags).start()
    clients = []
    try:
        clients = [WireClient(broker.bootstrap) for _ in range(3)]
        for client in clients:
            client.call(ApiKey.API_VERSIONS, 0, {})
        with WireClient(broker.bootstrap) as more:
            assert more.refused()
        assert serves(f"127.0.0.1:{port}", *QUORUM_APIS[0])
    finally:
        for client in clients:
            client.sock.close()
        broker.kill9()
