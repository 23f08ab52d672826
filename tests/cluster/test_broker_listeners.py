"""Brokers with a listener for clients and another one for brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster.test_controller_listener import QUORUM_APIS, serves
from shoal.protocol.api import ApiKey
from support.brokers.clusters import CLUSTER_ID, ShoalCluster, running
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path


class TwoListeners(ShoalCluster):
    """Three brokers; only the first is a controller. Nobody listens at the addresses that
    clients get, so the brokers can work together only through the other listener."""

    def __init__(self, folder: Path) -> None:
        ids = (1, 2, 3)
        ports = [f"127.0.0.1:{port}" for port in free_ports(10)]
        self.addresses = dict(zip(ids, ports[:3], strict=True))
        self.peers = dict(zip(ids, ports[3:6], strict=True))
        self.advertised = dict(zip(ids, ports[6:9], strict=True))
        self.controllers = {1: ports[9]}
        self.roles = {1: "broker,controller", 2: "broker", 3: "broker"}
        self.nodes = {id: self._node(id, folder / str(id)) for id in ids}

    def _node(self, id: int, folder: Path) -> ShoalProcess:
        flags = [f"--node-id={id}", f"--cluster-id={CLUSTER_ID}"]
        flags.append(f"--listener=PEERS://{self.peers[id]}")
        quorum = self.controllers[1]
        configs = {
            "process.roles": self.roles[id],
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,PEERS:PLAINTEXT,QUORUM:PLAINTEXT",
            "inter.broker.listener.name": "PEERS",
            "controller.listener.names": "QUORUM",
            "advertised.listeners": f"CLIENTS://{self.advertised[id]}",
            "offsets.topic.replication.factor": "3",
        }
        if id == 1:
            flags.append(f"--listener=QUORUM://{quorum}")
            configs["controller.quorum.voters"] = f"1@{quorum}"
        else:
            configs["controller.quorum.bootstrap.servers"] = quorum
        process = ShoalProcess(folder, configs=configs, flags=flags, listener="CLIENTS")
        process.bootstrap = self.addresses[id]
        return process


def known_at(address: str) -> dict[int, str]:
    """Return the brokers' addresses, as one of them reports them at this address."""
    with WireClient(address) as client:
        found = client.call(ApiKey.METADATA, 12, {"topics": []}).brokers
    return {broker.node_id: f"{broker.host}:{broker.port}" for broker in found}


def test_clients_and_brokers_have_listeners_of_their_own(tmp_path: Path) -> None:
    with running(TwoListeners(tmp_path)) as cluster:
        assert isinstance(cluster, TwoListeners)
        for id in cluster.brokers:
            assert known_at(cluster.addresses[id]) == cluster.advertised
            assert known_at(cluster.peers[id]) == cluster.peers
        # Replicas fetch from each leader, and requests for the controller reach it.
        rows = [
            {"partition_index": index, "broker_ids": [index + 1, *({1, 2, 3} - {index + 1})]}
            for index in range(3)
        ]
        new = {
            "name": "t",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": rows,
            "configs": (),
        }
        fields = {"topics": [new], "timeout_ms": 20_000, "validate_only": False}
        (row,) = cluster.ask(3, ApiKey.CREATE_TOPICS, fields).topics
        assert row.error_code == 0, row
        cluster.on_all("t", cluster.brokers)
        for index in range(3):
            with WireClient(cluster.addresses[index + 1]) as client:
                assert client.produce("t", b"value", partition=index).error_code == 0
        eventually(lambda: all(len(p.isr_nodes) == 3 for p in cluster.topic(2, "t")))
        # The quorum has the third listener for itself.
        described = cluster.describe_quorum(2)
        assert (described.leader_id, [v.replica_id for v in described.current_voters]) == (1, [1])
        assert {o.replica_id for o in described.observers} == {2, 3}
        assert all(serves(cluster.controllers[1], *api) for api in QUORUM_APIS)
        for address in (cluster.addresses[1], cluster.peers[1]):
            assert not any(serves(address, *api) for api in QUORUM_APIS)


@pytest.mark.parametrize("name", ["CLIENTS", "PEERS"])
def test_a_listener_needs_a_security_protocol(tmp_path: Path, name: str) -> None:
    node = TwoListeners(tmp_path).nodes[2]
    protocols = node.configs["listener.security.protocol.map"]
    node.configs["listener.security.protocol.map"] = protocols.replace(f"{name}:", "OTHERS:")
    assert f"The listener {name} has no security protocol" in node.refusal()
