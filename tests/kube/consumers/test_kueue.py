"""ShareConsumers in a queue of Kueue, which decides when Jobs, applications and pods may start."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

import pytest
from kube.consumers.test_due import POD
from kube.consumers.test_jobs import JobShop
from kube.consumers.test_scale_targets import Shop, ready
from shoal_operator.brokers.broker_states import GroupState
from shoal_operator.model.consumers import kueue
from shoal_operator.runtime import Operator
from shoal_operator.settings import ChartSettings

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = {"kueue.x-k8s.io/queue-name": "workers", "kueue.x-k8s.io/priority-class": "low"}
NO_ROOM = (
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor "
    "default, 1 more needed"
)
SPARK = {
    "mainApplicationFile": "local:///job.py",
    "sparkVersion": "4.3.0",
    "minExecutors": 0,
    "maxExecutors": 3,
    "coresPerExecutor": 1,
    "maxRecordsPerTrigger": 1000,
}


def join_queue(shop: Shop, labels: dict[str, str] = QUEUE) -> None:
    """Give the ShareConsumer these labels."""
    consumer = shop.kube.find("ShareConsumer", "eaters")
    consumer["metadata"]["labels"] = labels
    shop.store.put(consumer)


def act(shop: Shop, kind: str, name: str, **spec: Any) -> None:
    """Change an object as Kueue's controller or its webhook does."""
    changed = shop.kube.find(kind, name)
    changed["spec"] |= spec
    changed["metadata"]["resourceVersion"] = str(next(shop.kube.numbers))
    shop.store.put(changed)


def write_workload(shop: Shop, kind: str, name: str, *conditions: dict[str, str]) -> None:
    """Write the Workload of an object, as Kueue does."""
    uid = shop.kube.find(kind, name)["metadata"]["uid"]
    meta = {"name": f"of-{name}", "namespace": "n", "labels": {kueue.OWNER_UID_LABEL: uid}}
    workload = {"apiVersion": kueue.API, "kind": "Workload", "metadata": meta, "spec": {}}
    shop.kube.add(workload | {"status": {"conditions": list(conditions)}})


def pending(message: str = NO_ROOM) -> dict[str, str]:
    return {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}


def get_message(status: dict[str, Any]) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == "Ready")


def test_kueue_starts_the_jobs_and_its_reason_is_in_the_status() -> None:
    async def scenario() -> None:
        shop = JobShop()
        join_queue(shop)
        await shop.at(2)
        first, second = shop.names()
        for name in (first, second):
            made = shop.kube.find("Job", name)
            assert made["metadata"]["labels"].items() >= QUEUE.items()
            assert "suspend" not in made["spec"], "the field is Kueue's"
            act(shop, "Job", name, suspend=True)
        status = await shop.at(2)
        assert ready(status) == (False, "WaitsForAdmission")
        assert get_message(status) == (
            "2 of 2 Jobs wait for admission by Kueue in LocalQueue 'workers': "
            "Kueue has not said why yet."
        )
        for name in (first, second):
            write_workload(shop, "Job", name, pending())
        assert NO_ROOM in get_message(await shop.at(2))
        # One is admitted.
        act(shop, "Job", first, suspend=False)
        shop.report(first, ready=1, active=1)
        write_workload(shop, "Job", second, pending("LocalQueue workers is stopped"))
        status = await shop.at(2, in_flight=1)
        assert ready(status) == (True, "WaitsForAdmission")
        assert "1 of 2 Jobs wait" in get_message(status)
        assert "LocalQueue workers is stopped" in get_message(status)
        assert shop.names() == [first, second]
        act(shop, "Job", second, suspend=False)
        shop.report(second, ready=1, active=1)
        assert ready(await shop.at(2, in_flight=2)) == (True, "Reconciled")

    asyncio.run(scenario())


