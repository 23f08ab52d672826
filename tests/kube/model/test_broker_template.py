"""`spec.template` and the Services of listeners: what is rendered, what is refused, what restarts
brokers."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

import pytest
from kube import rendered
from kube.api_server import ApiServer, CrashPoint, resource
from kube.consumers.test_spark_consumers import CONTEXT, SETTINGS
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.decision import find_refusal
from shoal_operator.cluster.objects import ClusterObjects
from shoal_operator.cluster.observation import ClusterObserver
from shoal_operator.consumers.workloads import WorkloadManager
from shoal_operator.kube.kube import KubeError
from shoal_operator.model import cluster as model
from shoal_operator.model import names, pod_layout, storage

if TYPE_CHECKING:
    from shoal_operator.brokers.diagnostics import Diagnosis

Manifest = dict[str, Any]


class Objects:
    """The objects of one QueueCluster in an API server in memory."""

    def __init__(self) -> None:
        self.kube = ApiServer(CrashPoint())
        self.not_grown: Diagnosis | None = None
        self.not_modified: Diagnosis | None = None

    def apply(self, **spec: Any) -> list[str]:
        """Apply a spec as a new operator does; return the Services without an address."""
        least = rendered.clusters()["least"]["spec"]
        self.kube.add(resource("QueueCluster", "main", **{**least, **spec}))
        store = self.kube.store()
        brokers = Brokers("127.0.0.1:1")
        observer = ClusterObserver(store, brokers, "n", "main", on_reachable=lambda: None)
        objects = ClusterObjects(self.kube, store, observer, "i:1", "Always")
        applied = asyncio.run(objects.apply(self.kube.find("QueueCluster", "main")))
        self.not_grown, self.not_modified = applied.not_grown, applied.not_modified
        return list(applied.pending)

    def pod(self) -> Manifest:
        """Return the spec of the pods' template."""
        template = self.kube.find("StatefulSet", "main-broker")["spec"]["template"]
        return template["spec"]


def test_a_field_that_is_removed_from_the_spec_is_removed_from_the_objects() -> None:
    objects = Objects()
    template = {
        "pod": {"nodeSelector": {"disk": "fast"}},
        "service": {"annotations": {"a": "b"}},
    }
    objects.apply(template=template)
    assert objects.pod()["nodeSelector"] == {"disk": "fast"}
    assert objects.kube.find("Service", "main-bootstrap")["metadata"]["annotations"]["a"] == "b"
    objects.apply()
    assert "nodeSelector" not in objects.pod()
    notes = objects.kube.find("Service", "main-bootstrap")["metadata"]["annotations"]
    assert "a" not in notes


def test_objects_that_have_not_changed_are_not_applied_again() -> None:
    objects = Objects()
    objects.apply()
    before = objects.kube.crash_point.changes
    objects.apply()
    assert objects.kube.crash_point.changes == before


def test_a_field_that_is_removed_from_a_consumers_template_is_removed_from_its_pods() -> None:
    kube = ApiServer(CrashPoint())
    pod: Manifest = {"containers": [{"name": "c"}], "nodeSelector": {"disk": "fast"}}

    def apply() -> Manifest:
        spec = {"shareGroup": "g", "deployment": {"template": {"spec": copy.deepcopy(pod)}}}
        kube.add(resource("ShareConsumer", "eaters", **spec))
        consumer: Any = kube.find("ShareConsumer", "eaters")
        asyncio.run(
            WorkloadManager(kube, kube.store(), SETTINGS).apply(consumer, CONTEXT, 1, lag_ms=0)
        )
        return kube.find("Deployment", "eaters")["spec"]["template"]["spec"]

    assert apply()["nodeSelector"] == {"disk": "fast"}
    del pod["nodeSelector"]
    assert "nodeSelector" not in apply()


# -- the pods

POD: Manifest = {
    "securityContext": {"runAsUser": 7, "supplementalGroups": [8]},
    "containerSecurityContext": {"readOnlyRootFilesystem": False},
    "volumes": [{"name": "plugins", "emptyDir": {}}],
    "volumeMounts": [{"name": "plugins", "mountPath": "/opt/plugins"}],
    "containers": [{"name": "logs", "image": "fluent-bit:3"}],
    "initContainers": [{"name": "wait", "image": "busybox:1"}],
    "schedulerName": "volcano",
    "runtimeClassName": "gvisor",
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["idp"]}],
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["10.0.0.2"]},
}


