"""Brokers that serve clients and are not ready, because their replicas have to catch up."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from kube import rendered
from kube.api_server import ApiServer, CrashPoint, Manifest
from shoal_operator.brokers import roller
from shoal_operator.brokers.broker_states import ClusterState
from shoal_operator.brokers.roller import PartitionState, RefuseStep, RestartStep, WaitStep
from shoal_operator.cluster import decision
from shoal_operator.cluster.observation import Observation

BROKERS = frozenset(range(3))
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class World:
    """Three brokers; broker 1 has started and is not ready."""

    def __init__(self, per_pod: int = 1) -> None:
        self.kube = ApiServer(CrashPoint())
        self.resource = copy.deepcopy(rendered.clusters()["whole"])
        del self.resource["spec"]["rack"]
        self.resource["spec"] |= {"replicas": 3, "brokersPerPod": per_pod}
        self.apply()
        for pod in self.kube.all("Pod"):
            for status in pod["status"]["containerStatuses"]:
                status["started"] = True
        self.kube.probe("main-broker-1", succeeds=False)

    def apply(self) -> None:
        """Apply the StatefulSet; pods keep their template until they are deleted."""
        for made in rendered.rendered(self.resource):
            if made["kind"] == "StatefulSet":
                self.kube.add(made)

    def pod(self) -> Manifest:
        return self.kube.find("Pod", "main-broker-1")

    def seen(self, serving: frozenset[int] = BROKERS) -> Observation:
        stateful_sets = {one["metadata"]["name"]: one for one in self.kube.all("StatefulSet")}
        state = ClusterState("id", 0, {}, BROKERS, serving=serving)
        pods = tuple(self.kube.all("Pod"))
        services = rendered.services(self.resource)
        return Observation(self.resource, self.resource, stateful_sets, pods, (), services, state)

    def step(self, serving: frozenset[int] = BROKERS, *isr: int) -> roller.Step:
        rows = [PartitionState("jobs-0", (0, 1, 2), isr or (0, 2), 2)]
        return decision.choose_next_step(self.seen(serving), rows, NOW)


def verdict(world: World, step: roller.Step) -> Any:
    return decision.decide_verdict(world.seen(), step, None, None)


def test_a_broker_that_catches_up_is_no_alarm() -> None:
    world = World()
    step = world.step()
    assert step == roller.DoneStep()
    said = verdict(world, step)
    assert (said.ready, said.reason, said.progressing, said.alarm) == (
        True,
        "CatchingUp",
        True,
        False,
    )
    assert "Broker 1 catches up" in said.message
    world.kube.probe("main-broker-1", succeeds=True)
    assert verdict(world, world.step()).reason == "Reconciled"


@pytest.mark.parametrize("case", ["does not answer", "starts", "stops", "is on a lost node"])
def test_a_broker_that_does_not_serve_is_waited_for(case: str) -> None:
    world = World()
    if case == "starts":
        # The process of the former pod answered.
        world.pod()["status"]["containerStatuses"][0]["started"] = False
    if case == "stops":
        world.pod()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if case == "is on a lost node":
        # Its kubelet is silent: the containers' states are old, and Kubernetes says not ready.
        world.pod()["status"]["containerStatuses"][0]["ready"] = True
    step = world.step(BROKERS - {1} if case == "does not answer" else BROKERS)
    assert isinstance(step, WaitStep)
    assert step.reason == "broker 1 is not ready"


def test_one_of_several_brokers_in_the_pod_does_not_serve() -> None:
    world = World(per_pod=2)
    every = frozenset({0, 1, 2, 1000, 1001, 1002})
    assert world.step(every) == roller.DoneStep()
    assert isinstance(world.step(every - {1001}), WaitStep)


def test_a_roll_restarts_brokers_that_catch_up_by_the_rule_of_all_others() -> None:
    world = World()
    world.resource["spec"]["config"] = {"num.partitions": "9"}
    world.apply()
    # Without brokers 0 or 2, the partition would be below its min ISR.
    step = world.step()
    assert isinstance(step, RestartStep)
    assert step.broker_id == 1
    # Another partition needs broker 1, and its pod is not restarted as one that is broken.
    rows = [
        PartitionState("jobs-0", (0, 1, 2), (0, 2), 2),
        PartitionState("jobs-1", (0, 1, 2), (0, 1), 2),
        PartitionState("jobs-2", (0, 1, 2), (1, 2), 2),
    ]
    step = decision.choose_next_step(world.seen(), rows, NOW)
    assert isinstance(step, WaitStep)
    assert step.serving
    assert "min ISR" in step.reason


def test_catching_up_for_hours_does_not_stop_a_roll() -> None:
    world = World()
    stamp = "2020-01-01T00:00:00+00:00"
    world.pod()["status"]["conditions"][0]["lastTransitionTime"] = stamp
    assert not isinstance(world.step(), RefuseStep)
    assert isinstance(world.step(frozenset()), RefuseStep)
