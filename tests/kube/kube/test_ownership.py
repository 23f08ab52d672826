"""Objects that the operator did not create: it neither changes nor deletes them."""

from __future__ import annotations

import asyncio
import base64
import copy
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, configured, resource
from kube.consumers.test_kueue import SPARK
from kube.consumers.test_scale_targets import Shop
from kube.consumers.test_spark_consumers import CONSUMER, CONTEXT
from kube.kube.test_isolation import ready, warnings
from kube.users.test_revoked_users import SPEC as SECURED
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.consumers.reconciler import ShareConsumerReconciler
from shoal_operator.consumers.workloads import WorkloadManager
from shoal_operator.kube.kube import KubeError
from shoal_operator.model import names
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.settings import ChartSettings

if TYPE_CHECKING:
    from shoal_operator.kube.store import Store

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
    ("v1", "Secret", "main-clients-ca-cert"),
    ("policy/v1", "PodDisruptionBudget", "main-broker"),
    ("networking.k8s.io/v1", "NetworkPolicy", "main-broker"),
    ("apps/v1", "StatefulSet", "main-broker"),
]
#: Secrets that a user may provide: the cluster uses them, or says what they lack.
PROVIDED = [
    ("v1", "Secret", "main-cluster-ca"),
    ("v1", "Secret", "main-clients-ca"),
    ("v1", "Secret", "main-delegation-token-key"),
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
            await QueueClusterReconciler(*place, "i:1", on_reachable=lambda: None).reconcile(
                ["main"]
            )
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


def test_no_object_of_a_cluster_is_forgotten_here() -> None:
    kube = ApiServer(CrashPoint())
    kube.controllers_paused = True
    kube.add(resource("QueueCluster", "main", **CLUSTER))
    reconcile(kube)
    made = {(found["apiVersion"], *key) for key, found in kube.objects.items()}
    of_others = {one for one in made if one[1] in ("QueueCluster", "Event")}
    assert made - of_others == {*OBJECTS, *PROVIDED}


@pytest.mark.parametrize(("api_version", "kind", "name"), PROVIDED)
def test_a_secret_without_a_key_is_neither_used_nor_changed(
    api_version: str, kind: str, name: str
) -> None:
    kube = ApiServer(CrashPoint())
    kube.controllers_paused = True
    kube.add(foreign(api_version, kind, name))
    before = copy.deepcopy(kube.find(kind, name))
    kube.add(resource("QueueCluster", "main", **CLUSTER))
    reconcile(kube)
    assert kube.find(kind, name) == before
    assert ready(kube, "QueueCluster", "main")[0] == "False"
    assert warnings(kube, "main")


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
    other["metadata"]["labels"] = names.build_labels("other")
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
    consumers = ShareConsumerReconciler(
        kube, store, monitor, "n", "main", ChartSettings("b:1", "s:1", "r", "http")
    )
    asyncio.run(consumers.reconcile(["worker"]))
    assert kube.find("Deployment", "worker") == before
    assert ready(kube, "ShareConsumer", "worker") == ("False", "ObjectNotOwned")
    assert warnings(kube, "worker") == ["ObjectNotOwned"]


def test_a_binding_to_a_role_of_a_release_is_replaced() -> None:
    """The role had the name of the release; the reference of a binding cannot change."""
    kube = ApiServer(CrashPoint())
    kube.installed["sparkoperator.k8s.io/v1beta2"] = ["SparkApplication"]
    settings = ChartSettings("b:1", "s:1", CONTEXT.driver_role_kind, "http")

    def bind() -> Manifest:
        workloads = WorkloadManager(kube, kube.store(), settings)
        asyncio.run(workloads.apply(CONSUMER, CONTEXT, 0, 0))
        return kube.find("RoleBinding", "c-driver")

    before = bind()
    assert bind()["metadata"]["uid"] == before["metadata"]["uid"]
    before["roleRef"] |= {"kind": "ClusterRole", "name": "one-shoal-operator-spark-driver"}
    after = bind()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert (after["roleRef"]["kind"], after["roleRef"]["name"]) == ("Role", "shoal-spark-driver")


def test_an_operator_of_another_release_restarts_no_driver() -> None:
    """Where it runs is in the Secret alone, which a running driver reads again."""

    async def scenario() -> None:
        shop = Shop(scaleTargetRef=None, spark=SPARK, scaling=None, replicas=1)
        kinds = ("SparkApplication", "RoleBinding", "Secret")
        seen = []
        for release in ("one", "two"):
            settings = ChartSettings("b:1", "s:1", "Role", f"http://{release}.{release}.svc:8080")
            shop.consumers = ShareConsumerReconciler(
                shop.kube, shop.store, shop.monitor, "n", "main", settings
            )
            await shop.look(0)
            found = [next(iter(shop.kube.all(kind))) for kind in kinds]
            assert base64.b64decode(found.pop()["data"]["url"]).decode() == (
                f"http://{release}.{release}.svc:8080/scale/n/eaters"
            )
            seen.append(copy.deepcopy(found))
        assert seen[0] == seen[1]
        pod = seen[0][0]["spec"]["driver"]["template"]["spec"]
        assert {"name": "shoal-scale", "secret": {"secretName": "eaters-scale"}} in pod["volumes"]

    asyncio.run(scenario())
