"""ShareConsumers whose SparkApplication Apache's own operator runs (`spec.spark.operator`)."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from kube.consumers.test_kueue import QUEUE, SPARK, get_message, join_queue
from kube.consumers.test_scale_targets import Shop, ready
from kube.consumers.test_spark_consumers import CONTEXT, consumer, ended_driver, env
from kube.custom_resources import take
from shoal_operator.model import names
from shoal_operator.model.consumers import apache_spark, spark
from shoal_operator.runtime import SPARK as WATCHED
from shoal_operator.runtime import SPARK_CRDS, Operator
from shoal_operator.settings import ChartSettings

if TYPE_CHECKING:
    from collections.abc import Callable

Manifest = dict[str, Any]
WHOLE = dataclasses.replace(CONTEXT, user_secret="painter", scale_secret="c-scale")


def build(**more: Any) -> Manifest:
    given = consumer(operator="apache", **more)
    spec: Manifest = apache_spark.build_application(given, WHOLE)["spec"]
    return spec


class SparkShop(Shop):
    """A namespace with a ShareConsumer for Apache's operator."""

    def __init__(self, **more: Any) -> None:
        scaling = {"targetLagPerReplica": 10, "scaleToZeroAfter": "1s", "cooldown": "1s"}
        application = SPARK | {"operator": "apache"} | more
        super().__init__(scaleTargetRef=None, spark=application, scaling=scaling)

    def application(self) -> Manifest:
        return self.kube.find("SparkApplication", "eaters")

    def report(self, state: str, message: str = "") -> None:
        """Write the status, as Apache's operator does."""
        current = {"currentStateSummary": state, "message": message}
        self.application()["status"] = {"currentState": current}
        self.application()["metadata"]["resourceVersion"] = str(next(self.kube.numbers))
        self.store.put(self.application())


def test_both_operators_run_the_same_pods() -> None:
    over = {"memory": "1g", "coreRequest": "500m", "coreLimit": "2", "memoryOverhead": "700m"}
    more = {"driver": over, "executor": {"memory": "2g"}, "serviceAccountName": "own"}
    theirs, kubeflow = (
        build(**more),
        spark.build_application(consumer(**more), WHOLE, suspend=False),
    )
    given = kubeflow["spec"]
    assert theirs["pyFiles"] == given["mainApplicationFile"]
    assert theirs["driverArgs"] == given["arguments"]
    assert theirs["runtimeVersions"] == {"sparkVersion": "4.3.0"}
    for role in ("driver", "executor"):
        assert theirs[f"{role}Spec"]["podTemplateSpec"] == given[role]["template"]
    assert env({"template": theirs["driverSpec"]["podTemplateSpec"]})["SHOAL_GROUP_ID"] == "g"
    conf = theirs["sparkConf"]
    assert conf.items() >= given["sparkConf"].items()
    assert conf["spark.kubernetes.container.image"] == "spark:1"
    assert conf["spark.kubernetes.authenticate.driver.serviceAccountName"] == "own"
    assert conf["spark.driver.memory"] == "1g"
    assert conf["spark.driver.memoryOverhead"] == "700m"
    assert conf["spark.kubernetes.driver.request.cores"] == "500m"
    assert conf["spark.kubernetes.driver.limit.cores"] == "2"
    assert (conf["spark.executor.memory"], conf["spark.executor.cores"]) == ("2g", "2")
    assert conf["spark.executor.instances"] == "1"
    name = "spark.kubernetes.executor.podTemplateContainerName"
    assert conf[name] == "spark-kubernetes-executor"
    assert theirs.keys().isdisjoint({"suspend", "driver", "executor"})
    assert all(isinstance(value, str) for value in conf.values())


def test_the_application_restarts_and_needs_no_executor_to_begin() -> None:
    tolerations = build()["applicationTolerations"]
    assert tolerations["restartConfig"]["restartPolicy"] == "Always"
    assert tolerations["restartConfig"]["maxRestartAttempts"] > 10**9, "its default is 3"
    assert tolerations["instanceConfig"] == {"minExecutors": 0, "initExecutors": 0}


def test_it_runs_while_there_is_work(pass_time: Callable[[int], None]) -> None:
    async def scenario() -> None:
        shop = SparkShop()
        status = await shop.look(1000)
        assert shop.application()["apiVersion"] == "spark.apache.org/v1"
        assert ready(status) == (False, "SparkOperatorSilent")
        shop.report("DriverRequested")
        status = await shop.look(1000)
        assert ready(status) == (False, "ApplicationStarting")
        assert status["applicationState"] == "DriverRequested"
        shop.report("RunningHealthy")
        status = await shop.look(1000)
        assert ready(status) == (True, "Scaling")
        assert (status["applicationState"], status["desiredReplicas"]) == ("RunningHealthy", 3)
        changes = shop.kube.crash_point.changes
        await shop.look(1000)
        assert shop.kube.crash_point.changes == changes
        for _ in range(3):
            pass_time(2_000)
            status = await shop.look(0)
        assert ready(status) == (True, "ScaledToZero")
        assert shop.kube.deleted == ["SparkApplication/eaters"]
        await shop.look(20)
        assert shop.application()

    asyncio.run(scenario())


