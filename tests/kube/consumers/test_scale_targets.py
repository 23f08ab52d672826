"""ShareConsumers that scale workloads of others, and pods that are removed while idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, configured, resource
from kube.consumers.test_due import CLUSTER, POD, FixedGroup
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.produce.producer import Producer
from shoal.client.settings import Settings as ClientSettings
from shoal.client.share.member import ShareSession
from shoal_operator import clock
from shoal_operator.brokers.broker_states import GroupState, SharePartitionState
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.idle_members import ANNOTATION, MemberHolding, compute_costs
from shoal_operator.consumers.reconciler import ShareConsumerReconciler
from shoal_operator.consumers.scale_targets import OBSERVED_MS_MAX
from shoal_operator.consumers.scaling import GroupLoad, ScalingHistory, ScalingPolicy, decide
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.reconcile_loop import ReconcileLoop
from shoal_operator.model import names
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.runtime import Operator
from shoal_operator.settings import ChartSettings
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.brokers.servers import ShoalProcess

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "legacy"}
LABELS = {"app": "legacy"}
SCALING = {
    "targetLagPerReplica": 10,
    "recordsPerReplica": 50,
    "cooldown": "1s",
    "maxReplicas": 10,
}


class HeldGroup(FixedGroup):
    """A group with the test's lag and members."""

    held: list[MemberHolding] | None = None
    oldest_ms: int | None = None

    async def list_holdings(self, group: str, partitions: Any) -> list[MemberHolding] | None:
        del group, partitions
        return self.held

    async def find_oldest_record_ms(self, starts: Any) -> int | None:
        del starts
        return self.oldest_ms