def template(per_pod: int = 1, **pod: Any) -> Manifest:
    least = rendered.clusters()["least"]
    least["spec"] |= {"brokersPerPod": per_pod, "template": {"pod": pod}}
    return rendered.rendered(least)[-1]["spec"]["template"]


@pytest.mark.parametrize("per_pod", [1, 2])
def test_the_fields_of_a_pod_are_in_the_template(per_pod: int) -> None:
    plain, pod = template(per_pod)["spec"], template(per_pod, **POD)["spec"]
    for field in ("securityContext", "initContainers", "schedulerName", "runtimeClassName"):
        assert pod[field] == POD[field], field
    for field in ("hostAliases", "dnsPolicy", "dnsConfig"):
        assert pod[field] == POD[field], field
    assert pod["volumes"] == [*plain["volumes"], *POD["volumes"]]
    *brokers, sidecar = pod["containers"]
    assert sidecar == POD["containers"][0]
    assert [c["name"] for c in brokers] == [pod_layout.format_container(s) for s in range(per_pod)]
    for before, container in zip(plain["containers"], brokers, strict=True):
        mounts = [*before["volumeMounts"], *POD["volumeMounts"]]
        assert container.pop("volumeMounts") == mounts
        assert container.pop("securityContext") == POD["containerSecurityContext"]
        assert container == {k: v for k, v in before.items() if k in container}


def test_kubectl_logs_shows_the_broker_and_not_the_sidecar() -> None:
    key = "kubectl.kubernetes.io/default-container"
    notes = template(containers=POD["containers"])["metadata"]["annotations"]
    assert notes[key] == "broker"
    assert key not in template()["metadata"]["annotations"]


# -- what the operator owns


def refused(**spec: Any) -> str:
    """Return the message of the condition for a spec that is not allowed; empty if it is."""
    least = rendered.clusters()["least"]
    least["spec"] |= spec
    verdict = find_refusal(least)
    if verdict is None:
        return ""
    assert (verdict.reason, verdict.ready) == ("TemplateNotAllowed", False)
    return verdict.message


OPERATORS_NAMES: list[tuple[str, Manifest, str]] = [
    ("volumes", {"name": "data"}, "spec.template.pod.volumes data"),
    ("volumes", {"name": "data15"}, "spec.template.pod.volumes data15"),
    ("volumes", {"name": "tls"}, "spec.template.pod.volumes tls"),
    ("containers", {"name": "broker"}, "spec.template.pod.containers broker"),
    ("initContainers", {"name": "broker1"}, "spec.template.pod.initContainers broker1"),
    (
        "volumeMounts",
        {"name": "v", "mountPath": "/var/lib/shoal/x"},
        "spec.template.pod.volumeMounts /var/lib/shoal/x",
    ),
    (
        "volumeMounts",
        {"name": "v", "mountPath": "/etc/../tmp/"},
        "spec.template.pod.volumeMounts /etc/../tmp/",
    ),
    (
        "containers",
        {"name": "c", "ports": [{"containerPort": 9404}]},
        "spec.template.pod.containers c, port 9404",
    ),
    (
        "initContainers",
        {"name": "c", "ports": [{"containerPort": 1, "name": "plain"}]},
        "spec.template.pod.initContainers c, port plain",
    ),
]


@pytest.mark.parametrize(("field", "entry", "where"), OPERATORS_NAMES)
def test_the_operators_volumes_containers_paths_and_ports_are_refused(
    field: str, entry: Manifest, where: str
) -> None:
    said = refused(template={"pod": {field: [entry]}})
    assert said.startswith(f"{where} is not allowed: "), said


@pytest.mark.parametrize("kind", ["pod", "service", "serviceAccount", "persistentVolumeClaim"])
@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("labels", "app.kubernetes.io/instance"),
        ("labels", "shoal.dev/cluster"),
        ("annotations", "shoal.dev/config-hash"),
    ],
)
def test_the_operators_labels_and_annotations_are_refused(kind: str, field: str, key: str) -> None:
    said = refused(template={kind: {field: {key: "x"}}})
    assert said.startswith(f"spec.template.{kind}.{field} {key} is not allowed: "), said


def test_scraping_is_declared_in_metrics() -> None:
    said = refused(template={"pod": {"annotations": {"prometheus.io/port": "1"}}})
    assert "spec.metrics" in said


