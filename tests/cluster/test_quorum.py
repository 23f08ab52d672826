"""Three real brokers: one quorum, one image, and a controller that may die."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from support.brokers.clusters import CALM, ShoalCluster, running
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    """Each test restarts the nodes that it stops."""
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CALM)) as found:
        yield found


def create(
    cluster: ShoalCluster, asked: int, name: str, partitions: int = 3, replicas: int = 3
) -> Any:
    """Send CreateTopics through one broker; return its row."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": (),
        "configs": (),
    }
    fields = {"topics": [topic], "timeout_ms": 60_000, "validate_only": False}
    (row,) = cluster.ask(asked, ApiKey.CREATE_TOPICS, fields).topics
    assert row.error_code == 0, row
    return row


def test_a_topic_reaches_all_brokers_and_a_dead_controller_is_replaced(
    cluster: ShoalCluster,
) -> None:
    """At once: Kafka's controllers wait for controller.quorum.fetch.timeout.ms and for the broker's
    session, which here are longer than the test waits."""
    for id in cluster.brokers:
        create(cluster, id, f"by-{id}")
    for id in cluster.brokers:
        partitions = cluster.on_all(f"by-{id}", cluster.brokers)
        assert {p.leader_id for p in partitions} == {1, 2, 3}
        assert all(sorted(p.replica_nodes) == [1, 2, 3] for p in partitions)

    dead = cluster.controller()
    left = [id for id in cluster.brokers if id != dead]
    cluster.nodes[dead].kill9()
    assert cluster.controller(but=dead) in left

    def led_by_the_living() -> bool:
        partitions = cluster.topic(left[0], "by-1")
        return all(p.leader_id in left and dead not in p.isr_nodes for p in partitions)

    eventually(led_by_the_living, timeout_s=60, what="other leaders")

    create(cluster, left[0], "while-one-is-gone", 2, 2)
    cluster.on_all("while-one-is-gone", left)
    cluster.nodes[dead].start()
    cluster.on_all("while-one-is-gone", cluster.brokers)
    eventually(
        lambda: {b.node_id for b in cluster.metadata(left[0]).brokers} == {1, 2, 3},
        timeout_s=60,
        what="the restarted broker is not admitted",
    )


def test_all_at_once_come_back_with_what_they_had(cluster: ShoalCluster) -> None:
    row = create(cluster, 1, "kept")
    cluster.on_all("kept", cluster.brokers)
    for node in cluster.nodes.values():
        node.kill9()
    cluster.start()
    (found,) = [t for t in cluster.metadata(2).topics if t.name == "kept"]
    assert found.topic_id == row.topic_id


def test_controlled_shutdown_hands_leaders_over(cluster: ShoalCluster) -> None:
    create(cluster, 1, "handed", 6)
    cluster.on_all("handed", cluster.brokers)
    assert cluster.nodes[2].stop() == 0

    def handed() -> bool:
        partitions = cluster.topic(1, "handed")
        assert all(p.leader_id in (1, 3) for p in partitions), partitions
        return True

    eventually(handed)
    cluster.nodes[2].start()


def is_open(address: str) -> bool:
    """Return whether a connection to the address is accepted; a process that runs refuses it or
    accepts it at once."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, int(port))):
        return True
    return False


def test_a_broker_that_has_not_joined_refuses_clients_and_reaches_controllers(
    tmp_path: Path,
) -> None:
    """As in Kafka, an open port is one that serves: a client would get a closed connection. It
    needs three nodes that start one after the other."""
    cluster = ShoalCluster(tmp_path, configs=CALM)
    try:
        first = cluster.nodes[1]
        first.launch()
        eventually(lambda: is_open(cluster.controllers[1]), timeout_s=60, what="the quorum's port")
        assert not is_open(cluster.addresses[1])
        cluster.nodes[2].launch()
        first.wait()
        assert is_open(cluster.addresses[1])
        assert cluster.metadata(1).brokers
        assert not [line for line in first.log if "connection closed" in line]
    finally:
        cluster.stop()
