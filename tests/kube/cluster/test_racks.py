"""Racks of pods: from the node's label to `broker.rack`, with an API server in memory."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from kube import rendered
from kube.api_server import ApiServer, CrashPoint, Manifest
from shoal.client.settings import Settings, get_variable_name
from shoal.server.config import resolve
from shoal_operator import clock
from shoal_operator.brokers import pods
from shoal_operator.brokers.broker_states import ClusterState
from shoal_operator.cluster import racks
from shoal_operator.cluster.decision import find_refusal
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.store import Store
from shoal_operator.model import names
from shoal_operator.model.consumers import deployment, spark
from shoal_operator.model.consumers.consumer_pod import PodContext
from shoal_spark import rack as pod_rack
from shoal_spark.options import ConnectionOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shoal_operator.brokers.roller import BrokerPod

ZONE = "topology.kubernetes.io/zone"


class World:
    """A cluster of pods on nodes, and the reconciler of their racks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        self.kube = Api(CrashPoint())
        self.now_ms = 0
        monkeypatch.setattr(clock, "now_ms", lambda: self.now_ms)
        self.resource = copy.deepcopy(rendered.clusters()["whole"])
        self.resource["spec"] |= spec
        self.store = Store()
        self.racks = racks.RackReconciler(self.kube, self.store, "n", "main")

    def node(self, name: str, zone: str = "") -> None:
        meta = {"name": name, "labels": {ZONE: zone} if zone else {}}
        self.kube.objects["Node", name] = {"apiVersion": "v1", "kind": "Node", "metadata": meta}

    def schedule(self, *nodes: str) -> None:
        """Create the pods, each on the next node."""
        self.kube.scheduled = {f"main-broker-{i}": node for i, node in enumerate(nodes)}
        for made in rendered.rendered(self.resource):
            if made["kind"] == "StatefulSet":
                self.kube.add(made)

    def reconcile(self) -> list[str | None]:
        """Return the racks of all pods after a pass."""
        found = self.kube.all("Pod")
        for pod in found:
            self.store.put(copy.deepcopy(pod))
        asyncio.run(self._pass())
        found = self.kube.all("Pod")
        return [pod["metadata"]["annotations"].get(names.RACK) for pod in found]

    async def _pass(self) -> None:
        await self.racks.reconcile(self.racks.list_names())


class Api(ApiServer):
    """Counts reads of nodes, and may refuse them."""

    reads, refuses = 0, False

    async def _call(self, verb: str, path: str, *given: Any, **more: Any) -> Manifest:
        if "nodes" in path.split("/"):
            self.reads += 1
            if self.refuses:
                raise KubeError(403, "nodes is forbidden")
        return await super()._call(verb, path, *given, **more)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_each_pod_gets_the_zone_of_its_node(world: World) -> None:
    world.node("one", zone="a")
    world.node("two", zone="b")
    world.schedule("one", "two", "one")
    # The fourth pod has no node yet.
    assert world.reconcile() == ["a", "b", "a", None]
    assert world.racks.find_problem() is None
    assert world.kube.reads == 2
    changes = world.kube.crash_point.changes
    assert world.reconcile() == ["a", "b", "a", None]
    assert (world.kube.crash_point.changes, world.kube.reads) == (changes, 2)


def test_a_label_that_comes_later_is_taken_and_one_that_goes_is_kept(world: World) -> None:
    world.node("one")
    world.schedule("one")
    assert world.reconcile()[0] == ""
    problem = world.racks.find_problem()
    assert problem
    assert problem.reason == "NodeWithoutRack"
    assert f"node one has no label {ZONE}" in problem.message
    world.node("one", zone="a")
    world.now_ms += racks.NODE_MS_MAX
    assert world.reconcile()[0] == "a"
    assert world.racks.find_problem() is None
    world.node("one")
    world.now_ms += racks.NODE_MS_MAX
    assert world.reconcile()[0] == "a"