def test_jobs_that_wait_leave_the_queue_when_their_records_are_gone(
    pass_time: Callable[[int], None],
) -> None:
    async def scenario() -> None:
        shop = JobShop()
        join_queue(shop)
        await shop.at(3)
        running, *waiting = shop.names()
        shop.report(running, ready=1, active=1)
        for name in waiting:
            act(shop, "Job", name, suspend=True)
        pass_time(1_000)
        await shop.at(1, in_flight=1)
        assert shop.names() == [running]
        # They count as deleted, and not as Jobs that ended.
        pass_time(1_000)
        status = await shop.at(2, in_flight=1)
        assert (status["desiredReplicas"], len(shop.active())) == (2, 2)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("conditions", "checks", "reason"),
    [
        ([], [], ""),
        ([pending()], [], NO_ROOM),
        (
            [pending(""), {"type": "Evicted", "status": "True", "message": "Preempted"}],
            [],
            "Preempted",
        ),
        ([pending(), {"type": "Evicted", "status": "True", "message": "Preempted"}], [], NO_ROOM),
        ([{"type": "Evicted", "status": "False", "message": "before"}], [], ""),
        (
            [{"type": "QuotaReserved", "status": "True", "message": "reserved"}],
            [
                {"name": "capacity", "state": "Pending", "message": "No nodes yet."},
                {"name": "budget", "state": "Ready", "message": ""},
            ],
            "Admission check capacity is Pending. No nodes yet.",
        ),
    ],
)
def test_the_reason_is_that_of_the_workload(
    conditions: list[dict[str, str]], checks: list[dict[str, str]], reason: str
) -> None:
    status = {"conditions": conditions, "admissionChecks": checks}
    assert kueue.find_reason({"status": status}) == reason


@pytest.mark.parametrize("missing", [False, True])
def test_workloads_that_cannot_be_read_do_not_stop_the_operator(*, missing: bool) -> None:
    async def scenario() -> None:
        shop = JobShop()
        join_queue(shop)
        await shop.at(1)
        (name,) = shop.names()
        act(shop, "Job", name, suspend=True)
        if missing:
            shop.kube.absent.add("Workload")
        else:
            shop.kube.denied["Workload", ""] = "workloads is forbidden"
        status = await shop.at(1)
        assert ready(status) == (False, "WaitsForAdmission")
        assert "its Workload cannot be read" in get_message(status)

    asyncio.run(scenario())


