"""Events about what the operator undoes, finds lost, and begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kube.kube.test_interrupted import CLUSTER
from kube.kube.test_interrupted import World as Clusters
from kube.kube.test_isolation import World
from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
)
from shoal.client.client import SyncClient
from shoal.client.errors import expect

if TYPE_CHECKING:
    from kube.api_server import ApiServer
    from support.brokers.servers import ShoalProcess


def events(kube: ApiServer, name: str) -> list[tuple[str, str]]:
    """Return types and reasons of the events on a resource, sorted."""
    found = (e for e in kube.all("Event") if e["involvedObject"]["name"] == name)
    return sorted((e["type"], e["reason"]) for e in found)


def message(kube: ApiServer, reason: str) -> str:
    (found,) = (e["message"] for e in kube.all("Event") if e["reason"] == reason)
    return str(found)


def alter(broker: ShoalProcess, kind: ConfigResourceType, name: str, **configs: str) -> None:
    """Change configs as somebody else."""
    wanted = [ConfigChange(key.replace("_", "."), value) for key, value in configs.items()]
    with SyncClient(broker.bootstrap) as client:
        expect(client.run(client.admin.configs.alter({ConfigResource(kind, name): wanted})))


def unset(broker: ShoalProcess, name: str, config: str) -> None:
    wanted = [ConfigChange(config, None, AlterOperation.DELETE)]
    with SyncClient(broker.bootstrap) as client:
        topic = ConfigResource(ConfigResourceType.TOPIC, name)
        expect(client.run(client.admin.configs.alter({topic: wanted})))


def test_drift_of_a_topic_is_undone_and_told(shared_broker: ShoalProcess) -> None:
    world = World(shared_broker)
    world.add("QueueTopic", "jobs", "drift")
    spec = world.kube.find("QueueTopic", "jobs")["spec"]
    spec["config"] = {"retention.ms": "5000", "segment.ms": "60000"}
    asyncio.run(world.reconcile("QueueTopic"))
    asyncio.run(world.reconcile("QueueTopic"))
    assert events(world.kube, "jobs") == []
    # What the resource never had is left to others.
    alter(shared_broker, ConfigResourceType.TOPIC, "drift-jobs", retention_ms="7000", flush_ms="9")
    unset(shared_broker, "drift-jobs", "segment.ms")
    asyncio.run(world.reconcile("QueueTopic"))
    assert world.configs(ConfigResourceType.TOPIC, "drift-jobs") == spec["config"] | {
        "flush.ms": "9"
    }
    assert events(world.kube, "jobs") == [("Normal", "DriftReverted")]
    assert message(world.kube, "DriftReverted") == (
        "Somebody else had changed this: retention.ms is 5000 again, and was 7000; "
        "segment.ms is 60000 again, and was unset."
    )


def test_drift_of_a_group_is_undone_and_told(shared_broker: ShoalProcess) -> None:
    world = World(shared_broker)
    world.add("ShareGroup", "workers", "drift")
    asyncio.run(world.reconcile("ShareGroup"))
    assert events(world.kube, "workers") == []
    alter(shared_broker, ConfigResourceType.GROUP, "drift-workers", share_delivery_count_limit="9")
    asyncio.run(world.reconcile("ShareGroup"))
    assert events(world.kube, "workers") == [("Normal", "DriftReverted")]
    assert "share.delivery.count.limit is 5 again, and was 9." in message(
        world.kube, "DriftReverted"
    )


#: Fields of tenants, and the configs that they are. The brokers show a rate as a fraction.
FAIRNESS = {"by": "Header", "header": "customer", "lookaheadRecords": 5000}
WEIGHTS = {"b:2": "0.5", "acme": 4}
LIMITS = {
    "maxInFlight": 10,
    "maxInFlightOverrides": {"acme": 50, "": 0},
    "maxPerSecond": 5,
    "maxPerSecondOverrides": {"acme": "0.25"},
    "burst": 20,
    "pausedTenants": ["free tier", "bert"],
}
OF_TENANTS = {
    "share.fairness.by": "header:customer",
    "share.fairness.lookahead.records": "5000",
    "share.fairness.weights": "acme:4,b:2:0.5",
    "share.tenant.max.in.flight": "10",
    "share.tenant.max.in.flight.overrides": ":0,acme:50",
    "share.tenant.max.per.second": "5.0",
    "share.tenant.max.per.second.overrides": "acme:0.25",
    "share.tenant.max.per.second.burst": "20",
    "share.tenant.paused": "free tier,bert",
}


def test_limits_of_tenants_are_repaired_and_return_to_the_default_without_their_field(
    shared_broker: ShoalProcess,
) -> None:
    world = World(shared_broker)
    world.add("ShareGroup", "workers", "fair")
    spec = world.kube.find("ShareGroup", "workers")["spec"]
    spec |= {"fairness": FAIRNESS | {"weights": WEIGHTS}, "limits": dict(LIMITS)}

    def reconcile(generation: int = 1) -> dict[str, str | None]:
        """Return the configs of tenants after a pass over this generation of the resource."""
        group = world.kube.find("ShareGroup", "workers")
        group["metadata"]["generation"], group["spec"] = generation, spec
        asyncio.run(world.reconcile("ShareGroup"))
        configs = world.configs(ConfigResourceType.GROUP, "fair-workers")
        return {k: v for k, v in configs.items() if k.startswith(("share.fair", "share.tenant"))}

    assert reconcile() == OF_TENANTS
    # The brokers show each config as it was set, so nothing is to do.
    assert reconcile() == OF_TENANTS
    assert events(world.kube, "workers") == []
    paused = {"share_tenant_paused": "acme", "share_fairness_by": "key"}
    alter(shared_broker, ConfigResourceType.GROUP, "fair-workers", **paused)
    assert reconcile() == OF_TENANTS
    assert message(world.kube, "DriftReverted") == (
        "Somebody else had changed this: share.fairness.by is header:customer again, and was key; "
        "share.tenant.paused is free tier,bert again, and was acme."
    )
    del spec["fairness"]["weights"], spec["limits"]["pausedTenants"]
    gone = {"share.fairness.weights", "share.tenant.paused"}
    assert reconcile(2) == {k: v for k, v in OF_TENANTS.items() if k not in gone}
    del spec["fairness"], spec["limits"]
    assert reconcile(3) == {}
    # What the resource does not set is left to others, such as a tenant's pause in the console.
    alter(shared_broker, ConfigResourceType.GROUP, "fair-workers", share_tenant_paused="acme")
    assert reconcile(3) == {"share.tenant.paused": "acme"}
    assert events(world.kube, "workers") == [("Normal", "DriftReverted")]
    assert world.ready("ShareGroup", "workers") == ("True", "Reconciled")


def test_a_topic_that_somebody_has_deleted_comes_back_empty_with_a_warning(
    shared_broker: ShoalProcess,
) -> None:
    world = World(shared_broker)
    world.add("QueueTopic", "jobs", "lost")
    asyncio.run(world.reconcile("QueueTopic"))
    before = world.kube.find("QueueTopic", "jobs")["status"]["topicId"]
    with SyncClient(shared_broker.bootstrap) as client:
        expect(client.run(client.admin.topics.delete(["lost-jobs"])))
    for _ in range(2):
        asyncio.run(world.reconcile("QueueTopic"))
    after = world.kube.find("QueueTopic", "jobs")["status"]["topicId"]
    assert after != before
    assert events(world.kube, "jobs") == [("Warning", "TopicRecreated")]
    assert f"its id was {before}, and is {after}" in message(world.kube, "TopicRecreated")


def test_drift_of_an_object_is_undone_and_told(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        world = Clusters(shared_broker)
        world.kube.add(CLUSTER)
        await world.settle()
        about = events(world.kube, "main")
        world.kube.find("Service", "main-bootstrap")["spec"]["ports"][0]["port"] = 1
        await world.settle()
        assert world.kube.find("Service", "main-bootstrap")["spec"]["ports"][0]["port"] == 9092
        assert events(world.kube, "main") == sorted([*about, ("Normal", "DriftReverted")])
        assert "had changed Service main-bootstrap" in message(world.kube, "DriftReverted")

    asyncio.run(scenario())


def test_the_first_consumers_are_an_event_too(shared_broker: ShoalProcess) -> None:
    world = World(shared_broker)
    world.add("ShareConsumer", "three", "first")
    world.add("ShareConsumer", "none", "first")
    world.kube.find("ShareConsumer", "three")["spec"]["replicas"] = 3
    for _ in range(2):
        asyncio.run(world.reconcile("ShareConsumer"))
    assert events(world.kube, "three") == [("Normal", "Scaled")]
    assert message(world.kube, "Scaled") == "0 to 3: spec.replicas."
    assert events(world.kube, "none") == []
