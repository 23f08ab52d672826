"""Objects that the operator did not create: it neither changes nor deletes them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, configured, resource
from kube.test_isolation import ready, warnings
from kube.test_revoked_users import SPEC as SECURED
from kube.test_spark_consumers import CONSUMER, CONTEXT
from shoal_operator.brokers import Brokers
from shoal_operator.cluster.reconciler import Clusters
from shoal_operator.consumers import Consumers
from shoal_operator.group_monitor import GroupMonitor
from shoal_operator.kube import KubeError
from shoal_operator.model import names
from shoal_operator.settings import Settings
from shoal_operator.workloads import Workloads

if TYPE_CHECKING:
    from shoal_operator.store import Store

Manifest = dict[str, Any]
CLUSTER = SECURED | {
    "storage": {"size": "1Gi", "deletionPolicy": "Retain"},
    "metrics": {"port": 9404},
    "networkPolicy": {"enabled": True},
}
#: The objects of the QueueCluster `main`.
OBJECTS = [
    ("v1", "Service", "main-brokers"),
    ("v1", "Service", "main-bootstrap"),
    ("v1", "ConfigMap", "main-broker"),
    ("v1", "ServiceAccount", "main-broker"),
    ("v1", "Secret", "main-broker-tls"),
    ("v1", "Secret", "main-operator-tls"),
    ("v1", "Secret", "main-cluster-ca-cert"),
    ("policy/v1", "PodDisruptionBudget", "main-broker"),
    ("networking.k8s.io/v1", "NetworkPolicy", "main-broker"),
    ("apps/v1", "StatefulSet", "main-broker"),
]


def foreign(api_version: str, kind: str, name: str) -> Manifest:
    """Return an object of somebody else, whose labels do not matter."""
    meta = {"name": name, "namespace": "n", "labels": {"app": "payments"}}
    made: Manifest = {"apiVersion": api_version, "kind": kind, "metadata": meta}
    if kind == "Secret":
        return made | {"data": {"password": "aHVudGVyMg=="}}
    if kind == "StatefulSet":
        template = {"metadata": {"labels": {"app": "payments"}, "annotations": {}}}
        spec = {"replicas": 0, "template": template | {"spec": {"containers": []}}}
        return made | {"spec": spec}
    return made | {"spec": {"selector": {"app": "payments"}}}


def watched(kube: ApiServer) -> Store:
    """Return what the operator's watches report: of others' kinds, objects with its label only."""
    store = kube.store()
    for (kind, name), found in kube.objects.items():
        labels = found["metadata"].get("labels", {})
        if found["apiVersion"] != names.API_VERSION and names.MANAGED_BY not in labels:
            store.drop(kube.find(kind, name))
    return store


def reconcile(kube: ApiServer) -> None:
    """Run one pass of a new operator over the QueueCluster."""

    async def run() -> None:
        brokers = Brokers("nowhere:1")
        place = (kube, watched(kube), brokers, "n", "main")
        try:
            await Clusters(*place, "i:1", on_reachable=lambda: None).reconcile(["main"])
        finally:
            await brokers.close()

    asyncio.run(run())


@pytest.mark.parametrize(("api_version", "kind", "name"), OBJECTS)
def test_a_cluster_takes_over_no_object(api_version: str, kind: str, name: str) -> None:
    kube = ApiServer(CrashPoint())
    kube.controllers_paused = True
    kube.add(foreign(api_version, kind, name))
    before = copy.deepcopy(kube.find(kind, name))
    kube.add(resource("QueueCluster", "main", **CLUSTER))
    with pytest.raises(KubeError, match=f"{kind} '{name}' exists, and was not created for Queue"):
        reconcile(kube)
    assert kube.find(kind, name) == before
    assert ready(kube, "QueueCluster", "main") == ("False", "ObjectNotOwned")
    assert warnings(kube, "main") == ["ObjectNotOwned"]
    assert f"{kind}/{name}" not in kube.deleted
    # Once it is gone, the cluster gets its own.
    del kube.objects[kind, name]
    reconcile(kube)
    assert kube.find(kind, name)["metadata"]["labels"][names.CLUSTER_LABEL] == "main"


def test_a_cluster_keeps_objects_whose_labels_were_removed() -> None:
    """They have its owner reference, and get the labels again."""
    kube = ApiServer(CrashPoint())
    kube.controllers_paused = True
    kube.add(resource("QueueCluster", "main", **CLUSTER))
    reconcile(kube)
    kube.find("Service", "main-bootstrap")["metadata"]["labels"] = {}
    reconcile(kube)
    assert names.CLUSTER_LABEL in kube.find("Service", "main-bootstrap")["metadata"]["labels"]


def test_another_clusters_objects_are_foreign() -> None:
    """The Service `main-bootstrap` of QueueCluster `main-bootstrap`, for example."""
    kube = ApiServer(CrashPoint())
    other = foreign("v1", "Service", "main-bootstrap")
    other["metadata"]["labels"] = names.labels("other")
    kube.add(other)
    kube.add(resource("QueueCluster", "main", **CLUSTER))
    with pytest.raises(KubeError, match="was not created for QueueCluster 'main'"):
        reconcile(kube)


def test_a_consumer_takes_over_no_deployment() -> None:
    kube = ApiServer(CrashPoint())
    kube.add(resource("QueueCluster", "main", listeners=[{"name": "plain", "port": 9092}]))
    group = resource("ShareGroup", "g", cluster="main", maxRecordLocks=100, lockDuration="30s")
    kube.add(configured(group))
    pod = {"template": {"spec": {"containers": [{"name": "one"}]}}}
    kube.add(resource("ShareConsumer", "worker", shareGroup="g", replicas=1, deployment=pod))
    kube.add(foreign("apps/v1", "Deployment", "worker"))
    before = copy.deepcopy(kube.find("Deployment", "worker"))
    store = watched(kube)
    monitor = GroupMonitor(kube, store, Brokers("nowhere:1"), "n", "main")
    consumers = Consumers(kube, store, monitor, "n", "main", Settings("b:1", "s:1", "r", "http"))
    asyncio.run(consumers.reconcile(["worker"]))
    assert kube.find("Deployment", "worker") == before
    assert ready(kube, "ShareConsumer", "worker") == ("False", "ObjectNotOwned")
    assert warnings(kube, "worker") == ["ObjectNotOwned"]


def test_a_binding_of_another_release_is_replaced() -> None:
    """Its role has the name of the release, and the reference of a RoleBinding cannot change."""
    kube = ApiServer(CrashPoint())
    kube.installed["sparkoperator.k8s.io/v1beta2"] = ["SparkApplication"]

    def bind(release: str) -> Manifest:
        context = dataclasses.replace(CONTEXT, driver_role=f"{release}-spark-driver")
        settings = Settings("b:1", "s:1", context.driver_role, "http")
        workloads = Workloads(kube, kube.store(), settings)
        asyncio.run(workloads.apply(CONSUMER, context, 0, 0))
        return kube.find("RoleBinding", "c-driver")

    before = bind("one")
    assert bind("one")["metadata"]["uid"] == before["metadata"]["uid"]
    after = bind("two")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["roleRef"]["name"] == "two-spark-driver"
