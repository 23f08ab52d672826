"""Brokers whose disks are lost with their pods (`spec.storage.type: ephemeral`): what is rendered,
what is refused, and what never changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kube import structural
from kube.model.test_node_pools import QUORUM, World, queue_cluster, simple, stateful
from kube.model.test_pod_layout import files, objects
from shoal_operator.cluster import decision
from shoal_operator.model import node_pools, storage

Manifest = dict[str, Any]
S3 = {"type": "S3", "bucket": "queues", "copyInterval": "1h"}
DISK = {"type": "ephemeral", "size": "20Gi"}
EXTRA = {"name": "extra", "firstNodeId": 100, "replicas": 1}


def cluster(*pools: Manifest, **spec: Any) -> Any:
    """Return a cluster with every field, whose brokers have ephemeral disks."""
    given = {"storage": DISK, "tieredStorage": S3, "replicas": 3, **spec}
    return queue_cluster(QUORUM, *pools, **given)


def least(**spec: Any) -> Any:
    made = simple(QUORUM, tieredStorage=S3, **spec)
    made["spec"]["storage"] = dict(DISK)
    return made


def refusal(made: Any) -> str:
    found = decision.find_refusal(made)
    if found is None:
        return ""
    assert (found.ready, found.reason) == (False, "StorageNotAllowed")
    return found.message


# -- rendered objects


def test_brokers_have_empty_dirs_and_controllers_volume_claims() -> None:
    made = cluster({**EXTRA, "storage": {"size": "50Gi"}}, resources={"limits": {"memory": "1Gi"}})
    for name, size in (("main-broker", "20Gi"), ("main-pool-extra", "50Gi")):
        spec = stateful(made, name)["spec"]
        assert "volumeClaimTemplates" not in spec
        pod = spec["template"]["spec"]
        (disk,) = [v for v in pod["volumes"] if v["name"] == "data"]
        assert disk == {"name": "data", "emptyDir": {"sizeLimit": size}}
        (container,) = pod["containers"]
        assert {"name": "data", "mountPath": "/var/lib/shoal"} in container["volumeMounts"]
        assert container["resources"] == {
            "limits": {"memory": "1Gi"},
            "requests": {"ephemeral-storage": size},
        }
    spec = stateful(made, "main-pool-quorum")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    pod = spec["template"]["spec"]
    assert "data" not in [v["name"] for v in pod["volumes"]]
    assert "ephemeral-storage" not in str(pod["containers"][0]["resources"])


def test_each_broker_of_a_pod_has_a_disk() -> None:
    made = cluster(brokersPerPod=2, resources={"requests": {"ephemeral-storage": "30Gi"}})
    pod = stateful(made, "main-broker")["spec"]["template"]["spec"]
    disks = [v["name"] for v in pod["volumes"] if "emptyDir" in v]
    assert disks == ["tmp", "data", "data1"]
    for slot, container in enumerate(pod["containers"]):
        (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == "/var/lib/shoal"]
        assert mount["name"] == f"data{slot or ''}"
        assert container["resources"]["requests"] == {"ephemeral-storage": "30Gi"}


def test_logs_and_cache_stay_below_the_limit_of_the_disk() -> None:
    text = files(cluster(EXTRA))
    for id in (0, 100):
        (line,) = [n for n in text[f"broker-{id}.properties"].split("\n") if "log.dir.max" in n]
        # A tenth is the cache, and a tenth stays free.
        assert line == f"shoal.log.dir.max.bytes={(20 << 30) * 8 // 10}"
    assert "log.dir.max" not in text["broker-900.properties"]
    bounded = cluster(tieredStorage={**S3, "cacheSize": "5Gi"})
    assert f"log.dir.max.bytes={13 << 30}\n" in files(bounded)["broker-0.properties"]


def test_persistent_is_the_default_and_changes_nothing() -> None:
    plain = queue_cluster(QUORUM, tieredStorage=S3)
    named = copy.deepcopy(plain)
    named["spec"]["storage"]["type"] = "persistent"
    for kind in ("StatefulSet", "ConfigMap"):
        assert objects(plain, kind) == objects(named, kind)
    assert not storage.is_ephemeral(named)
    assert not refusal(queue_cluster(storage={"type": "persistent", "size": "1Gi"}))


def test_the_schema_has_the_field() -> None:
    assert not structural.errors(least())
    made = least()
    made["spec"]["storage"]["type"] = "memory"
    assert structural.errors(made)


# -- what is refused


def test_a_safe_cluster_is_allowed() -> None:
    assert not refusal(cluster())
    assert not refusal(cluster(EXTRA, config={"min.insync.replicas": "3", "num.partitions": "1"}))


LOSING_RECORDS: list[tuple[Manifest, str]] = [
    ({"tieredStorage": None}, "spec.tieredStorage"),
    ({"nodePools": []}, "Add a node pool with roles [controller]"),
    ({"replicas": 2}, "spec.replicas is 2. Set it to 3 or more"),
    ({"restoreFrom": {}}, "spec.restoreFrom"),
    ({"storage": {**DISK, "storageClassName": "fast"}}, "spec.storage.storageClassName"),
    ({"tieredStorage": {**S3, "cacheSize": "19Gi"}}, "no room for logs in spec.storage.size"),
    ({"config": {"min.insync.replicas": "1"}}, "spec.config.min.insync.replicas is 1."),
    ({"config": {"default.replication.factor": "2"}}, "it must be 3 or more, or not set"),
    ({"config": {"transaction.state.log.min.isr": "x"}}, "transaction.state.log.min.isr is x"),
    ({"config": {"unclean.leader.election.enable": "TRUE"}}, "whose disk is empty"),
]


@pytest.mark.parametrize(("spec", "words"), LOSING_RECORDS)
def test_what_would_lose_records_is_refused_by_name(spec: Manifest, words: str) -> None:
    made = cluster(**spec)
    assert words in refusal(made)
    if "restoreFrom" not in spec:
        made["spec"]["storage"] = {"type": "persistent", "size": "20Gi"}
        assert not refusal(made)


def test_a_pools_storage_class_without_effect_is_refused() -> None:
    fast = {"size": "5Gi", "storageClassName": "fast"}
    assert "spec.nodePools[extra].storage.storageClassName" in refusal(
        cluster({**EXTRA, "storage": fast})
    )
    controllers = {**QUORUM, "storage": fast}
    made = queue_cluster(controllers, storage=DISK, tieredStorage=S3, replicas=3)
    assert not refusal(made)
    (claim,) = stateful(made, "main-pool-quorum")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"


# -- the operator with an API server


def test_the_type_of_disks_never_changes() -> None:
    world = World(least())
    assert world.reconcile()[1] != "StorageNotAllowed"
    before = copy.deepcopy(world.kube.all("StatefulSet"))
    assert len(before) == 2
    assert [bool(one["spec"].get("volumeClaimTemplates")) for one in before] == [False, True]
    switched = least()
    switched["spec"]["storage"]["type"] = "persistent"
    assert world.apply(switched) == ("False", "StorageNotAllowed")
    assert "cannot change from ephemeral to persistent" in world.message
    assert world.kube.all("StatefulSet") == before

    world = World(simple(QUORUM, tieredStorage=S3))
    world.reconcile()
    before = copy.deepcopy(world.kube.all("StatefulSet"))
    assert world.apply(least()) == ("False", "StorageNotAllowed")
    assert "cannot change from persistent to ephemeral" in world.message
    assert "StatefulSet main-broker" in world.message
    assert world.kube.all("StatefulSet") == before
    assert not [one for one in world.kube.deleted if "Persistent" in one]


def test_pods_of_a_cluster_that_is_applied_again_are_kept() -> None:
    world = World(least())
    world.reconcile()
    uids = [pod["metadata"]["uid"] for pod in world.kube.all("Pod")]
    assert len(uids) == 6
    world.apply(least())
    assert [pod["metadata"]["uid"] for pod in world.kube.all("Pod")] == uids


def test_volumes_of_controllers_whose_brokers_are_lost_are_not_used() -> None:
    """A cluster that is deleted and created again has the metadata, and no records."""
    claim = {
        "metadata": {
            "name": "data-main-pool-quorum-900",
            "namespace": "n",
            "labels": node_pools.build_labels(node_pools.list_pools(least())[1]),
        },
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
    }
    world = World(least())
    world.kube.add({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
    assert world.reconcile() == ("False", "StorageNotAllowed")
    assert "data-main-pool-quorum-900" in world.message
    assert "spec.restoreFrom" in world.message
    assert not world.kube.all("StatefulSet")
    world.kube.objects.pop(("PersistentVolumeClaim", "data-main-pool-quorum-900"))
    assert world.reconcile()[1] != "StorageNotAllowed"
    # The claims of its own controllers are no reason.
    world.kube.add({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
    assert world.reconcile()[1] != "StorageNotAllowed"


def test_restarts_lose_disks_once_brokers_have_reported() -> None:
    made = cluster()
    made["status"] = {}
    assert not decision.is_restart_lossy(made)
    made["status"] = {"clusterId": "known"}
    assert decision.is_restart_lossy(made)
    made["spec"]["storage"] = {"size": "1Gi"}
    assert not decision.is_restart_lossy(made)