def test_everything_else_is_allowed() -> None:
    assert refused(template={"pod": POD}) == ""
    mine = {"labels": {"team": "a", "app.kubernetes.io/part-of": "b"}, "annotations": {"a/b": "c"}}
    kinds = ("pod", "service", "serviceAccount", "persistentVolumeClaim")
    assert refused(template=dict.fromkeys(kinds, mine)) == ""
    near = {"name": "v", "mountPath": "/var/lib/shoal-plugins"}
    assert refused(template={"pod": {"volumeMounts": [near]}}) == ""


# -- objects beside the pods


def test_a_service_account_has_the_annotations_of_a_cloud_identity() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"}
    objects = Objects()
    objects.apply(template={"serviceAccount": {"labels": {"team": "a"}, "annotations": role}})
    meta = objects.kube.find("ServiceAccount", "main-broker")["metadata"]
    assert role.items() <= meta["annotations"].items()
    assert meta["labels"]["team"] == "a"


def test_claims_get_labels_and_annotations_when_they_exist_already() -> None:
    """A StatefulSet's claim templates cannot change."""
    objects = Objects()
    template = {"persistentVolumeClaim": {"labels": {"old": "1"}, "annotations": {"a": "1"}}}
    objects.apply(template=template)
    (made,) = objects.kube.find("StatefulSet", "main-broker")["spec"]["volumeClaimTemplates"]
    assert made["metadata"]["labels"]["old"] == made["metadata"]["annotations"]["a"] == "1"
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **copy.deepcopy(made)}
    claim["metadata"] |= {"name": "data-main-broker-0", "namespace": "n"}
    objects.kube.add(claim)
    before = objects.kube.crash_point.changes
    objects.apply(template=template)
    # A new claim has all from its template: a change would race the scheduler.
    assert objects.kube.crash_point.changes == before
    for notes in ({"a": "2", "b": "3"}, {"b": "3"}, {}):
        template = {"persistentVolumeClaim": {"labels": {"new": "1"}, "annotations": notes}}
        objects.apply(template=template)
        meta = objects.kube.find("PersistentVolumeClaim", "data-main-broker-0")["metadata"]
        found = {k: v for k, v in meta["annotations"].items() if k in ("a", "b")}
        assert found == notes
        assert meta["labels"] == {**names.build_labels("main"), "new": "1"}
    before = objects.kube.crash_point.changes
    objects.apply(template=template)
    assert objects.kube.crash_point.changes == before


def test_claims_grow_and_the_claim_template_stays() -> None:
    objects = Objects()
    objects.apply()
    before = copy.deepcopy(objects.kube.find("StatefulSet", "main-broker"))
    (made,) = before["spec"]["volumeClaimTemplates"]
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **copy.deepcopy(made)}
    claim["metadata"] |= {"name": "data-main-broker-0", "namespace": "n"}
    objects.kube.add(claim)
    objects.apply(storage={"size": "2Gi"})
    grown = objects.kube.find("PersistentVolumeClaim", "data-main-broker-0")
    assert grown["spec"]["resources"]["requests"]["storage"] == "2Gi"
    after = objects.kube.find("StatefulSet", "main-broker")
    assert after["spec"] == before["spec"]
    changes = objects.kube.crash_point.changes
    objects.apply(storage={"size": "2Gi"})
    assert objects.kube.crash_point.changes == changes
    # A new broker has the new size, and what the claim template has.
    objects.apply(storage={"size": "2Gi"}, replicas=2)
    new = objects.kube.find("PersistentVolumeClaim", "data-main-broker-1")
    assert new["spec"] == made["spec"] | {"resources": {"requests": {"storage": "2Gi"}}}
    assert new["metadata"]["labels"] == made["metadata"]["labels"]


def make_claim(objects: Objects) -> Manifest:
    """Create the claim of the first broker, as the controller of its StatefulSet does."""
    (made,) = objects.kube.find("StatefulSet", "main-broker")["spec"]["volumeClaimTemplates"]
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **copy.deepcopy(made)}
    claim["metadata"] |= {"name": "data-main-broker-0", "namespace": "n"}
    objects.kube.add(claim)
    return objects.kube.find("PersistentVolumeClaim", "data-main-broker-0")


