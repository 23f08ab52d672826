"""ShareConsumers with `spec.job`: Jobs are started for records, and never stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.consumers.test_scale_targets import Shop, ready
from shoal_operator.brokers.broker_states import GroupState
from shoal_operator.consumers.jobs import BACKOFF_MS, STARTED_MAX
from shoal_operator.consumers.scaling import GroupLoad, ScalingHistory, ScalingPolicy, decide
from shoal_operator.model.consumers import job
from shoal_operator.model.consumers.consumer_pod import PodContext

if TYPE_CHECKING:
    from collections.abc import Callable

ABOUT = PodContext("main", "b:1", "g", ["t", "u"], "r/broker:1", "Always")
TEMPLATE = {"template": {"spec": {"containers": [{"name": "one"}]}}}
LABEL = "batch.kubernetes.io/job-name"


class JobShop(Shop):
    """A namespace with a ShareConsumer that starts a Job for each record."""

    def __init__(self, **of_job: Any) -> None:
        scaling = {"targetLagPerReplica": 1, "recordsPerReplica": 1, "maxReplicas": 5}
        super().__init__(scaleTargetRef=None, job=TEMPLATE | of_job, scaling=scaling)

    async def at(self, lag: int, in_flight: int = 0, *, read: bool = True) -> dict[str, Any]:
        """Decide; return the ShareConsumer's status. Without `read`, the lag is that of before."""
        self.brokers.answer = GroupState("workers", "share", lag=lag, in_flight=in_flight)
        if read:
            await self.monitor.watch([])
        await self.consumers.reconcile(["eaters"])
        return self.kube.find("ShareConsumer", "eaters")["status"]

    def names(self) -> list[str]:
        found = [one["metadata"]["name"] for one in self.kube.all("Job")]
        return sorted(found, key=lambda name: int(name.rpartition("-")[2]))

    def active(self) -> list[str]:
        return [o["metadata"]["name"] for o in self.kube.all("Job") if not job.get_end_condition(o)]

    def report(self, name: str, **status: Any) -> None:
        """Write the status of a Job, as Kubernetes' controller does."""
        found = self.kube.find("Job", name)
        found["status"] = status
        found["metadata"]["resourceVersion"] = str(next(self.kube.numbers))
        self.store.put(found)

    def end(self, name: str, kind: str = "Complete") -> None:
        stamp = f"2026-01-01T00:00:{int(name.rpartition('-')[2]):02}Z"
        about = {"reason": "BackoffLimitExceeded", "message": "too many failures"}
        condition = {"type": kind, "status": "True", "lastTransitionTime": stamp, **about}
        self.report(name, conditions=[condition])