def test_without_permission_to_read_nodes_pods_start_and_the_cluster_says_why(
    world: World,
) -> None:
    world.kube.refuses = True
    world.schedule("one", "two")
    world.kube.find("Pod", "main-broker-1")["metadata"]["labels"][ZONE] = "b"
    # Kubernetes 1.35 has copied the label to the second pod.
    assert world.reconcile()[:2] == ["", "b"]
    problem = world.racks.find_problem()
    assert problem
    assert problem.reason == "NodesNotReadable"
    assert "may not read node one" in problem.message


def test_an_operator_without_permissions_for_racks_refuses_them(world: World) -> None:
    said = find_refusal(world.resource, racks=False)
    assert said
    assert said.reason == "RacksDisabled"
    assert "racks.enabled" in said.message
    assert find_refusal(world.resource) is None
    del world.resource["spec"]["rack"]
    assert find_refusal(world.resource, racks=False) is None


def test_only_pods_that_ask_are_annotated(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    del world.resource["spec"]["rack"]
    world.node("one", zone="a")
    world.schedule("one")
    assert world.reconcile()[0] is None
    assert world.kube.reads == 0


# -- the pod


def template(resource: Mapping[str, Any]) -> Manifest:
    (found,) = (m for m in rendered.rendered(dict(resource)) if m["kind"] == "StatefulSet")
    spec: Manifest = found["spec"]["template"]
    return spec


@pytest.mark.parametrize("per_pod", [1, 3])
def test_all_brokers_of_a_pod_register_its_rack(
    monkeypatch: pytest.MonkeyPatch, per_pod: int
) -> None:
    world = World(monkeypatch, brokersPerPod=per_pod)
    assert find_refusal(world.resource) is None
    made = template(world.resource)
    assert made["metadata"]["annotations"][names.RACK_KEY] == ZONE
    first, *_ = made["spec"]["initContainers"]
    (file,) = (v["downwardAPI"]["items"] for v in made["spec"]["volumes"] if "downwardAPI" in v)
    assert f"{first['volumeMounts'][0]['mountPath']}/{file[0]['path']}" in first["command"]
    files = {m["kind"]: m for m in rendered.rendered(world.resource)}["ConfigMap"]["data"]
    assert len(made["spec"]["containers"]) == per_pod
    for slot, container in enumerate(made["spec"]["containers"]):
        env = {
            e["name"]: "zone-b" if names.RACK in e["valueFrom"]["fieldRef"]["fieldPath"] else "1"
            for e in container["env"]
        }
        path = f"broker-1-{slot}.properties" if slot else "broker-1.properties"
        config = resolve({}, env, files[path], path)
        assert config["broker.rack"] == "zone-b"
        assert config["replica.selector.class"].endswith("RackAwareReplicaSelector")


def test_another_selector_of_replicas_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, config={"replica.selector.class": "mine"})
    (made,) = (m for m in rendered.rendered(world.resource) if m["kind"] == "ConfigMap")
    assert "replica.selector.class=mine\n" in made["data"]["broker-0.properties"]


# -- restarts


def restarts(world: World, registered: Mapping[int, str]) -> list[str]:
    """Return the reason for a restart of each pod."""
    stateful_sets = {one["metadata"]["name"]: one for one in world.kube.all("StatefulSet")}
    state = ClusterState("id", 0, {}, frozenset(range(4)), racks=registered)
    services = rendered.services(world.resource)
    found: list[BrokerPod] = pods.build_broker_pods(
        world.resource, world.kube.all("Pod"), stateful_sets, state, services
    )
    return [pod.restart_reason for pod in found]