class Shop:
    """A namespace with a group, a workload of somebody else, and the operator's scaler."""

    def __init__(self, **spec: Any) -> None:
        self.kube = ApiServer(CrashPoint())
        self.kube.add(CLUSTER)
        of_group = {"cluster": "main", "maxRecordLocks": 2000, "lockDuration": "30s"}
        self.kube.add(configured(resource("ShareGroup", "workers", **of_group)))
        self.store, self.brokers = self.kube.store(), HeldGroup()
        place = (self.kube, self.store, self.brokers, "n", "main")
        self.monitor = GroupMonitor(*place)
        settings = ChartSettings("b:1", "s:1", "role", "http://o")
        self.consumers = ShareConsumerReconciler(*place[:2], self.monitor, "n", "main", settings)
        self.add("eaters", **({"scaleTargetRef": TARGET} | spec))

    def add(self, name: str, **spec: Any) -> None:
        given = {"shareGroup": "workers", "scaling": SCALING} | spec
        given = {key: value for key, value in given.items() if value is not None}
        self.kube.add(resource("ShareConsumer", name, **given))
        self.store.put(self.kube.find("ShareConsumer", name))

    def deploy(self, kind: str = "Deployment", replicas: int = 1) -> None:
        """Create the target, of which the operator's store knows nothing."""
        meta = {"name": "legacy", "namespace": "n"}
        spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}}
        if kind == "StatefulSet":
            spec["template"] = {
                "metadata": {"labels": LABELS, "annotations": {}},
                "spec": {"containers": []},
            }
        self.kube.add({"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec})

    def start_pods(self, count: int, labels: dict[str, str] | None = None) -> None:
        for number in range(count):
            self.kube.add(pod(number, labels or LABELS))
            self.store.put(self.kube.find("Pod", f"legacy-{number}")) if labels else None

    def of_target(self, kind: str = "Deployment") -> dict[str, Any]:
        return self.kube.find(kind, "legacy")

    async def look(self, lag: int, name: str = "eaters") -> dict[str, Any]:
        """Read the group and decide; return the ShareConsumer's status."""
        self.brokers.answer = GroupState("workers", "share", lag=lag, in_flight=0)
        await self.monitor.watch([])
        await self.consumers.reconcile([name])
        return self.kube.find("ShareConsumer", name)["status"]


def pod(number: int, labels: dict[str, str] = LABELS, ip: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"legacy-{number}", "namespace": "n", "labels": labels},
        "status": {
            "phase": "Running",
            "podIP": ip or f"10.0.0.{number}",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def warn(reason: str, message: str, kind: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "warning", "namespace": "n"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "name": name},
    }


def ready(status: dict[str, Any]) -> tuple[bool, str]:
    (found,) = [c for c in status["conditions"] if c["type"] == "Ready"]
    return found["status"] == "True", found["reason"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_only_the_number_of_replicas_of_the_target_changes(kind: str) -> None:
    async def scenario() -> None:
        shop = Shop(scaleTargetRef=TARGET | {"kind": kind})
        shop.deploy(kind)
        before = shop.of_target(kind)
        status = await shop.look(35)
        assert status["desiredReplicas"] == 4
        after = shop.of_target(kind)
        assert after["spec"] == before["spec"] | {"replicas": 4}
        assert after["metadata"].get("labels") is None
        assert after["metadata"].get("ownerReferences") is None
        shop.start_pods(4)
        status = await shop.look(35)
        assert ready(status) == (True, "Reconciled")
        assert (status["readyReplicas"], status["selector"]) == (4, "app=legacy")

    asyncio.run(scenario())


def test_a_target_says_why_its_pods_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its pods, from events about a StatefulSet, and from the conditions of a Deployment, if
    the operator may read these."""
    text = 'pods "legacy-0" is forbidden: exceeded quota: q'

    async def refuse(*_: Any) -> None:
        raise KubeError(403, "deployments.apps is forbidden")

    async def scenario() -> None:
        for kind in ("Deployment", "StatefulSet"):
            shop = Shop(scaleTargetRef=TARGET | {"kind": kind})
            shop.kube.controllers_paused = True
            shop.deploy(kind)
            assert ready(await shop.look(35)) == (False, "Scaling")
            if kind == "StatefulSet":
                shop.kube.add(warn("FailedCreate", text, kind, "legacy"))
            else:
                failed = {"type": "ReplicaFailure", "status": "True", "message": text}
                shop.of_target()["status"] = {"conditions": [failed]}
            status = await shop.look(35)
            assert ready(status) == (False, "PodRefused")
            (said,) = (c["message"] for c in status["conditions"] if c["type"] == "Ready")
            assert said.startswith(f"0 of 4 consumers are ready. {kind} legacy: {text}. Raise the")
            monkeypatch.setattr(shop.kube, "get", refuse)
            for number in range(4):
                shop.kube.add(pod(number))
            unpulled = {"reason": "ErrImagePull", "message": "no such image"}
            waiting = {"name": "a", "state": {"waiting": unpulled}}
            status_of_pod = {"phase": "Pending", "containerStatuses": [waiting]}
            shop.kube.find("Pod", "legacy-3")["status"] = status_of_pod
            shop.kube.objects.pop(("Event", "warning"), None)
            assert ready(await shop.look(36)) == (True, "ImageNotPulled")
            del shop.kube.objects["Pod", "legacy-3"]
            assert ready(await shop.look(36)) == (True, "Scaling"), "it may not read more"

    asyncio.run(scenario())


def test_a_target_that_does_not_exist_is_a_condition(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = Shop()
        assert ready(await shop.look(35)) == (False, "ScaleTargetNotFound")
        assert "desiredReplicas" not in shop.kube.find("ShareConsumer", "eaters")["status"]
        shop.deploy()
        pass_time(OBSERVED_MS_MAX)
        await shop.look(35)
        assert shop.of_target()["spec"]["replicas"] == 4

    asyncio.run(scenario())


def test_a_target_keeps_its_replicas_until_the_lag_is_known(
    pass_time: Callable[[int], None],
) -> None:
    """Without it, a Deployment in use would lose all its consumers at first."""

    async def scenario() -> None:
        shop = Shop()
        shop.deploy(replicas=7)
        await shop.consumers.reconcile(["eaters"])
        status = shop.kube.find("ShareConsumer", "eaters")["status"]
        assert (status["desiredReplicas"], status["decision"]) == (7, "the lag is unknown")
        assert (await shop.look(5))["desiredReplicas"] == 7, "during the cooldown"
        pass_time(2_000)
        assert (await shop.look(5))["desiredReplicas"] == 1
        assert shop.of_target()["spec"]["replicas"] == 1

    asyncio.run(scenario())


APPLICATION = {"apiVersion": names.SPARK_API, "kind": "SparkApplication", "name": "legacy"}
EXECUTOR = {"sparkoperator.k8s.io/app-name": "legacy", "spark-role": "executor"}


def test_a_spark_application_follows_the_number_and_is_suspended_at_zero(
    pass_time: Callable[[int], None],
) -> None:
    async def scenario() -> None:
        shop = Shop(scaleTargetRef=APPLICATION, scaling=SCALING | {"scaleToZeroAfter": "1s"})
        meta, spec = {"name": "legacy", "namespace": "n"}, {"mode": "cluster", "suspend": True}
        state = {"applicationState": {"state": "RUNNING"}}
        shop.kube.add({**APPLICATION, "metadata": meta, "spec": spec, "status": state})
        status = await shop.look(35)
        assert shop.of_target("SparkApplication")["spec"] == spec | {"suspend": False}
        assert shop.consumers.get_signal("eaters")["desiredReplicas"] == 4
        assert ready(status) == (True, "Scaling")
        assert "SHOAL_SCALE_URL" in status["conditions"][0]["message"]
        shop.start_pods(4, EXECUTOR)
        status = await shop.look(35)
        assert ready(status) == (True, "Reconciled")
        assert (status["readyReplicas"], status["applicationState"]) == (4, "RUNNING")
        for _ in range(3):
            pass_time(5_000)
            status = await shop.look(0)
        assert status["desiredReplicas"] == 0
        assert shop.of_target("SparkApplication")["spec"] == spec

    asyncio.run(scenario())


def test_the_next_share_consumer_takes_over_a_target() -> None:
    async def scenario() -> None:
        shop = Shop()
        shop.deploy()
        shop.add("later", scaleTargetRef=TARGET)
        away = {"type": "external", "external": {"bootstrapServers": "127.0.0.1:1"}}
        shop.kube.add(resource("QueueCluster", "main", **away))
        settings = ChartSettings("b:1", "s:1", "role", "u", workloads=frozenset(["scaleTargetRef"]))
        operator = Operator(shop.kube, settings, ("n",))

        def reason() -> str:
            return ready(shop.kube.find("ShareConsumer", "later")["status"])[1]

        try:
            operator.set_leading(True)
            await eventually_async(lambda: reason() == "ScaleTargetClaimed")
            operator.on_delete(shop.kube.objects.pop(("ShareConsumer", "eaters")))
            await eventually_async(lambda: reason() in ("Scaling", "Reconciled"), timeout_s=20)
        finally:
            await operator.close()

    asyncio.run(scenario())


def test_two_share_consumers_cannot_scale_one_target() -> None:
    async def scenario() -> None:
        shop = Shop()
        shop.deploy()
        shop.add("later", scaleTargetRef=TARGET)
        status = await shop.look(35, "later")
        assert ready(status) == (False, "ScaleTargetClaimed")
        assert shop.of_target()["spec"]["replicas"] == 1
        assert ready(await shop.look(35))[1] == "Scaling"
        assert shop.of_target()["spec"]["replicas"] == 4
        # Another kind with the same name is another target.
        shop.add("third", scaleTargetRef=TARGET | {"kind": "StatefulSet"})
        assert ready(await shop.look(35, "third"))[1] == "ScaleTargetNotFound"

    asyncio.run(scenario())


def test_workloads_of_the_operator_are_no_targets() -> None:
    async def scenario() -> None:
        shop = Shop()
        shop.deploy("StatefulSet")
        shop.deploy()
        shop.store.put(shop.of_target())
        assert ready(await shop.look(35)) == (False, "ScaleTargetNotAllowed")
        assert shop.of_target()["spec"]["replicas"] == 1

    asyncio.run(scenario())


# Idle members first.


@pytest.mark.parametrize(
    ("holding", "found"),
    [
        (MemberHolding("legacy-1", "/10.9.9.9", 7), {"legacy-1": 7}),
        (MemberHolding("legacy-1-worker", "/10.9.9.9", 7), {"legacy-1": 7}),
        (MemberHolding("legacy-10", "/10.9.9.9", 7), {}),
        (MemberHolding("app", "/10.0.0.2", 7), {"legacy-2": 7}),
        (MemberHolding("app", "10.0.0.2", 7), {"legacy-2": 7}),
        (MemberHolding("app", "/10.9.9.9", 7), {}),
    ],
)
def test_members_are_matched_by_client_id_or_address(
    holding: MemberHolding, found: dict[str, int]
) -> None:
    pods = [pod(n) for n in range(3)]
    assert compute_costs(pods, [holding]) == {"legacy-0": 0, "legacy-1": 0, "legacy-2": 0} | found


def test_pods_that_share_an_address_are_matched_by_client_id_only() -> None:
    pods = [pod(n, ip="192.0.2.1") for n in range(2)]
    held = [MemberHolding("legacy-1", "/192.0.2.1", 3), MemberHolding("other", "/192.0.2.1", 5)]
    assert compute_costs(pods, held) == {"legacy-0": 0, "legacy-1": 3}


def test_idle_pods_go_first_and_busy_ones_may_finish(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = Shop()
        shop.deploy()
        shop.start_pods(5)
        await shop.look(50)
        assert shop.of_target()["spec"]["replicas"] == 5
        assert not any("annotations" in p["metadata"] for p in shop.kube.all("Pod"))
        pass_time(20_000)
        shop.brokers.held = [MemberHolding(f"legacy-{n}", "", n) for n in (1, 3, 4)]
        status = await shop.look(5)
        assert status["desiredReplicas"] == 3, "three pods hold records"
        assert "3 pods hold records" in status["decision"]
        noted = [p["metadata"].get("annotations", {}).get(ANNOTATION) for p in shop.kube.all("Pod")]
        assert noted == [None, "1", None, "3", "4"]
        assert shop.of_target()["spec"]["replicas"] == 3
        # A lock lasts 30 s. A member that has not finished by then would lose it anyway.
        pass_time(31_000)
        assert (await shop.look(5))["desiredReplicas"] == 1

    asyncio.run(scenario())


def test_an_owned_deployment_loses_idle_pods_first() -> None:
    async def scenario() -> None:
        shop = Shop(scaleTargetRef=None, deployment=POD)
        await shop.look(50)
        shop.start_pods(3, {"shoal.dev/share-consumer": "eaters"})
        shop.brokers.held = [MemberHolding("legacy-2", "", 9)]
        shop.consumers._histories.clear()  # noqa: SLF001, the cooldown is not the subject
        consumer = shop.kube.find("ShareConsumer", "eaters")
        consumer["status"]["desiredReplicas"] = 1
        shop.store.put(consumer)
        await shop.look(5)
        assert shop.kube.find("Deployment", "eaters")["spec"]["replicas"] == 1
        assert shop.kube.find("Pod", "legacy-2")["metadata"]["annotations"] == {ANNOTATION: "9"}

    asyncio.run(scenario())


def test_brokers_that_do_not_list_records_in_flight_change_no_pod(
    pass_time: Callable[[int], None],
) -> None:
    async def scenario() -> None:
        shop = Shop()
        shop.deploy(replicas=5)
        shop.start_pods(5)
        await shop.look(5)
        pass_time(2_000)
        await shop.look(5)
        assert shop.of_target()["spec"]["replicas"] == 1
        assert not any("annotations" in p["metadata"] for p in shop.kube.all("Pod"))

    asyncio.run(scenario())


# The age of the oldest record.


def test_records_older_than_the_target_add_consumers() -> None:
    policy = ScalingPolicy(replicas_max=20, target_age_ms=60_000)

    def wanted(age_ms: int, running: int, lag: int = 900) -> int:
        load = GroupLoad(lag, 8, 2000, running=running, age_ms=age_ms)
        return decide(policy, load, running, ScalingHistory(), 0).replicas

    assert wanted(60_000, 4) == 1, "by lag"
    assert wanted(60_001, 4) == 6
    assert wanted(90_000, 6) == 9
    assert wanted(90_000, 0) == 2
    assert wanted(-1, 4) == 1
    assert wanted(90_000, 4, lag=3) == 3, "more would get no record"
    assert wanted(90_000, 0, lag=0) == 0


def test_slow_consumers_get_help_before_records_are_too_old() -> None:
    """The rate says how long the backlog takes: forty records at one a second."""
    patient, hurried = ScalingPolicy(), ScalingPolicy(target_age_ms=20_000)
    for policy, expected in ((patient, 1), (hurried, 2)):
        history, current = ScalingHistory(), 1
        for seconds in (0, 10, 20, 30):
            load = GroupLoad(40, 8, 2000, seconds, 1)
            current = decide(policy, load, current, history, seconds * 1000).replicas
        assert current == expected


def test_the_age_is_read_for_consumers_that_scale_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "epoch_ms", lambda: 1_000_000)

    async def scenario() -> None:
        shop = Shop(scaling=SCALING | {"targetRecordAge": "1m"})
        shop.deploy()
        shop.brokers.oldest_ms = 880_000
        state = GroupState("workers", lag=9, partitions=(SharePartitionState("t", 0, 5, 9),))
        shop.brokers.answer = state
        await shop.monitor.watch([])
        assert shop.monitor.get_oldest_age_ms("workers") == 120_000
        await shop.consumers.reconcile(["eaters"])
        status = shop.kube.find("ShareConsumer", "eaters")["status"]
        assert status["oldestRecordSeconds"] == 120
        assert status["desiredReplicas"] == 2
        assert "120 s old" in status["decision"]
        shop.add("eaters", scaleTargetRef=TARGET)
        other = GroupMonitor(shop.kube, shop.store, shop.brokers, "n", "main")
        await other.watch([])
        assert other.get_oldest_age_ms("workers") == -1

    asyncio.run(scenario())


# With a broker.


def test_a_broker_reports_what_each_member_holds_and_the_oldest_record(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    broker = start_broker()

    async def held(brokers: Brokers) -> Sequence[MemberHolding]:
        return await brokers.list_holdings("workers", [("jobs", 0), ("jobs", 1)]) or []

    async def scenario() -> None:
        address = broker.bootstrap
        settings = ClientSettings.from_bootstrap(address, {"client.id": "eaters-abc"})
        brokers = Brokers(address)
        async with Client(settings) as client:
            await client.admin.topics.create([NewTopic("jobs", 2)])
            await brokers.set_share_offsets("workers", {("jobs", 0): 0, ("jobs", 1): 0})
            async with Producer(client.cluster) as producer:
                for number in range(6):
                    stamp = 5_000 + number
                    value = bytes(20_000)  # Larger than what a fetch takes of a partition.
                    await producer.send("jobs", value, partition=number % 2, timestamp_ms=stamp)
            assert await brokers.find_oldest_record_ms({("jobs", 0): 0, ("jobs", 1): 0}) == 5_000
            assert await brokers.find_oldest_record_ms({("jobs", 0): 2, ("jobs", 1): 1}) == 5_003
            assert await brokers.find_oldest_record_ms({("jobs", 0): 3}) is None
            async with await ShareSession.join(client.cluster, "workers", ["jobs"]) as session:
                found = 0
                while found < 6:
                    found += sum(one.count for one in await session.acquire())
                (one,) = await held(brokers)
                assert (one.client_id, one.records) == ("eaters-abc", 6)
                assert one.client_host.removeprefix("/") == "127.0.0.1"
            assert await held(brokers) == []
        await brokers.close()

    asyncio.run(scenario())


def test_two_share_consumers_of_a_group_are_warned_about_on_both() -> None:
    """Each would start consumers for the whole lag."""

    async def scenario() -> None:
        shop = Shop(scaleTargetRef=None, deployment=POD)
        shop.add("second", scaleTargetRef=None, deployment=POD)

        async def read_degraded(name: str) -> str:
            found = (await shop.look(0, name))["conditions"]
            return next(str(c["reason"]) for c in found if c["type"] == "Degraded")

        assert await read_degraded("eaters") == await read_degraded("second") == "ShareGroupShared"
        events = [e for e in shop.kube.all("Event") if e["reason"] == "ShareGroupShared"]
        about = {e["involvedObject"]["name"]: e["message"] for e in events}
        assert sorted(about) == ["eaters", "second"]
        assert "'eaters' and 'second': each starts consumers for the" in about["eaters"]
        second = shop.kube.objects.pop(("ShareConsumer", "second"))
        shop.store.drop(second)
        assert await read_degraded("eaters") == "NotDegraded"

    asyncio.run(scenario())


def test_the_first_share_consumer_hears_of_the_second_and_of_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueued: list[str] = []
    enqueue = ReconcileLoop.enqueue

    def note_and_enqueue(loop: ReconcileLoop, name: str) -> None:
        enqueued.append(name)
        enqueue(loop, name)

    async def scenario() -> None:
        still = {"scaleTargetRef": None, "scaling": None, "deployment": POD, "replicas": 0}
        shop = Shop(**still)
        away = {"type": "external", "external": {"bootstrapServers": "127.0.0.1:1"}}
        shop.kube.add(resource("QueueCluster", "main", **away))
        settings = ChartSettings("b:1", "s:1", "role", "u", workloads=frozenset(["deployment"]))
        operator = Operator(shop.kube, settings, ("n",))

        def read_degraded() -> str:
            found = shop.kube.find("ShareConsumer", "eaters")["status"]["conditions"]
            return next((str(c["reason"]) for c in found if c["type"] == "Degraded"), "")

        try:
            operator.set_leading(True)
            await eventually_async(lambda: read_degraded() == "NotDegraded")
            shop.add("second", **still)
            monkeypatch.setattr(ReconcileLoop, "enqueue", note_and_enqueue)
            operator.on_update(shop.kube.find("ShareConsumer", "second"))
            assert "eaters" in enqueued
            await eventually_async(lambda: read_degraded() == "ShareGroupShared")
            enqueued.clear()
            operator.on_delete(shop.kube.objects.pop(("ShareConsumer", "second")))
            assert "eaters" in enqueued
            await eventually_async(lambda: read_degraded() == "NotDegraded")
        finally:
            await operator.close()

    asyncio.run(scenario())
