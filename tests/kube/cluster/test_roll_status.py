"""What the status of a QueueCluster says while its brokers restart, or wait for a window."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.brokers.test_evictions import BROKERS, NOW, World
from kube.gitops.kstatus import results
from kube.kube.test_interrupted import CLUSTER, CrashingBrokers
from kube.kube.test_interrupted import World as Interrupted
from shoal_operator.brokers import roller
from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.brokers.roller import PartitionState, PostponeStep, RestartStep
from shoal_operator.cluster import decision
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.kube.conditions import Verdict, build_conditions
from shoal_operator.kube.kube import KubeError
from support.brokers.servers import ShoalProcess

if TYPE_CHECKING:
    from pathlib import Path

#: Saturdays at two; NOW is a Thursday.
WINDOW = {"schedule": "0 2 * * 6", "duration": "2h"}
IN_SYNC = [PartitionState("jobs-0", (0, 1, 2), (0, 1, 2), 2)]


class Roll(World):
    """Three brokers that are ready, with a new config that restarts them."""

    def __init__(self, *, was_ready: bool = True, **spec: Any) -> None:
        super().__init__()
        self.kube.probe("main-broker-1", succeeds=True)
        before = (
            Verdict.make_reconciled("x") if was_ready else Verdict.make_waiting("Starting", "x")
        )
        self.resource["spec"] |= spec
        self.resource["spec"]["config"] = {"num.partitions": "9"}
        self.apply()
        self.write(before)

    def write(self, verdict: Verdict) -> None:
        rows = build_conditions(verdict, 1, "t", None)
        self.resource["status"] = {"observedGeneration": 1, "conditions": rows}

    def look(self) -> tuple[roller.Step, Verdict]:
        """Reconcile once, and write the status."""
        step = decision.choose_next_step(self.seen(), IN_SYNC, NOW)
        verdict = decision.decide_verdict(self.seen(), step, None, None)
        self.write(verdict)
        return step, verdict

    def stop(self, pod: str) -> None:
        """A pod has been deleted, and its successor has not started a container yet."""
        self.kube.probe(pod, succeeds=False)
        for container in self.kube.find("Pod", pod)["status"]["containerStatuses"]:
            container["started"] = False

    def renew(self, pod: str) -> None:
        """A pod has a successor with the newest template, which is not ready yet."""
        labels = self.kube.find("Pod", pod)["metadata"]["labels"]
        labels["controller-revision-hash"] = self.kube.find("StatefulSet", "main-broker")["status"][
            "updateRevision"
        ]
        self.stop(pod)


def test_a_routine_roll_stays_ready() -> None:
    roll = Roll()
    step, said = roll.look()
    assert isinstance(step, RestartStep)
    assert (said.ready, said.reason, said.progressing) == (True, "Rolling", True)
    roll.renew("main-broker-1")
    for _ in range(2):
        step, said = roll.look()
        assert step == roller.WaitStep(2.0, "broker 1 is not ready")
        assert (said.ready, said.reason, said.progressing) == (True, "Restarting", True)
    # A second broker that is away is no routine.
    roll.stop("main-broker-2")
    assert not roll.look()[1].ready


def test_a_roll_shows_itself_while_brokers_are_removed() -> None:
    """Otherwise, the next pass would not know that the operator has stopped the broker."""
    roll, moving = Roll(), Diagnosis("ScalingDown", "Replicas move.")
    seen = roll.seen()
    rolling = decision.decide_verdict(
        seen, decision.choose_next_step(seen, IN_SYNC, NOW), moving, None
    )
    assert (rolling.ready, rolling.reason, rolling.warning) == (True, "Rolling", moving)
    done = decision.decide_verdict(seen, roller.DoneStep(), moving, None)
    assert (done.ready, done.reason) == (True, "ScalingDown")


def test_a_cluster_that_was_not_ready_is_not_ready_in_a_roll() -> None:
    roll = Roll(was_ready=False)
    assert (roll.look()[1].ready, roll.look()[1].reason) == (False, "Rolling")
    roll.renew("main-broker-1")
    assert (roll.look()[1].ready, roll.look()[1].reason) == (False, "Restarting")


def test_a_broker_that_fails_in_a_roll_is_no_routine() -> None:
    roll = Roll()
    roll.look()
    roll.renew("main-broker-1")
    (container,) = roll.pod()["status"]["containerStatuses"]
    container["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    said = roll.look()[1]
    assert (said.ready, said.reason, said.alarm) == (False, "ImageNotPulled", True)


def test_a_roll_that_waits_for_a_window_is_current_and_says_what_when_and_why() -> None:
    roll = Roll(maintenanceWindows=[WINDOW])
    step, said = roll.look()
    why = "a config that needs a restart has changed"
    assert step == PostponeStep(len(BROKERS), why, "2026-01-03T02:00:00Z")
    assert (said.ready, said.reason) == (True, "RollWaits")
    assert said.message == (
        "3 pods restart, one after the other, in the maintenance window that begins at "
        f"2026-01-03T02:00:00Z: {why}."
    )
    roll.resource["metadata"] |= {"generation": 1}
    assert results([roll.resource]) == ["Current"]


def test_a_restart_that_the_api_server_refuses_is_said_and_repeated(tmp_path: Path) -> None:
    """Without its reason, a roll would just not go on."""
    broker = ShoalProcess(tmp_path, flags=["--node-id=0"]).start()
    world = Interrupted(broker)
    world.kube.add(CLUSTER)
    asyncio.run(world.settle())
    denied = KubeError(403, 'pods "main-broker-0" is forbidden: nobody deletes pods')
    world.kube.refused["Pod", "main-broker-0"] = denied
    config = {"num.partitions": "8"}
    world.kube.add({**CLUSTER, "spec": {**CLUSTER["spec"], "config": config}})

    async def run() -> list[str]:
        brokers = CrashingBrokers(broker.bootstrap, world.crash_point)
        place = (world.kube, world.kube.store(), brokers, "n", "main")
        clusters = QueueClusterReconciler(*place, "image:1", on_reachable=lambda: None)
        said = []
        try:
            for _ in range(3):
                with pytest.raises(KubeError, match="nobody deletes pods"):
                    await clusters.reconcile(["main"])
                conditions = world.kube.find("QueueCluster", "main")["status"]["conditions"]
                (one,) = (c for c in conditions if c["type"] == "Degraded")
                said.append(f"{one['status']} {one['reason']}: {one['message']}")
            del world.kube.refused["Pod", "main-broker-0"]
            await clusters.reconcile(["main"])
        finally:
            await brokers.close()
        return said

    try:
        first, second, third = asyncio.run(run())
    finally:
        broker.stop()
    assert first.startswith("False")
    assert second.startswith("True ApplyFailed: Pod main-broker-0 cannot be restarted: pods ")
    assert third == second
    assert len(world.event_messages("ApplyFailed")) == 1
    assert world.kube.deleted == ["Pod/main-broker-0"]