def test_a_broker_whose_rack_has_changed_restarts(world: World) -> None:
    world.node("one", zone="a")
    world.schedule("one", "one", "one", "one")
    world.reconcile()
    assert restarts(world, dict.fromkeys(range(4), "a")) == [""] * 4
    found = restarts(world, {0: "a", 1: "old", 2: "a"})
    assert found == ["", "its rack changes from old to a", "", "its rack changes from none to a"]
    # A pod that starts has not registered its own rack yet.
    world.kube.probe("main-broker-1", succeeds=False)
    assert restarts(world, {0: "a", 1: "old", 2: "a", 3: "a"}) == [""] * 4
    world.kube.probe("main-broker-1", succeeds=True)
    assert restarts(world, {0: "a", 1: "old", 2: "a", 3: "a"}) == [""] * 4


# -- consumers


def consumer(**workload: Any) -> Any:
    meta = {"name": "eaters", "namespace": "n", "uid": "u"}
    return {"kind": "ShareConsumer", "metadata": meta, "spec": {"shareGroup": "g", **workload}}


def deployment_of(rack_key: str) -> Manifest:
    pod = {"containers": [{"name": "one", "image": "theirs"}, {"name": "two"}]}
    return deployment.build_manifest(
        consumer(deployment={"template": {"spec": pod}}),
        PodContext("main", "b:9092", "g", ["t"], "shoal/broker:1", "Never", rack_key=rack_key),
        1,
    )["spec"]["template"]


def test_pods_of_a_deployment_know_their_rack_when_they_start() -> None:
    made = deployment_of(ZONE)
    assert made["metadata"]["annotations"] == {names.RACK_KEY: ZONE}
    (waits,) = made["spec"]["initContainers"]
    assert (waits["image"], waits["imagePullPolicy"]) == ("shoal/broker:1", "Never")
    for container in made["spec"]["containers"]:
        path = {e["name"]: e for e in container["env"]}[get_variable_name("client.rack")][
            "valueFrom"
        ]
        assert path == {"fieldRef": {"fieldPath": f"metadata.annotations['{names.RACK}']"}}
    assert (
        Settings.from_environment({get_variable_name("client.rack"): "zone-a"}).client_rack
        == "zone-a"
    )
    # A node without a rack.
    assert Settings.from_environment({get_variable_name("client.rack"): ""}).client_rack == ""
    plain = deployment_of("")
    assert "annotations" not in plain["metadata"]
    assert not plain["spec"].keys() & {"initContainers", "volumes"}


def application_of(rack_key: str) -> Manifest:
    given = {
        "mainApplicationFile": "local:///job.py",
        "maxRecordsPerTrigger": 10,
        "sparkVersion": "4.0.0",
        "coresPerExecutor": 1,
        "minExecutors": 0,
        "maxExecutors": 2,
    }
    context = spark.WorkloadContext("main", "b:9092", "g", ["t"], "i", "http://o", "r")
    context = dataclasses.replace(context, rack=rack_key)
    return spark.build_application(consumer(spark=given), context, suspend=False)["spec"]


def test_executors_find_the_annotations_of_their_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = application_of(ZONE)["executor"]["template"]
    assert made["metadata"]["annotations"] == {names.RACK_KEY: ZONE}
    assert made["metadata"]["labels"][names.CLUSTER_LABEL] == "main"
    (container,) = made["spec"]["containers"]
    assert {"name": pod_rack.VARIABLE, "value": names.POD_ANNOTATIONS} in container["env"]
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == names.POD_DIR
    assert names.RACK == pod_rack.ANNOTATION
    file = tmp_path / "annotations"
    monkeypatch.setenv(pod_rack.VARIABLE, str(file))
    assert pod_rack.read_pod_rack() == ""
    file.write_text(f'{names.RACK_KEY}="{ZONE}"\n')
    assert pod_rack.read_pod_rack() == ""
    file.write_text(f'a="b"\n{names.RACK}="zone-a"\n')
    assert pod_rack.read_pod_rack() == "zone-a"
    at = ConnectionOptions("b:9092").with_rack("zone-a")
    assert at.settings.client_rack == "zone-a"
    assert at.with_rack("other") == at
    assert "annotations" not in str(application_of("")["executor"]["template"]["spec"])
