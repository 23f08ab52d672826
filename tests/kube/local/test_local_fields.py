"""Every field of a resource has its meaning under `shoal up`, or is listed as without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal_operator.local.api import LocalApi
from shoal_operator.local.changes import apply_manifests
from shoal_operator.local.definitions import PRESERVE, load_definitions
from shoal_operator.local.one_machine import LEFT_OUT, NO_EFFECT, adapt
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Manifest = dict[str, Any]
_OF_BROKER_PODS = ("annotations", "env", "labels", "terminationGracePeriodSeconds", "volumeMounts")
_OF_ROLES = ("annotations", "env", "labels", "template", "volumeMounts")
#: Fields that mean here what they mean in Kubernetes, with all that is in them. With a field that
#: the definitions get, this is the question whether `shoal up` does what it says.
MEANT = {
    "QueueCluster": (
        "authorization",
        "brokersPerPod",
        *(f"clientsCa.{n}" for n in ("generate", "overlap", "renewalDays", "validityDays")),
        *(f"clusterCa.{n}" for n in ("generate", "overlap", "renewalDays", "validityDays")),
        "config",
        "external",
        "hibernated",
        "listeners[].authentication",
        "listeners[].name",
        "listeners[].port",
        "listeners[].tls",
        "listeners[].type",
        "logging",
        "maintenanceWindows",
        "metadataVersion",
        "metrics",
        "nodePools[].firstNodeId",
        "nodePools[].name",
        "nodePools[].replicas",
        "nodePools[].roles",
        *(f"nodePools[].template.pod.{name}" for name in (*_OF_BROKER_PODS, "volumes")),
        "paused",
        "replicas",
        "storage.deletionPolicy",
        "superUsers",
        *(f"template.pod.{name}" for name in (*_OF_BROKER_PODS, "volumes")),
        "type",
    ),
    "QueueRebalance": ("",),
    "QueueSchedule": ("",),
    "QueueTopic": (
        "cluster",
        "config",
        "deletionPolicy",
        "managed",
        "partitions",
        "replicas",
        "topicName",
    ),
    "QueueUser": ("",),
    "Redrive": ("",),
    "ShareConsumer": (
        # Of a pod, `adapt` itself lists what it does not know.
        "deployment",
        "job",
        "paused",
        "replicas",
        "scaling",
        "shareGroup",
        "spark.arguments",
        "spark.checkpoint.persistentVolumeClaim",
        "spark.checkpoint.uri",
        "spark.coresPerExecutor",
        *(f"spark.driver.{name}" for name in _OF_ROLES),
        *(f"spark.executor.{name}" for name in _OF_ROLES),
        "spark.mainApplicationFile",
        "spark.maxExecutors",
        "spark.maxRecordsPerTrigger",
        "spark.minExecutors",
        "spark.operator",
        "spark.sparkConf",
        "spark.volumes",
        "user",
        "userSecret",
    ),
    "ShareGroup": ("",),
}
#: Fields that only listeners of other types have, which are left out as a whole.
OF_OTHER_LISTENERS = (
    "advertisedPort",
    "annotations",
    "bootstrap",
    "brokers",
    "class",
    "externalTrafficPolicy",
    "host",
    "hostTemplate",
    "labels",
    "loadBalancerSourceRanges",
    "parentRefs",
)


def list_leaves(schema: Manifest, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields that have no fields of their own in a definition."""
    properties = {} if schema.get(PRESERVE) else schema.get("properties", {})
    if "properties" in schema.get("items", {}):
        yield from list_leaves(schema["items"], f"{path}[]")
    elif not properties:
        yield path
    for name, of in properties.items():
        yield from list_leaves(of, f"{path}.{name}".lstrip("."))


@pytest.mark.parametrize("kind", sorted(load_definitions()))
def test_every_field_has_its_meaning_or_is_listed(kind: str) -> None:
    tables = [*MEANT[kind], *NO_EFFECT.get(kind, ()), *LEFT_OUT.get(kind, ())]
    if kind == "QueueCluster":
        tables += [f"listeners[].{name}" for name in OF_OTHER_LISTENERS]
    leaves = list(list_leaves(load_definitions()[kind].schema["properties"]["spec"]))
    assert len(leaves) > 5
    ways = {
        leaf: [p for p in tables if f"{leaf}.".startswith((f"{p}.", f"{p}[")) or p == ""]
        for leaf in leaves
    }
    assert {leaf: found for leaf, found in ways.items() if len(found) != 1} == {}
    unused = set(tables).difference(*ways.values())
    assert unused == set(), "no field of the definition"


def make_manifest(kind: str, **spec: Any) -> Manifest:
    meta = {"name": "main", "namespace": "default"}
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": meta, "spec": spec}