def test_pods_of_a_deployment_wait_each_by_itself() -> None:
    async def scenario() -> None:
        shop = Shop(scaleTargetRef=None, deployment=POD)
        join_queue(shop)
        await shop.look(20)
        made = shop.kube.find("Deployment", "eaters")
        template = made["spec"]["template"]["metadata"]
        assert made["metadata"]["labels"].items() >= QUEUE.items()
        assert template["labels"].items() >= QUEUE.items()
        assert QUEUE.keys().isdisjoint(made["spec"]["selector"]["matchLabels"])
        gates = [{"name": "kueue.x-k8s.io/admission"}]
        for number in range(2):
            meta = {"name": f"eaters-{number}", "namespace": "n", "labels": template["labels"]}
            spec = {"containers": [], **({"schedulingGates": gates} if number else {})}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            shop.kube.add(pod | {"status": {"phase": "Pending"}})
            shop.store.put(shop.kube.find("Pod", f"eaters-{number}"))
        made["status"] = {
            "replicas": 2,
            "readyReplicas": 1,
            "conditions": [
                {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
            ],
        }
        shop.store.put(made)
        write_workload(shop, "Pod", "eaters-1", pending())
        status = await shop.look(20)
        assert ready(status) == (True, "WaitsForAdmission")
        assert get_message(status).startswith("1 of 2 consumers waits for admission by Kueue")
        assert NO_ROOM in get_message(status)
        assert "Stalled" not in [c["type"] for c in status["conditions"]]

    asyncio.run(scenario())


def test_kueue_admits_the_driver_with_all_executors(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        scaling = {"targetLagPerReplica": 10, "scaleToZeroAfter": "1s", "cooldown": "1s"}
        shop = Shop(scaleTargetRef=None, spark=SPARK, scaling=scaling)
        join_queue(shop)
        status = await shop.look(1000)
        made = shop.kube.find("SparkApplication", "eaters")
        assert made["metadata"]["labels"].items() >= QUEUE.items()
        assert made["spec"].keys().isdisjoint({"suspend", "dynamicAllocation"})
        assert made["spec"]["executor"]["instances"] == status["desiredReplicas"] == 3
        # What Kueue writes stays.
        act(shop, "SparkApplication", "eaters", suspend=True)
        write_workload(shop, "SparkApplication", "eaters", pending())
        status = await shop.look(1000)
        assert ready(status) == (False, "WaitsForAdmission")
        assert NO_ROOM in get_message(status)
        act(shop, "SparkApplication", "eaters", suspend=False)
        assert ready(await shop.look(20))[1] != "WaitsForAdmission"
        assert shop.kube.find("SparkApplication", "eaters")["spec"]["suspend"] is False
        assert not shop.kube.deleted
        # Without work, its quota is for others.
        for _ in range(3):
            pass_time(2_000)
            status = await shop.look(0)
        assert ready(status) == (True, "ScaledToZero")
        assert shop.kube.deleted == ["SparkApplication/eaters"]
        await shop.look(5)
        assert shop.kube.find("SparkApplication", "eaters")["metadata"]["uid"]

    asyncio.run(scenario())


def test_kueue_counts_what_spark_requests_by_itself() -> None:
    """Kueue reads these fields of a role, and neither Spark's defaults and properties nor the
    template: without them, the pods would take nothing of the quota."""

    async def scenario() -> None:
        limits = {"ephemeral-storage": "1Gi", "nvidia.com/gpu": "2"}
        container = {"name": "spark-kubernetes-executor", "resources": {"limits": limits}}
        template = {"spec": {"containers": [container]}}
        conf = {"spark.driver.memory": "700m", "spark.kubernetes.driver.request.cores": "100m"}
        roles = {"executor": {"template": template, "memory": "2g"}, "sparkConf": conf}
        job = SPARK | roles | {"coresPerExecutor": 4}
        shop = Shop(scaleTargetRef=None, spark=job, scaling=None, replicas=1)
        join_queue(shop)
        await shop.look(0)
        counted = ("coreRequest", "memory", "gpu")
        spec = shop.kube.find("SparkApplication", "eaters")["spec"]
        assert {field: spec["driver"].get(field) for field in counted} == {
            "coreRequest": "100m",
            "memory": "700m",
            "gpu": None,
        }
        assert {field: spec["executor"].get(field) for field in counted} == {
            "coreRequest": "4",
            "memory": "2g",
            "gpu": {"name": "nvidia.com/gpu", "quantity": 2},
        }

    asyncio.run(scenario())


def test_replicas_do_not_exceed_what_kueue_admits() -> None:
    async def scenario() -> None:
        shop = Shop(scaleTargetRef=None, spark=SPARK, scaling=None, replicas=7)
        join_queue(shop)
        status = await shop.look(0)
        assert status["desiredReplicas"] == 3
        assert status["decision"] == "spec.replicas, Kueue admits 3"

    asyncio.run(scenario())


def test_an_application_moves_to_another_queue_as_a_new_one() -> None:
    """Kueue refuses another queue for one that it has admitted."""

    async def scenario() -> None:
        shop = Shop(scaleTargetRef=None, spark=SPARK, scaling=None, replicas=1)
        await shop.look(0)
        assert shop.kube.find("SparkApplication", "eaters")["spec"]["suspend"] is False
        join_queue(shop)
        await shop.look(0)
        made = shop.kube.find("SparkApplication", "eaters")
        assert (kueue.get_queue(made), "suspend" in made["spec"]) == ("workers", False)
        join_queue(shop, {})
        await shop.look(0)
        assert shop.kube.find("SparkApplication", "eaters")["spec"]["suspend"] is False
        assert shop.kube.deleted == ["SparkApplication/eaters"] * 2

    asyncio.run(scenario())


def test_the_suspension_of_a_target_in_a_queue_is_kueues() -> None:
    async def scenario() -> None:
        ref = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication"}
        shop = Shop(scaleTargetRef=ref | {"name": "legacy"})
        meta = {"name": "legacy", "namespace": "n", "labels": QUEUE}
        application = {"apiVersion": ref["apiVersion"], "kind": ref["kind"], "metadata": meta}
        shop.kube.add(application | {"spec": {"suspend": True}})
        write_workload(shop, "SparkApplication", "legacy", pending())
        status = await shop.look(35)
        assert ready(status) == (False, "WaitsForAdmission")
        assert NO_ROOM in get_message(status)
        assert shop.kube.find("SparkApplication", "legacy")["spec"] == {"suspend": True}

    asyncio.run(scenario())


def test_without_a_queue_nothing_is_kueues() -> None:
    async def scenario() -> None:
        shop = JobShop()
        shop.brokers.answer = GroupState("workers", "share", lag=1, in_flight=0)
        await shop.at(1)
        (name,) = shop.names()
        act(shop, "Job", name, suspend=True)
        assert ready(await shop.at(1)) == (False, "Scaling")

    asyncio.run(scenario())


def test_a_label_that_appears_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label raises no generation."""

    async def scenario() -> None:
        shop = JobShop()
        operator = Operator(
            shop.kube,
            ChartSettings("b:1", "s:1", "role", "u", workloads=frozenset(["job"])),
            ("n",),
        )
        heard: list[str] = []
        monkeypatch.setattr(operator, "_enqueue", lambda one: heard.append(one["kind"]))
        consumer = copy.deepcopy(shop.kube.find("ShareConsumer", "eaters"))
        operator.on_update(consumer)
        consumer["metadata"] |= {"resourceVersion": "98", "labels": QUEUE}
        heard.clear()
        operator.on_update(copy.deepcopy(consumer))
        assert heard == ["ShareConsumer"]
        await operator.close()

    asyncio.run(scenario())