def test_a_changed_application_is_another_one() -> None:
    """Apache's operator does not look at the spec of one that runs."""

    async def scenario() -> None:
        shop = SparkShop()
        await shop.look(1000)
        first = shop.application()["metadata"]["uid"]
        changed = shop.kube.find("ShareConsumer", "eaters")
        changed["spec"]["spark"]["arguments"] = ["--other"]
        shop.store.put(changed)
        await shop.look(1000)
        assert shop.application()["metadata"]["uid"] != first
        assert shop.application()["spec"]["driverArgs"] == ["--other"]

    asyncio.run(scenario())


def test_the_next_application_waits_for_the_end_of_the_former() -> None:
    """A finalizer of Apache's operator holds it until its pods are gone."""

    async def scenario() -> None:
        shop = SparkShop()
        await shop.look(1000)
        shop.application()["metadata"]["finalizers"] = ["spark.apache.org/ends"]
        shop.store.put(shop.application())
        changed = shop.kube.find("ShareConsumer", "eaters")
        changed["spec"]["spark"]["arguments"] = ["--other"]
        shop.store.put(changed)
        for _ in range(2):
            status = await shop.look(1000)
            assert ready(status) == (False, "ApplicationStarting")
            assert get_message(status) == "The former application ends."
            assert shop.application()["spec"]["driverArgs"] == []
        gone = shop.kube.objects.pop(("SparkApplication", "eaters"))
        shop.store.drop(gone)
        await shop.look(1000)
        assert shop.application()["spec"]["driverArgs"] == ["--other"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("Failed", "ApplicationFailed"),
        ("SchedulingFailure", "ApplicationFailed"),
        ("DriverEvicted", "ApplicationFailed"),
        ("ScheduledToRestart", "ApplicationStarting"),
        ("Submitted", "ApplicationStarting"),
    ],
)
def test_states_of_an_application_that_does_not_run(state: str, reason: str) -> None:
    async def scenario() -> None:
        shop = SparkShop()
        await shop.look(1000)
        shop.report(state, "no room for the driver")
        status = await shop.look(1000)
        assert ready(status) == (False, reason)
        assert ("no room for the driver" in get_message(status)) == (reason == "ApplicationFailed")

    asyncio.run(scenario())


def test_the_error_is_that_of_the_newest_driver() -> None:
    async def scenario() -> None:
        shop = SparkShop()
        await shop.look(1000)
        for attempt, text in enumerate(("ValueError: old", "ValueError: new")):
            pod = ended_driver(1)
            labels = {names.CONSUMER_LABEL: "eaters", "spark-role": "driver"}
            pod["metadata"] |= {"name": f"eaters-{attempt}-driver", "labels": labels}
            pod["metadata"] |= {"uid": text, "creationTimestamp": f"2026-01-01T00:0{attempt}:00Z"}
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = text
            shop.store.put(pod)
        shop.report("Failed", "Driver has failed")
        assert "ValueError: new" in get_message(await shop.look(1000))

    asyncio.run(scenario())


def test_a_missing_operator_is_named() -> None:
    async def scenario() -> None:
        shop = SparkShop()
        shop.kube.absent.add("SparkApplication")
        status = await shop.look(1000)
        assert ready(status) == (False, "SparkOperatorMissing")
        assert "(spark.apache.org/v1) does not exist: install Apache's" in get_message(status)

    asyncio.run(scenario())


def test_in_a_queue_of_kueue_all_executors_are_asked_for() -> None:
    async def scenario() -> None:
        shop = SparkShop()
        join_queue(shop)
        await shop.look(1000)
        made = shop.application()
        assert made["metadata"]["labels"].items() >= QUEUE.items()
        assert made["spec"]["sparkConf"]["spark.executor.instances"] == "3"

    asyncio.run(scenario())


def test_both_kinds_are_watched() -> None:
    groups = [api_version.partition("/")[0] for api_version, *_ in WATCHED]
    assert [crd.partition(".")[2] for crd in SPARK_CRDS] == groups
    assert groups == ["sparkoperator.k8s.io", "spark.apache.org"]

    async def scenario() -> int:
        shop = SparkShop()
        operator = Operator(shop.kube, ChartSettings("b:1", "s:1", "role", "u"), ("a", "b"))
        count = len(operator._spark)  # noqa: SLF001
        await operator.close()
        return count

    assert asyncio.run(scenario()) == 4


def test_the_operator_of_an_application_cannot_change() -> None:
    application = {"mainApplicationFile": "local:///job.py"}
    meta = {"name": "c", "namespace": "n"}
    of_kubeflow: Manifest = {
        "apiVersion": names.API_VERSION,
        "kind": "ShareConsumer",
        "metadata": meta,
    }
    of_kubeflow["spec"] = {"shareGroup": "g", "spark": application}
    of_apache = copy.deepcopy(of_kubeflow)
    of_apache["spec"]["spark"] = application | {"operator": "apache"}
    before, other = take([of_kubeflow, of_apache])
    assert before.errors == other.errors == []
    (changed,) = take([(before.stored, of_apache)])
    assert any("operator cannot change" in error for error in changed.errors)