def test_a_job_has_the_users_template_and_the_group() -> None:
    given: Any = {
        "kind": "ShareConsumer",
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {"job": TEMPLATE | {"activeDeadlineSeconds": 60}},
    }
    made = job.build_manifest(given, ABOUT)
    assert made["metadata"]["generateName"] == "c-"
    assert [o["uid"] for o in made["metadata"]["ownerReferences"]] == ["u"]
    assert (made["spec"]["backoffLimit"], made["spec"]["activeDeadlineSeconds"]) == (0, 60)
    pod = made["spec"]["template"]
    assert pod["metadata"]["labels"]["shoal.dev/share-consumer"] == "c"
    assert pod["spec"]["restartPolicy"] == "Never"
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("r/broker:1", "Always")
    assert {"name": "SHOAL_TOPICS", "value": "t,u"} in container["env"]
    given["spec"]["job"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    again = job.build_manifest(given, ABOUT)["spec"]["template"]["spec"]
    assert again["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    ("due", "in_flight", "active", "per_job", "jobs"),
    [
        (5, 0, 0, 1, 5),  # Nobody works yet.
        (5, 0, 5, 1, 5),  # Five Jobs start up.
        (5, 5, 5, 1, 5),
        (5, 2, 5, 1, 5),  # Two have a record, three start up.
        (10, 10, 5, 1, 5),  # Each has two: a sixth would find none.
        (12, 10, 5, 1, 7),
        (10, 0, 0, 5, 2),
        (10, 6, 2, 5, 2),
        (16, 6, 2, 5, 4),
        (7, -1, 3, 1, 7),  # Unknown: all records count.
        (3, 5, 5, 1, 3),  # Readings of different times.
        (0, 0, 0, 1, 0),
    ],
)
def test_a_job_at_work_counts_once(
    due: int, in_flight: int, active: int, per_job: int, jobs: int
) -> None:
    lag = job.count_work(due, in_flight, active, per_job)
    policy = ScalingPolicy(
        replicas_max=99, target_lag=per_job, records_per_replica=1, cooldown_ms=0
    )
    assert decide(policy, GroupLoad(lag, 4, 2000), active, ScalingHistory(), 0).replicas == jobs


def test_jobs_start_for_records_and_are_never_stopped(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = JobShop()
        status = await shop.at(3)
        assert len(shop.active()) == 3
        assert (status["desiredReplicas"], status["replicas"], status["readyReplicas"]) == (3, 3, 0)
        assert ready(status) == (False, "Scaling")
        await shop.at(3, in_flight=3)
        assert len(shop.names()) == 3, "no Job starts for what others have"
        for name in shop.names():
            shop.report(name, ready=1, active=1)
        status = await shop.at(9, in_flight=3)
        assert len(shop.active()) == 5, "maxReplicas"
        # The lag falls: everybody continues.
        pass_time(600_000)
        await shop.at(0)
        assert len(shop.active()) == 5
        assert not any(one.startswith("Job/") for one in shop.kube.deleted)

    asyncio.run(scenario())


def test_no_job_starts_for_a_lag_from_before_the_end_of_another(
    pass_time: Callable[[int], None],
) -> None:
    """The record that it finished is still part of that lag."""

    async def scenario() -> None:
        shop = JobShop()
        await shop.at(1)
        (first,) = shop.names()
        pass_time(1_000)
        await shop.at(1, in_flight=1)
        pass_time(500)
        shop.end(first)
        await shop.at(1, read=False)
        assert shop.active() == []
        pass_time(500)
        await shop.at(0)
        assert shop.active() == []
        await shop.at(1)
        assert len(shop.active()) == 1, "a new record"

    asyncio.run(scenario())


def test_ended_jobs_are_kept_up_to_the_limits(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = JobShop(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=0)
        await shop.at(5)
        first, second, third, fourth, fifth = shop.names()
        for name in (third, first, second):
            shop.end(name)
        shop.end(fourth, "Failed")
        pass_time(1_000)
        await shop.at(1, in_flight=1)
        assert set(shop.names()) == {second, third, fifth}
        assert shop.kube.deleted == [f"Job/{first}", f"Job/{fourth}"]

    asyncio.run(scenario())


def test_failing_jobs_start_later_each_time(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = JobShop()
        for failures in (1, 2, 3):
            await shop.at(1)
            (newest,) = shop.active()
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p", "namespace": "n", "labels": {LABEL: newest}},
                "status": {
                    "phase": "Failed",
                    "containerStatuses": [
                        {"state": {"terminated": {"exitCode": 1, "message": "x\nno disk\n"}}}
                    ],
                },
            }
            shop.kube.add(pod)
            shop.store.put(shop.kube.find("Pod", "p"))
            shop.end(newest, "Failed")
            status = await shop.at(1)
            assert ready(status) == (False, "JobsFailing")
            (said,) = [c["message"] for c in status["conditions"] if c["type"] == "Ready"]
            assert "no disk" in said
            assert ("last Job" if failures == 1 else f"last {failures} Jobs") in said
            wait_ms = BACKOFF_MS * 2 ** (failures - 1)
            pass_time(wait_ms - 1)
            await shop.at(1)
            assert shop.active() == []
            pass_time(1)
        await shop.at(1)
        (newest,) = shop.active()
        shop.end(newest)
        pass_time(1)
        await shop.at(1)
        pass_time(1)
        assert ready(await shop.at(1))[1] == "Scaling", "a success ends the wait"
        assert len(shop.active()) == 1

    asyncio.run(scenario())


def test_a_pause_starts_no_job_and_stops_none(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = JobShop()
        await shop.at(2)
        consumer = shop.kube.find("ShareConsumer", "eaters")
        consumer["spec"]["paused"] = True
        shop.store.put(consumer)
        pass_time(1_000)
        status = await shop.at(5)
        assert ready(status) == (True, "Paused")
        assert len(shop.active()) == 2

    asyncio.run(scenario())


def test_a_restarted_operator_knows_its_jobs() -> None:
    async def scenario() -> None:
        shop = JobShop()
        await shop.at(3)
        before = shop.names()
        again = JobShop()
        again.kube.objects, again.kube.numbers = shop.kube.objects, shop.kube.numbers
        for one in again.kube.objects.values():
            again.store.put(one)
        await again.at(3)
        assert again.names() == before

    asyncio.run(scenario())


def test_many_jobs_start_over_several_passes(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = JobShop()
        consumer = shop.kube.find("ShareConsumer", "eaters")
        consumer["spec"]["scaling"]["maxReplicas"] = 1000
        shop.store.put(consumer)
        await shop.at(STARTED_MAX + 7)
        assert len(shop.active()) == STARTED_MAX
        pass_time(2_000)
        await shop.at(STARTED_MAX + 7)
        assert len(shop.active()) == STARTED_MAX + 7

    asyncio.run(scenario())


def test_failures_since_the_last_success_count_after_a_restart() -> None:
    async def scenario(*kinds: str) -> str:
        shop = JobShop(failedJobsHistoryLimit=5)
        await shop.at(len(kinds))
        for name, kind in zip(shop.names(), kinds, strict=True):
            shop.end(name, kind)
        again = JobShop(failedJobsHistoryLimit=5)
        again.kube.objects, again.kube.numbers = shop.kube.objects, shop.kube.numbers
        for one in again.kube.objects.values():
            again.store.put(one)
        status = await again.at(0)
        return ready(status)[1]

    assert asyncio.run(scenario("Complete", "Failed")) == "JobsFailing"
    assert asyncio.run(scenario("Failed", "Complete")) == "ScaledToZero"
