"""Hibernation of a QueueCluster: all pods go and come back, and what depends on it says why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, configured, resource
from kube.consumers.test_due import CLUSTER, POD
from kube.consumers.test_scale_targets import Shop, ready
from kube.custom_resources import take
from kube.model.test_custom_resources import queue_cluster
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.hibernation import CONSUMERS_MS
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.model import hibernation
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.queues.groups import ShareGroupReconciler
from shoal_operator.queues.queue_schedules import QueueScheduleReconciler
from shoal_operator.queues.redrives import RedriveReconciler
from shoal_operator.queues.topics import QueueTopicReconciler
from shoal_operator.rebalance.reconciler import QueueRebalanceReconciler
from shoal_operator.users.reconciler import QueueUserReconciler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Manifest = dict[str, Any]
#: Nothing listens there.
NOBODY = "127.0.0.1:1"
SPEC = {
    "replicas": 3,
    "storage": {"size": "1Gi", "type": "persistent"},
    "listeners": [{"name": "plain", "port": 9092}],
    "metrics": {"port": 9404},
    "config": {},
}


class House:
    """A namespace with a QueueCluster and its operator; no broker answers."""

    def __init__(self, **spec: Any) -> None:
        self.kube = ApiServer(CrashPoint())
        self.kube.add(resource("QueueCluster", "main", **(SPEC | spec)))
        self.store, self.brokers = self.kube.store(), Brokers(NOBODY)
        place = (self.kube, self.store, self.brokers, "n", "main")
        self.clusters = QueueClusterReconciler(*place, "b:1", on_reachable=lambda: None)

    def change(self, **spec: Any) -> None:
        self.kube.add(resource("QueueCluster", "main", **(SPEC | spec)))
        self.see()

    def see(self) -> None:
        """Let the operator's watches catch up."""
        for kind in ("Pod", "StatefulSet"):
            kept = {one["metadata"]["name"] for one in self.kube.all(kind)}
            for one in list(self.store.iterate(kind)):
                if one["metadata"]["name"] not in kept:
                    self.store.drop(one)
        for one in self.kube.objects.values():
            one["metadata"]["resourceVersion"] = str(next(self.kube.numbers))
            self.store.put(one)

    async def reconcile(self) -> Manifest:
        """Let the operator pass once; return the status of the QueueCluster."""
        await self.clusters.reconcile(["main"])
        self.see()
        status: Manifest = self.kube.find("QueueCluster", "main")["status"]
        return status

    def replicas(self) -> dict[str, int]:
        return {o["metadata"]["name"]: o["spec"]["replicas"] for o in self.kube.all("StatefulSet")}

    def list_events(self) -> list[str]:
        return [event["reason"] for event in self.kube.all("Event")]


def get_condition(status: Manifest, kind: str) -> str:
    return next((c["status"] for c in status["conditions"] if c["type"] == kind), "")


def kept(kube: ApiServer) -> set[tuple[str, str]]:
    return {key for key in kube.objects if key[0] not in ("Pod", "Event", "StatefulSet")}


def test_the_pods_go_and_all_else_stays() -> None:
    async def scenario() -> None:
        pool = {"name": "large", "firstNodeId": 100, "replicas": 2}
        house = House(nodePools=[pool])
        await house.reconcile()
        await house.reconcile()
        before = kept(house.kube)
        assert house.replicas() == {"main-broker": 3, "main-pool-large": 2}
        house.change(nodePools=[pool], hibernated=True)
        assert ready(await house.reconcile()) == (False, "Hibernating")
        status = await house.reconcile()
        assert ready(status) == (False, "Hibernated")
        assert get_condition(status, "Paused") == "True", "it is no failure"
        assert not get_condition(status, "Stalled")
        assert get_condition(status, "Degraded") == "False"
        assert (status["brokersReady"], status["brokers"]) == ("0/5", [])
        assert house.replicas() == {"main-broker": 0, "main-pool-large": 0}
        assert house.kube.all("Pod") == []
        assert kept(house.kube) == before
        assert "DriftReverted" not in house.list_events()
        # A pass changes nothing more.
        changes = house.kube.crash_point.changes
        await house.reconcile()
        assert house.kube.crash_point.changes == changes
        house.change(nodePools=[pool])
        assert ready(await house.reconcile()) == (False, "Starting")
        assert house.replicas() == {"main-broker": 3, "main-pool-large": 2}
        assert "DriftReverted" not in house.list_events()
        for stateful_set in house.kube.all("StatefulSet"):
            assert hibernation.REPLICAS not in stateful_set["metadata"]["annotations"]
        await house.brokers.close()

    asyncio.run(scenario())


def test_brokers_that_the_spec_lost_meanwhile_start_and_are_drained() -> None:
    """They may have the only replicas of partitions."""

    async def scenario() -> None:
        pool = {"name": "large", "firstNodeId": 100, "replicas": 2}
        house = House(replicas=5, nodePools=[pool])
        await house.reconcile()
        house.change(replicas=5, nodePools=[pool], hibernated=True)
        await house.reconcile()
        house.change(replicas=3, nodePools=[pool | {"replicas": 0}])
        await house.reconcile()
        assert house.replicas() == {"main-broker": 5, "main-pool-large": 2}
        # A pool that the spec does not have at all.
        house.change(replicas=5, nodePools=[pool], hibernated=True)
        await house.reconcile()
        house.change(replicas=5)
        assert ready(await house.reconcile()) == (False, "NodePoolRemoved")
        await house.brokers.close()

    asyncio.run(scenario())


