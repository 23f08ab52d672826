"""Controllers report a broker that is down, and partitions that nobody leads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from support.brokers.clusters import ShoalCluster, running
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "kafka_controller_KafkaController_"


@pytest.mark.nightly
def test_a_killed_broker_and_its_partitions_are_reported(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path, configs={"broker.session.timeout.ms": "3000"})) as cluster:
        active = cluster.controller()

        def counts(*names: str) -> list[float]:
            return [cluster.nodes[active].metric(f"{PREFIX}{name}") for name in names]

        async def create() -> None:
            async with Client(cluster.bootstrap) as client:
                await client.admin.topics.create([NewTopic("single", 3, 1)])

        asyncio.run(create())
        names = ("OfflinePartitionsCount", "FencedBrokerCount", "ActiveBrokerCount")
        assert counts(*names) == [0, 0, 3]
        every = [n.metric(f"{PREFIX}ActiveControllerCount") for n in cluster.nodes.values()]
        assert sorted(every) == [0, 0, 1]
        victim = next(id for id in cluster.brokers if id != active)
        cluster.nodes[victim].kill9()
        eventually(lambda: counts(*names) == [1, 1, 2], what="the partition of the victim")
        cluster.start([victim])
        eventually(lambda: counts(*names) == [0, 0, 3], what="the victim is back")
