"""Settings that do not fit a cluster are refused at start, with an error that names the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.brokers.clusters import CLUSTER_ID, ShoalCluster, running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--quorum=1@127.0.0.1:1,x"], ["controller.quorum.voters has 'x'", "id@host:port"]),
        (["--quorum=2@127.0.0.1:1,2@127.0.0.1:2"], ["node id 2 is listed twice"]),
        (["--set=process.roles=broker"], ["controller.quorum.voters has this", "add controller"]),
        (
            ["--set=advertised.listeners=PLAINTEXT://127.0.0.1:1"],
            ["127.0.0.1:1", "does not answer", "Set an address"],
        ),
    ],
    ids=["no-voter", "twice", "roles", "advertised"],
)
def test_settings(tmp_path: Path, flags: list[str], parts: list[str]) -> None:
    cluster = ShoalCluster(tmp_path, 1)
    said = cluster.node(1, tmp_path / "data", {}, *flags).refusal()
    assert all(part in said for part in parts), said


def test_a_new_directory_needs_the_clusters_id(tmp_path: Path) -> None:
    cluster = ShoalCluster(tmp_path, 1)
    node = cluster.node(1, tmp_path / "data", {})
    node.flags = node.flags[:2]
    said = node.refusal()
    assert "give all nodes the same one, for instance --cluster-id " in said
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_identities_of_data_directories(tmp_path: Path) -> None:
    """A directory of another cluster, of another node, of a newer format."""
    data = tmp_path / "data"
    data.mkdir()
    meta = data / "meta.properties"
    cluster = ShoalCluster(tmp_path, 1)
    for version, id, node, parts in (
        (1, "other", 1, ["data of cluster other", CLUSTER_ID, "--data-dir", "--cluster-id"]),
        (1, CLUSTER_ID, 7, ["belongs to node 7", "this is node 1"]),
        (2, CLUSTER_ID, 1, ["newer format", "run the release that wrote it"]),
    ):
        text = f"version={version}\ncluster.id={id}\nnode.id={node}\n"
        meta.write_text(text)
        said = cluster.node(1, data, {}).refusal()
        assert all(part in said for part in parts), said
        assert meta.read_text() == text


def test_nodes_that_do_not_fit_a_running_cluster(tmp_path: Path) -> None:
    """An id that is in use, and other voters than the cluster has."""
    quick = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
    with running(ShoalCluster(tmp_path, 1, configs=quick)) as cluster:
        twin = cluster.node(1, tmp_path / "twin", quick)
        twin.bootstrap = "127.0.0.1:0"
        said = twin.refusal()
        assert f"Cannot listen on {cluster.controllers[1]}" in said
        assert "whether another process has node.id 1" in said
        voters = f"--quorum=1@{cluster.controllers[1]},3@127.0.0.1:1"
        said = cluster.node(2, tmp_path / "other", quick, voters).refusal()
        assert "names the voters 1, 3, and the cluster's are 1" in said
        assert {b.node_id for b in cluster.metadata(1).brokers} == {1}


def test_a_node_that_was_given_another_clusters_id(tmp_path: Path) -> None:
    """Its directory does not contain the id; the cluster reports it."""
    with running(ShoalCluster(tmp_path, 1)) as cluster:
        said = cluster.node(2, tmp_path / "stranger", {}, "--cluster-id=other").refusal()
        where = f"Node 1 at {cluster.controllers[1]} is of another cluster than other"
        assert where in said
        assert "give all nodes the same --cluster-id" in said
        assert {b.node_id for b in cluster.metadata(1).brokers} == {1}