def test_consumers_stop_before_the_brokers(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        house = House()
        await house.reconcile()
        labels = {"shoal.dev/cluster": "main", "shoal.dev/share-consumer": "eaters"}
        meta = {"name": "eaters-1", "namespace": "n", "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}}
        house.kube.add(pod | {"status": {"phase": "Running"}})
        house.change(hibernated=True)
        status = await house.reconcile()
        assert ready(status) == (False, "Hibernating")
        assert "eaters" in status["conditions"][0]["message"]
        assert house.replicas() == {"main-broker": 3}
        # A Job may take hours.
        pass_time(CONSUMERS_MS)
        await house.reconcile()
        assert house.replicas() == {"main-broker": 0}
        await house.brokers.close()

    asyncio.run(scenario())


DEPENDENTS: list[tuple[Any, Manifest]] = [
    (QueueTopicReconciler, resource("QueueTopic", "jobs", cluster="main", partitions=1)),
    (QueueUserReconciler, resource("QueueUser", "u", cluster="main", authentication={})),
    (RedriveReconciler, resource("Redrive", "again", cluster="main", deadLetterTopic="dlq")),
    (QueueRebalanceReconciler, resource("QueueRebalance", "even", cluster="main")),
    (QueueScheduleReconciler, resource("QueueSchedule", "nightly", cluster="main")),
    (ShareGroupReconciler, configured(resource("ShareGroup", "workers", cluster="main"))),
]


@pytest.mark.parametrize(("kind", "dependent"), DEPENDENTS)
def test_resources_of_the_cluster_say_why_they_wait(kind: Any, dependent: Manifest) -> None:
    async def scenario() -> None:
        house = House(hibernated=True)
        house.kube.add(dependent)
        house.see()
        place = (house.kube, house.store, house.brokers, "n", "main")
        more = {"monitor": GroupMonitor(*place)} if kind is ShareGroupReconciler else {}
        name = dependent["metadata"]["name"]
        reconcile: Callable[[list[str]], Awaitable[Any]] = kind(*place, **more).reconcile
        assert await reconcile([name]) is None
        status = house.kube.find(dependent["kind"], name)["status"]
        assert ready(status) == (False, "ClusterHibernated")
        assert get_condition(status, "Paused") == "True"
        await house.brokers.close()

    asyncio.run(scenario())


def test_a_topic_that_is_deleted_meanwhile_waits_for_the_brokers() -> None:
    async def scenario() -> None:
        house = House(hibernated=True)
        topic = resource("QueueTopic", "jobs", cluster="main", deletionPolicy="Delete")
        topic["metadata"] |= {"finalizers": ["shoal.dev/delete"], "deletionTimestamp": "2026"}
        house.kube.add(topic)
        house.see()
        place = (house.kube, house.store, house.brokers, "n", "main")
        await QueueTopicReconciler(*place).reconcile(["jobs"])
        topic = house.kube.find("QueueTopic", "jobs")
        assert topic["metadata"]["finalizers"] == ["shoal.dev/delete"]
        assert ready(topic["status"]) == (False, "DeletionWaits")
        await house.brokers.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("scaling", [{"minReplicas": 2, "targetLagPerReplica": 10}, None])
def test_consumers_scale_to_zero_at_any_lag(scaling: Manifest | None) -> None:
    async def scenario() -> None:
        shop = Shop(scaleTargetRef=None, deployment=POD, scaling=scaling, replicas=2)
        await shop.look(35)
        assert shop.kube.find("Deployment", "eaters")["spec"]["replicas"] >= 2
        cluster = {**CLUSTER, "spec": {**CLUSTER["spec"], "hibernated": True}}
        shop.kube.add(cluster)
        shop.store.put(shop.kube.find("QueueCluster", "main"))
        status = await shop.look(35)
        assert shop.kube.find("Deployment", "eaters")["spec"]["replicas"] == 0
        assert ready(status) == (False, "ClusterHibernated")
        assert status["decision"] == "the QueueCluster is hibernated"
        shop.kube.add(CLUSTER)
        shop.store.put(shop.kube.find("QueueCluster", "main"))
        await shop.look(35)
        assert shop.kube.find("Deployment", "eaters")["spec"]["replicas"] >= 2

    asyncio.run(scenario())


def test_a_cluster_that_would_lose_its_records_is_not_hibernated() -> None:
    fine, ephemeral = queue_cluster(), queue_cluster()
    external: Manifest = {**fine, "spec": {"type": "external", "hibernated": True}}
    external["spec"]["external"] = {"bootstrapServers": "kafka:9092"}
    fine["spec"]["hibernated"] = True
    pool = {"name": "quorum", "firstNodeId": 900, "replicas": 3, "roles": ["controller"]}
    storage = {"size": "1Gi", "type": "ephemeral"}
    bucket = {"bucket": "b", "region": "r"}
    more = {"hibernated": True, "storage": storage, "nodePools": [pool], "tieredStorage": bucket}
    ephemeral["spec"] |= more
    errors = [taken.errors for taken in take([fine, external, ephemeral])]
    assert errors[0] == []
    assert any("hibernated requires" in one for one in errors[1])
    assert any("hibernated requires" in one for one in errors[2])
