"""`spec.logging` of a QueueCluster: what is sent to brokers, and a real broker that follows."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

import pytest
from kube.kube.test_interrupted import CLUSTER, World
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.client import Client
from shoal_operator.brokers.broker_states import ClusterState
from shoal_operator.cluster.decision import compute_level_changes
from support.brokers.servers import ShoalProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NETWORK, AUDIT = "shoal.server.network", "shoal.server.audit"


def changes(
    want: Mapping[str, str], applied: list[str], have: Mapping[int, Mapping[str, str]]
) -> dict[int, dict[str, str | None]]:
    cluster: Any = {"spec": {"logging": {"loggers": want}}, "status": {"appliedLoggers": applied}}
    return compute_level_changes(cluster, ClusterState("id", 0, {}, log_levels=have))


def test_only_brokers_with_other_levels_are_changed() -> None:
    want = {"root": "WARN", AUDIT: "DEBUG"}
    have: dict[int, dict[str, str]] = {0: want, 1: {"root": "INFO", AUDIT: "INFO"}}
    assert changes(want, sorted(want), have) == {1: want}
    assert changes({}, [], have) == {}


def test_a_level_that_only_follows_from_another_is_set_with_it() -> None:
    """Otherwise, the change of `root` would change it, too."""
    want = {"root": "DEBUG", AUDIT: "INFO"}
    assert changes(want, [], {0: {"root": "INFO", AUDIT: "INFO"}}) == {0: want}


def test_removed_levels_are_unset_where_the_broker_has_the_logger() -> None:
    have = {0: {"root": "WARN", AUDIT: "DEBUG"}}
    assert changes({}, [AUDIT, "no.such", "root"], have) == {0: {AUDIT: None, "root": "INFO"}}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("broker"), flags=["--node-id=0"]).start()
    yield process
    process.stop()


def test_a_broker_follows_the_spec(broker: ShoalProcess) -> None:
    world = World(broker)

    async def levels() -> dict[str, str | None]:
        async with Client(broker.bootstrap) as client:
            own = ConfigResource(ConfigResourceType.BROKER_LOGGER, "0")
            found = await client.admin.configs.describe([own], keys=["root", NETWORK, AUDIT])
            entries: Any = found[own]
            return {name: entry.value for name, entry in entries.items()}

    async def apply(**loggers: str) -> dict[str, str | None]:
        cluster = copy.deepcopy(CLUSTER)
        names = {"network": NETWORK, "audit": AUDIT}
        cluster["spec"]["logging"] = {"loggers": {names.get(k, k): v for k, v in loggers.items()}}
        world.kube.add(cluster)
        await world.settle()
        return await levels()

    async def scenario() -> None:
        await apply()
        template = world.kube.find("StatefulSet", "main-broker")["spec"]["template"]
        found = await apply(root="WARN", network="DEBUG", audit="WARN")
        assert found == {"root": "WARN", NETWORK: "DEBUG", AUDIT: "WARN"}
        assert await apply(audit="ERROR") == {"root": "INFO", NETWORK: "INFO", AUDIT: "ERROR"}
        found = await apply(absent="INFO", audit="WARN")
        assert found == {"root": "INFO", NETWORK: "INFO", AUDIT: "WARN"}
        assert world.ready()[:2] == ("False", "ConfigRefused")
        (ready,) = (
            c
            for c in world.kube.find("QueueCluster", "main")["status"]["conditions"]
            if c["type"] == "Ready"
        )
        assert "spec.logging.loggers absent (broker 0): " in ready["message"]
        assert "Logger absent does not exist" in ready["message"]
        assert AUDIT not in ready["message"]
        assert set((await apply()).values()) == {"INFO"}
        assert world.ready()[:2] == ("True", "Reconciled")
        assert world.kube.find("StatefulSet", "main-broker")["spec"]["template"] == template
        assert world.kube.deleted == []

    asyncio.run(scenario())