def test_volumes_change_their_attributes_without_a_restart() -> None:
    objects = Objects()
    objects.apply()
    claim, before = make_claim(objects), objects.kube.find("StatefulSet", "main-broker")
    assert "volumeAttributesClassName" not in claim["spec"]
    fast = {"size": "1Gi", "volumeAttributesClassName": "fast"}
    objects.apply(storage=fast)
    claim = objects.kube.find("PersistentVolumeClaim", "data-main-broker-0")
    assert claim["spec"]["volumeAttributesClassName"] == "fast"
    assert objects.kube.find("StatefulSet", "main-broker")["spec"] == before["spec"]
    assert objects.not_modified is None
    changes = objects.kube.crash_point.changes
    objects.apply(storage=fast)
    assert objects.kube.crash_point.changes == changes
    objects.apply(storage={"size": "1Gi"})
    assert claim["spec"]["volumeAttributesClassName"] == "fast", "Kubernetes removes none"
    # A new cluster has it from the beginning.
    again = Objects()
    again.apply(storage=fast)
    (made,) = again.kube.find("StatefulSet", "main-broker")["spec"]["volumeClaimTemplates"]
    assert made["spec"]["volumeAttributesClassName"] == "fast"


def test_a_volume_that_does_not_get_its_attributes_is_a_warning() -> None:
    objects = Objects()
    objects.apply()
    claim, about = make_claim(objects), ("PersistentVolumeClaim", "data-main-broker-0")
    objects.kube.refused[about] = KubeError(422, "the class is of another driver.")
    fast = {"size": "1Gi", "volumeAttributesClassName": "fast"}
    objects.apply(storage=fast)
    assert objects.not_modified is not None
    assert objects.not_modified.reason == "VolumeNotModified"
    assert "data-main-broker-0 does not get the VolumeAttributesClass 'fast': the class is of" in (
        objects.not_modified.message
    )
    # The driver refuses it later.
    del objects.kube.refused[about]
    objects.apply(storage=fast)
    assert objects.not_modified is None
    claim = objects.kube.find(*about)
    modify = {"targetVolumeAttributesClassName": "fast", "status": "Infeasible"}
    claim["status"] = {"modifyVolumeStatus": modify}
    claim["status"]["conditions"] = [
        {"type": "VolumeModifyVolumeError", "message": "iops too high"}
    ]
    objects.apply(storage=fast)
    assert objects.not_modified is not None
    assert "iops too high" in objects.not_modified.message
    slow = {**fast, "volumeAttributesClassName": "slow"}
    objects.apply(storage=slow)
    assert objects.not_modified is None, "what was infeasible was another class"


def test_a_kubernetes_without_volume_attributes_is_a_warning() -> None:
    """It drops the field."""
    objects = Objects()
    objects.apply()
    make_claim(objects)
    objects.kube.dropped.add("volumeAttributesClassName")
    objects.apply(storage={"size": "1Gi", "volumeAttributesClassName": "fast"})
    assert objects.not_modified is not None
    assert "this Kubernetes has no VolumeAttributesClasses" in objects.not_modified.message


def test_a_volume_that_cannot_grow_lets_the_spec_return_to_its_size() -> None:
    objects = Objects()
    objects.apply()
    (made,) = objects.kube.find("StatefulSet", "main-broker")["spec"]["volumeClaimTemplates"]
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **copy.deepcopy(made)}
    claim["metadata"] |= {"name": "data-main-broker-0", "namespace": "n"}
    objects.kube.add(claim)
    about = ("PersistentVolumeClaim", "data-main-broker-0")
    objects.kube.refused[about] = KubeError(422, "only dynamically provisioned pvc can be resized")
    objects.apply(storage={"size": "2Gi"})
    problem = objects.not_grown
    assert problem is not None
    assert problem.reason == "VolumeNotGrown"
    assert "data-main-broker-0: no volume becomes 2Gi: only dyn" in problem.message
    assert "set the size to that of status.volumeSize" in problem.message
    objects.apply()
    assert objects.not_grown is None
    # A driver that accepted the size and cannot provide it: the request goes back.
    del objects.kube.refused[about]
    objects.apply(storage={"size": "2Gi"})
    found = objects.kube.find(*about)
    assert found["spec"]["resources"]["requests"]["storage"] == "2Gi"
    found["status"] = {"capacity": {"storage": "1Gi"}}
    assert storage.find_volume_size(objects.kube.find("QueueCluster", "main"), [found]) == "1Gi"
    objects.apply()
    assert objects.kube.find(*about)["spec"]["resources"]["requests"]["storage"] == "1Gi"


