"""Events about what the operator undoes, finds lost, and begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kube.test_interrupted import CLUSTER
from kube.test_interrupted import World as Clusters
from kube.test_isolation import World
from shoal.client.client import SyncClient
from shoal.client.configs import AlterOperation, ConfigChange, Resource, ResourceType
from shoal.client.errors import expect

if TYPE_CHECKING:
    from kube.api_server import ApiServer
    from servers import ShoalProcess


def events(kube: ApiServer, name: str) -> list[tuple[str, str]]:
    """Return types and reasons of the events on a resource, sorted."""
    found = (e for e in kube.all("Event") if e["involvedObject"]["name"] == name)
    return sorted((e["type"], e["reason"]) for e in found)


def message(kube: ApiServer, reason: str) -> str:
    (found,) = (e["message"] for e in kube.all("Event") if e["reason"] == reason)
    return str(found)


def alter(broker: ShoalProcess, kind: ResourceType, name: str, **configs: str) -> None:
    """Change configs as somebody else."""
    wanted = [ConfigChange(key.replace("_", "."), value) for key, value in configs.items()]
    with SyncClient(broker.bootstrap) as client:
        expect(client.run(client.admin.configs.alter({Resource(kind, name): wanted})))


def unset(broker: ShoalProcess, name: str, config: str) -> None:
    wanted = [ConfigChange(config, None, AlterOperation.DELETE)]
    with SyncClient(broker.bootstrap) as client:
        topic = Resource(ResourceType.TOPIC, name)
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
    alter(shared_broker, ResourceType.TOPIC, "drift-jobs", retention_ms="7000", flush_ms="9")
    unset(shared_broker, "drift-jobs", "segment.ms")
    asyncio.run(world.reconcile("QueueTopic"))
    assert world.configs(ResourceType.TOPIC, "drift-jobs") == spec["config"] | {"flush.ms": "9"}
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
    alter(shared_broker, ResourceType.GROUP, "drift-workers", share_delivery_count_limit="9")
    asyncio.run(world.reconcile("ShareGroup"))
    assert events(world.kube, "workers") == [("Normal", "DriftReverted")]
    assert "share.delivery.count.limit is 5 again, and was 9." in message(
        world.kube, "DriftReverted"
    )


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
