"""Running brokers get other CPU and memory in place, or by a restart where that is impossible."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube import rendered
from kube.brokers.test_evictions import NOW
from kube.brokers.test_evictions import World as Unready
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.roller import DoneStep, PartitionState, RestartStep
from shoal_operator.cluster import decision
from shoal_operator.cluster.observation import ClusterObserver
from shoal_operator.cluster.resizes import PodResizer
from shoal_operator.kube.kube import KubeError
from shoal_operator.model.names import API_VERSION, TEMPLATE

if TYPE_CHECKING:
    from shoal_operator.brokers import roller
    from shoal_operator.brokers.diagnostics import Diagnosis
    from shoal_operator.cluster.observation import Observation
    from shoal_operator.kube.conditions import Verdict

SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
LARGE = {"requests": {"cpu": "2", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
IN_SYNC = [PartitionState("jobs-0", (0, 1, 2), (0, 1, 2), 2)]
PODS = [f"main-broker-{number}" for number in range(3)]
NO_PERMISSION = (
    'pods "main-broker-0" is forbidden: User "system:serviceaccount:shoal:shoal-operator" cannot '
    'patch resource "pods/resize" in API group "" in the namespace "n"'
)


class World(Unready):
    """Three ready brokers of the resources `SMALL`."""

    def __init__(self) -> None:
        super().__init__()
        for pod in PODS:
            self.kube.probe(pod, succeeds=True)
        self.unresizable: frozenset[str] = frozenset()
        self.resource |= {"apiVersion": API_VERSION, "kind": "QueueCluster"}
        self.change(resources=SMALL)
        for pod in PODS:
            asyncio.run(self.kube.delete(self.kube.find("Pod", pod)))

    def change(self, **spec: Any) -> None:
        self.resource["spec"] |= spec
        self.apply()

    def resize(self) -> Diagnosis | None:
        """Run one pass over the pods; return what is refused."""

        async def run() -> Diagnosis | None:
            brokers, store = Brokers("nowhere:1"), self.kube.store()
            observer = ClusterObserver(store, brokers, "n", "main", lambda: None)
            resizer = PodResizer(self.kube, store, observer)
            try:
                refused = await resizer.resize(self.resource)
            finally:
                await brokers.close()
            self.unresizable = frozenset(observer.unresizable)
            return refused

        return asyncio.run(run())

    def look(self) -> tuple[roller.Step, Verdict]:
        seen: Observation = self.seen()
        object.__setattr__(seen, "unresizable", self.unresizable)
        step = decision.choose_next_step(seen, IN_SYNC, NOW)
        return step, decision.decide_verdict(seen, step, None, None)

    def resources(self) -> list[Any]:
        pods = [self.kube.find("Pod", pod) for pod in PODS]
        return [pod["spec"]["containers"][0]["resources"] for pod in pods]

    def say(self, kind: str, reason: str, message: str) -> None:
        """Set a condition of broker 0's pod, as the kubelet does."""
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        self.kube.find("Pod", PODS[0])["status"]["conditions"].append(condition)


def test_more_cpu_and_memory_restart_nothing() -> None:
    world = World()
    assert world.look()[0] == DoneStep()
    before = [world.kube.find("Pod", pod)["metadata"]["uid"] for pod in PODS]
    world.change(resources=LARGE)
    assert world.resize() is None
    assert world.resources() == [LARGE] * 3
    assert world.look()[0] == DoneStep()
    assert [world.kube.find("Pod", pod)["metadata"]["uid"] for pod in PODS] == before
    events = [event["reason"] for event in world.kube.all("Event")]
    assert events == ["BrokerResized"] * 3
    # The second pass finds nothing to do, and a later change of something else restarts brokers.
    assert world.resize() is None
    assert len(world.kube.all("Event")) == 3
    world.change(config={"num.partitions": "9"})
    assert isinstance(world.look()[0], RestartStep)


@pytest.mark.parametrize(
    "spec",
    [
        {"resources": LARGE, "config": {"num.partitions": "9"}},
        # A running pod gains and loses no limit.
        {"resources": {"requests": SMALL["requests"]}},
        {"resources": {**SMALL, "limits": {"cpu": "1", "memory": "1Gi"}}},
    ],
)
def test_what_a_resize_cannot_do_restarts_the_brokers(spec: dict[str, Any]) -> None:
    world = World()
    world.change(**spec)
    assert world.resize() is None
    assert world.resources() == [SMALL] * 3
    assert isinstance(world.look()[0], RestartStep)


@pytest.mark.parametrize(
    "error",
    [
        KubeError(404, "the server could not find the requested resource"),
        KubeError(422, "Pod is invalid: spec: Invalid value: Pod QOS Class may not change"),
        KubeError(403, NO_PERMISSION),
    ],
)
def test_where_pods_cannot_be_resized_they_restart(error: KubeError) -> None:
    world = World()
    world.change(resources=LARGE)
    world.kube.refused |= {("Pod", pod): error for pod in PODS}
    assert world.resize() is None
    step, _ = world.look()
    assert isinstance(step, RestartStep)
    assert "its CPU or memory changes" in step.reason


def test_a_quota_that_forbids_a_resize_is_said_and_restarts_nothing() -> None:
    world = World()
    world.change(resources=LARGE)
    world.kube.refused["Pod", PODS[0]] = KubeError(403, 'is forbidden: exceeded quota: "q"')
    said = world.resize()
    assert said is not None
    assert said.reason == "ResizeRefused"
    assert 'main-broker-0 keeps its CPU and memory: is forbidden: exceeded quota: "q"' in str(said)
    assert world.resources() == [SMALL, LARGE, LARGE]
    assert world.look()[0] == DoneStep()


def test_an_api_server_that_fails_is_asked_again() -> None:
    world = World()
    world.change(resources=LARGE)
    world.kube.refused["Pod", PODS[0]] = KubeError(500, "etcd has no leader")
    with pytest.raises(KubeError, match="etcd"):
        world.resize()


def test_what_the_node_says_about_a_resize() -> None:
    world = World()
    world.change(resources=LARGE)
    world.resize()
    world.say("PodResizeInProgress", "", "")
    step, said = world.look()
    assert step == DoneStep()
    assert (said.ready, said.reason, said.progressing) == (True, "Resizing", True)
    world.say("PodResizePending", "Deferred", "Node didn't have enough resource: cpu")
    _, said = world.look()
    assert (said.ready, said.reason) == (True, "ResizeWaits")
    assert "once its node has room: Node didn't have enough resource: cpu. To let" in said.message


def test_a_node_that_is_too_small_leads_to_a_restart() -> None:
    world = World()
    world.change(resources=LARGE)
    world.resize()
    world.say("PodResizePending", "Infeasible", "Node didn't have enough capacity: cpu")
    why = "its node cannot give it the CPU and memory of the spec (Node didn't have enough capacity"
    step, _ = world.look()
    assert isinstance(step, RestartStep)
    assert step.reason.startswith(why)


def test_brokers_with_racks_are_resized_too() -> None:
    """Their init container has their resources, and has ended."""
    whole = rendered.clusters()["whole"]
    assert whole["spec"]["rack"]

    def build_digest(cpu: str) -> str:
        whole["spec"]["resources"] = {"requests": {"cpu": cpu, "memory": "256Mi"}}
        (made,) = [one for one in rendered.rendered(whole) if one["kind"] == "StatefulSet"]
        return str(made["spec"]["template"]["metadata"]["annotations"][TEMPLATE])

    assert build_digest("1") == build_digest("2")