def test_an_authority_of_cert_manager_is_our_own_here() -> None:
    """The operator would wait for an issuer for ever."""
    authority = {"type": "certManager", "issuerRef": {"name": "ours"}, "validityDays": 90}
    adapted, listed = adapt(
        make_manifest("QueueCluster", clusterCa=authority, clientsCa={"type": "internal"})
    )
    assert listed == ["spec.clusterCa.issuerRef", "spec.clusterCa.type"]
    assert adapted["spec"]["clusterCa"] == {"validityDays": 90}


def test_a_tiered_topic_is_an_ordinary_one_here() -> None:
    """There is no `tieredStorage`, so brokers would refuse it for ever."""
    config = {"remote.storage.enable": "true", "retention.ms": "1"}
    topic = make_manifest("QueueTopic", tiered=True, localRetention={"time": "1h"}, config=config)
    adapted, listed = adapt(topic)
    fields = ("config[remote.storage.enable]", "localRetention", "tiered")
    assert listed == [f"spec.{name}" for name in fields]
    assert adapted["spec"] == {"config": {"retention.ms": "1"}}
    assert adapt(make_manifest("QueueTopic", tiered=False))[1] == []


def test_node_pools_list_their_fields_by_name() -> None:
    pod = {"nodeSelector": {"disk": "fast"}, "containers": [{"name": "proxy"}], "labels": {}}
    pool = {"name": "big", "storage": {"size": "1Ti"}, "template": {"pod": pod}}
    adapted, listed = adapt(make_manifest("QueueCluster", nodePools=[{"name": "small"}, pool]))
    fields = ("storage", "template.pod.containers", "template.pod.nodeSelector")
    assert listed == [f"spec.nodePools[big].{name}" for name in fields]
    assert "containers" not in adapted["spec"]["nodePools"][1]["template"]["pod"]


def test_of_pods_all_is_listed_that_a_process_does_not_have() -> None:
    source = {"resourceFieldRef": {"resource": "limits.cpu"}}
    container = {
        "name": "c",
        "command": ["worker"],
        "env": [{"name": "CPUS", "valueFrom": source}, {"name": "ONE", "value": "1"}],
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}, "postStart": {"exec": {}}},
        "ports": [{"containerPort": 80}],
        "readinessProbe": {"grpc": {"port": 80}, "periodSeconds": 1},
        "volumeDevices": [{"name": "raw"}],
    }
    pod = {"containers": [container], "hostNetwork": True, "volumes": [], "priority": 5}
    consumer = make_manifest("ShareConsumer", job={"template": {"spec": pod}})
    listed = [name.removeprefix("spec.job.template.spec.") for name in adapt(consumer)[1]]
    assert listed == [
        "containers[c].env[CPUS].valueFrom.resourceFieldRef",
        "containers[c].lifecycle.postStart",
        "containers[c].ports",
        "containers[c].readinessProbe.grpc",
        "containers[c].volumeDevices",
        "hostNetwork",
        "priority",
    ]


def test_of_sparks_templates_the_drivers_container_counts() -> None:
    """The driver runs the tasks of executors, with their variables and volumes."""
    driver = {"name": "spark-kubernetes-driver", "env": [], "resources": {"limits": {"gpu": "1"}}}
    executor = {"name": "spark-kubernetes-executor", "workingDir": "/app", "env": []}
    spark = {
        role: {"template": {"spec": {"containers": [container, {"name": "sidecar"}]}}}
        for role, container in (("driver", driver), ("executor", executor))
    }
    listed = adapt(make_manifest("ShareConsumer", spark={**spark, "sparkVersion": "4.0.0"}))[1]
    assert listed == [
        "spec.spark.driver.template.spec.containers[sidecar]",
        "spec.spark.driver.template.spec.containers[spark-kubernetes-driver].resources",
        "spec.spark.executor.template.spec.containers[sidecar]",
        "spec.spark.executor.template.spec.containers[spark-kubernetes-executor].workingDir",
        "spec.spark.sparkVersion",
    ]


def test_what_was_left_out_is_no_change_of_the_next_apply(tmp_path: Path) -> None:
    """`restoreFrom` can be set only when a QueueCluster is created, and the stored one has none."""
    store = {"type": "S3", "bucket": "b", "endpoint": "http://s3", "region": "r"}
    cluster = make_manifest(
        "QueueCluster",
        storage={"size": "1Gi"},
        tieredStorage=store,
        restoreFrom={"clusterId": "c" * 22},
    )
    api = LocalApi(tmp_path)
    first, second = (apply_manifests(api, [cluster]) for _ in range(2))
    assert (first.errors, second.errors) == ([], [])
    assert second.lines == ["queuecluster.shoal.dev/main unchanged"]
    cluster["spec"]["storage"]["type"] = "ephemeral"
    assert "storage.type cannot change" in apply_manifests(api, [cluster]).errors[0]