def test_the_size_that_all_volumes_have() -> None:
    def claim(asked: str, have: str = "", pool: str = "") -> dict[str, Any]:
        labels = {names.NODE_POOL: pool} if pool else {}
        capacity = {"capacity": {"storage": have}} if have else {}
        requests = {"resources": {"requests": {"storage": asked}}}
        return {"metadata": {"labels": labels}, "spec": requests, "status": capacity}

    own = {"name": "large", "storage": {"size": "9Gi"}}
    spec = {"storage": {"size": "2Gi"}, "nodePools": [own, {"name": "same"}]}
    cluster: Any = {"spec": spec}
    rounded = [claim("900Mi", "1Gi"), claim("2Gi", "1000Mi"), claim("9Gi", "9Gi", "large")]
    assert storage.find_volume_size(cluster, rounded) == "1000Mi"
    assert storage.find_volume_size(cluster, [*rounded, claim("1Gi", "1Gi", "same")]) == "1Gi"
    assert storage.find_volume_size(cluster, [claim("3Gi")]) == "3Gi"
    assert storage.find_volume_size(cluster, []) == ""


def test_only_a_change_of_the_pods_restarts_brokers() -> None:
    least = rendered.clusters()["least"]
    least["spec"]["listeners"].append({"name": "outside", "port": 9094, "type": "LoadBalancer"})
    before = rendered.rendered(least)[-1]["spec"]["template"]
    kinds = ("service", "serviceAccount", "persistentVolumeClaim")
    mine = {"labels": {"team": "a"}, "annotations": {"a/b": "c"}}
    least["spec"]["template"] = dict.fromkeys(kinds, mine)
    least["spec"]["listeners"][1] |= LISTENER
    assert rendered.rendered(least)[-1]["spec"]["template"] == before


# -- Services of listeners

LISTENER: Manifest = {
    "labels": {"team": "a"},
    "annotations": {"lb": "internal"},
    "externalTrafficPolicy": "Local",
    "loadBalancerSourceRanges": ["10.0.0.0/8"],
    "bootstrap": {"nodePort": 30000, "annotations": {"dns": "b.example"}},
    "brokers": [
        {"broker": 0, "nodePort": 30001, "annotations": {"dns": "0.example"}, "labels": {"b": "0"}}
    ],
}


def services(**listener: Any) -> dict[str, Manifest]:
    least = rendered.clusters()["least"]
    least["spec"] |= {"replicas": 3, "template": {"service": {"annotations": {"all": "1"}}}}
    outside = {"name": "outside", "port": 9094, "type": "LoadBalancer", **listener}
    least["spec"]["listeners"].append(outside)
    made = model.build_service_manifests(least)
    return {m["metadata"]["name"]: m for m in made}


def test_the_services_of_a_listener_have_its_fields() -> None:
    made = services(**LISTENER)
    own = {n: m for n, m in made.items() if "-outside-" in n}
    assert len(own) == 4
    for service in own.values():
        assert service["spec"]["externalTrafficPolicy"] == "Local"
        assert service["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
        assert service["metadata"]["labels"]["team"] == "a"
        assert service["metadata"]["annotations"]["lb"] == "internal"
        assert service["metadata"]["annotations"]["all"] == "1"
    for name in ("main-brokers", "main-bootstrap"):
        assert made[name]["metadata"]["annotations"] == {"all": "1"}
        assert not {"externalTrafficPolicy", "loadBalancerSourceRanges"} & made[name]["spec"].keys()
    ports = {n: m["spec"]["ports"][0].get("nodePort") for n, m in own.items()}
    assert ports == {
        "main-outside-bootstrap": 30000,
        "main-outside-0": 30001,
        "main-outside-1": None,
        "main-outside-2": None,
    }
    notes = {n: m["metadata"]["annotations"].get("dns") for n, m in own.items()}
    assert list(notes.values()) == ["b.example", "0.example", None, None]
    assert own["main-outside-0"]["metadata"]["labels"]["b"] == "0"


@pytest.mark.parametrize(
    ("path", "listener"),
    [
        ("labels shoal.dev/cluster", {"labels": {"shoal.dev/cluster": "x"}}),
        (
            "bootstrap.labels app.kubernetes.io/name",
            {"bootstrap": {"labels": {"app.kubernetes.io/name": "x"}}},
        ),
        (
            "brokers[0].annotations shoal.dev/applied",
            {"brokers": [{"broker": 3, "annotations": {"shoal.dev/applied": "x"}}]},
        ),
    ],
)
def test_the_operators_labels_of_services_are_refused(path: str, listener: Manifest) -> None:
    least = rendered.clusters()["least"]["spec"]["listeners"]
    outside = {"name": "outside", "port": 9094, "type": "NodePort", **listener}
    said = refused(listeners=[*least, outside])
    assert said.startswith(f"spec.listeners[1].{path} is not allowed: "), said
