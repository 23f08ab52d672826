"""Configs of `spec.config` that need a restart are validated before the first broker restarts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.kube.test_interrupted import CLUSTER, World

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess


def configure(world: World, config: dict[str, str], **spec: Any) -> None:
    world.kube.add({**CLUSTER, "spec": {**CLUSTER["spec"], "config": config, **spec}})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"num.partitons": "3"},
            "Unknown broker config name: num.partitons. Did you mean num.partitions? ",
        ),
        ({"no.such.thing.at.all": "3"}, "Unknown broker config name: no.such.thing.at.all. "),
        ({"num.partitions": "many"}, "Invalid value many for configuration num.partitions: "),
    ],
)
def test_a_config_that_a_broker_would_not_start_with_restarts_none(
    shared_broker: ShoalProcess, config: dict[str, str], said: str
) -> None:
    async def scenario() -> None:
        world = World(shared_broker)
        configure(world, {"num.partitions": "3"})
        await world.settle()
        before = world.kube.find("StatefulSet", "main-broker")["spec"]
        configure(world, {"queued.max.requests": "9", **config})
        await world.settle()
        assert world.ready() == ("False", "ConfigRefused", True)
        (message,) = world.event_messages("ConfigRefused")
        assert message.startswith(f"spec.config: {said}"), message
        assert world.kube.find("StatefulSet", "main-broker")["spec"] == before
        assert world.kube.deleted == []
        configure(world, {"num.partitions": "4"})
        await world.settle()
        assert world.kube.deleted == ["Pod/main-broker-0"]

    asyncio.run(scenario())


def test_what_only_a_broker_that_starts_can_judge_is_not_refused(
    shared_broker: ShoalProcess,
) -> None:
    """References, configs that brokers do not show, and those of another image."""

    async def scenario() -> None:
        world = World(shared_broker)
        configure(world, {})
        await world.settle()
        internal = {"producer.id.expiration.check.interval.ms": "600000"}
        configure(world, {"num.partitions": "${env:PARTITIONS}", **internal})
        await world.settle()
        assert world.kube.deleted == ["Pod/main-broker-0"]
        configure(world, {"config.of.a.later.release": "1"}, image="later:2")
        await world.settle()
        assert world.kube.deleted == ["Pod/main-broker-0"] * 2

    asyncio.run(scenario())
