"""Voters that join and leave while the cluster works (KIP-853)."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

from cluster.test_failover import prepared
from cluster.test_replication import CALM_CONFIGS
from shoal.client.client import Client
from shoal.protocol.api import ApiKey
from support.brokers.clusters import CALM, CLUSTER_ID, ShoalCluster, running
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path


def rows(cluster: ShoalCluster, kind: str) -> dict[int, Any]:
    """Return `current_voters` or `observers` by id, as the quorum's leader reports them."""
    found = cluster.describe_quorum(cluster.controller())
    return {row.replica_id: row for row in getattr(found, kind)}


def caught_up(cluster: ShoalCluster, id: int) -> Any:
    """Return the observer once it has caught up with the leader; else None."""
    row = rows(cluster, "observers").get(id)
    return row if row is not None and row.last_caught_up_timestamp >= 0 else None


def directories(cluster: ShoalCluster) -> dict[int, Any]:
    """Return the voters' directories; None for a voter that has not reported its own."""
    return {id: row.replica_directory_id for id, row in rows(cluster, "current_voters").items()}


def change(cluster: ShoalCluster, api_key: ApiKey, id: int, directory: Any, **more: Any) -> None:
    fields = {"cluster_id": CLUSTER_ID, "voter_id": id, "voter_directory_id": directory, **more}
    answer = cluster.ask(cluster.controller(), api_key, fields)
    assert answer.error_code == 0, answer


def test_a_voter_takes_the_place_of_another(tmp_path: Path) -> None:
    """The fourth is added by hand, the first is removed, and then any of the three may stop."""
    with running(ShoalCluster(tmp_path, configs=CALM_CONFIGS)) as cluster:
        flags = cluster.joining(4)
        cluster.nodes[4] = cluster.node(4, tmp_path / "4", CALM_CONFIGS, *flags).start()
        eventually(lambda: all(directories(cluster).values()), what="directories of all voters")
        joined = eventually(lambda: caught_up(cluster, 4))
        host, _, port = cluster.controllers[4].rpartition(":")
        listener = {"name": "CONTROLLER", "host": host, "port": int(port)}
        change(
            cluster,
            ApiKey.ADD_RAFT_VOTER,
            4,
            joined.replica_directory_id,
            timeout_ms=30_000,
            listeners=[listener],
        )
        assert sorted(rows(cluster, "current_voters")) == [1, 2, 3, 4]
        first = rows(cluster, "current_voters")[1]
        change(cluster, ApiKey.REMOVE_RAFT_VOTER, 1, first.replica_directory_id)
        eventually(lambda: sorted(rows(cluster, "current_voters")) == [2, 3, 4])
        cluster.nodes[2].kill9()
        leader = cluster.controller(but=2, asked=4)
        assert leader in (3, 4)

        async def works() -> None:
            async with Client(cluster.bootstrap) as client:
                topic, _ = await prepared(client)
                async with client.producer() as producer:
                    assert (await (await producer.send(topic, b"v"))).offset == 0

        asyncio.run(works())
        cluster.nodes[2].start()
        eventually(lambda: sorted(rows(cluster, "current_voters")) == [2, 3, 4])


def test_a_controller_joins_automatically(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path, 1, configs=CALM)) as cluster:
        flags = cluster.joining(2)
        join = CALM | {"controller.quorum.auto.join.enable": "true"}
        cluster.nodes[2] = cluster.node(2, tmp_path / "2", join, *flags).start()
        eventually(lambda: sorted(rows(cluster, "current_voters")) == [1, 2])


def test_a_voter_that_lost_its_disk_votes_again(tmp_path: Path) -> None:
    """The leader, then another one. Without the return of the first, the quorum would be lost after
    the second."""
    join = CALM_CONFIGS | {"controller.quorum.auto.join.enable": "true"}
    with running(ShoalCluster(tmp_path, configs=join)) as cluster:
        eventually(lambda: all(directories(cluster).values()), what="directories of all voters")
        leader = cluster.controller()
        for id in (leader, leader % 3 + 1):
            before = directories(cluster)
            cluster.nodes[id].kill9()
            shutil.rmtree(cluster.nodes[id].data_dir)
            cluster.nodes[id].start()

            def is_back(id: int = id, before: dict[int, Any] = before) -> bool:
                now = directories(cluster)
                assert {k: v for k, v in now.items() if k != id} == {
                    k: v for k, v in before.items() if k != id
                }
                return now.get(id) not in (None, before[id])

            eventually(is_back, timeout_s=60, what=f"{id} votes again")
            assert id not in rows(cluster, "observers")
