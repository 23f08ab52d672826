"""Executors that the API server refuses: only the driver's log knows, so the operator compares."""

from __future__ import annotations

import asyncio
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint
from kube.consumers.test_spark_consumers import CONSUMER, CONTEXT, SETTINGS, consumer
from shoal_operator import clock
from shoal_operator.consumers.missing_executors import compute_needs, diagnose
from shoal_operator.consumers.workloads import WorkloadManager
from shoal_operator.kube.kube import KubeError
from shoal_operator.model.consumers import spark
from shoal_operator.model.names import CONSUMER_LABEL
from shoal_operator.model.quantities import parse_quantity

if TYPE_CHECKING:
    from shoal_operator.kube.conditions import Verdict

MIB = 1 << 20


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "n"},
        "spec": spec,
        "status": {"hard": hard, "used": used},
    }


def limits(scope: str = "Container", **bounds: dict[str, str]) -> Any:
    meta = {"name": "range", "namespace": "n"}
    spec = {"limits": [{"type": scope, **bounds}]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": meta, "spec": spec}


def needs(**fields: Any) -> dict[str, Fraction]:
    of = consumer(**fields) if fields else CONSUMER
    return compute_needs(spark.build_application(of, CONTEXT, suspend=False)["spec"], [])


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", "1/2"), ("2", "2"), ("1.5Gi", "1610612736"), ("1e3", "1000"), ("2k", "2000")],
)
def test_quantities_of_kubernetes(text: str, number: str) -> None:
    assert parse_quantity(text) == Fraction(number)


@pytest.mark.parametrize("text", ["", "x", "1Zi", "Mi"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("fields", "memory_mib", "cpu"),
    [
        # Spark's documentation: 1g, and for Python a factor of 0.4, in whole MiB.
        ({}, 1024 + 409, "2"),
        ({"executor": {"memory": "512m", "coreRequest": "500m"}}, 512 + 384, "1/2"),
        ({"executor": {"memory": "2g", "memoryOverhead": "1g"}}, 3072, "2"),
        ({"sparkConf": {"spark.executor.memory": "4g"}}, 4096 + 1638, "2"),
        ({"sparkConf": {"spark.executor.memoryOverheadFactor": "0.1"}}, 1024 + 384, "2"),
        ({"sparkConf": {"spark.executor.pyspark.memory": "100m"}}, 1024 + 409 + 100, "2"),
    ],
)
def test_what_an_executor_asks_for(fields: Any, memory_mib: int, cpu: str) -> None:
    asked = needs(**fields)
    assert asked["requests.memory"] == asked["limits.memory"] == memory_mib * MIB
    assert asked["requests.cpu"] == Fraction(cpu)
    assert asked["pods"] == 1
    assert "limits.cpu" not in asked


def test_an_executor_that_exists_says_what_another_one_asks_for() -> None:
    container = {"resources": {"requests": {"cpu": "3"}, "limits": {"nvidia.com/gpu": "2"}}}
    found = compute_needs({}, [{"spec": {"containers": [container, container]}}])
    assert found["requests.cpu"] == 6
    assert found["requests.nvidia.com/gpu"] == 4


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (quota({"pods": "5"}, {"pods": "5"}), "needs pods=1: 5 of 5 are used. Raise the Resou"),
        (quota({"pods": "5"}, {"pods": "4"}), None),
        (quota({"cpu": "4"}, {"cpu": "2500m"}), "needs cpu=2: 2500m of 4 are used. Raise"),
        (quota({"requests.cpu": "4"}, {"requests.cpu": "2"}), None),
        (quota({"limits.memory": "2Gi"}, {"limits.memory": "1Gi"}), "needs limits.memory=1433Mi"),
        (quota({"limits.cpu": "9"}, {}), "must specify limits.cpu. The ResourceQuota needs"),
        (quota({"services": "0"}, {}), None),
        (quota({"pods": "0"}, {}, scopes=["Terminating"]), None),
        (quota({"pods": "0"}, {}, scopes=["NotBestEffort"]), "needs pods=1"),
        (quota({"pods": "0"}, {}, scopeSelector={"matchExpressions": []}), None),
        (limits(max={"memory": "1Gi"}), "maximum memory usage per Container is 1Gi, but .* 1433Mi"),
        (limits("Pod", max={"cpu": "1500m"}), "maximum cpu usage per Pod is 1500m, .* has 2. Stay"),
        (limits(min={"cpu": "4"}), "minimum cpu usage per Container is 4, but an executor has 2"),
        (limits(max={"cpu": "2"}, min={"memory": "64Mi"}), None),
        (limits("PersistentVolumeClaim", max={"storage": "1"}), None),
    ],
)
def test_which_quota_or_limit_range_has_no_room(of: Any, words: str | None) -> None:
    is_quota = of["kind"] == "ResourceQuota"
    found = diagnose([of] * is_quota, [of] * (not is_quota), needs())
    if words is None:
        assert found is None
        return
    assert found is not None
    assert found.reason == "PodRefused"
    assert found.message.startswith(f"{of['kind']} {of['metadata']['name']}: ")
    assert re.search(words, found.message), found.message


class Team:
    """A namespace in which the driver of a ShareConsumer runs, and the clock of its operator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kube, self.now_ms = ApiServer(CrashPoint()), 0
        monkeypatch.setattr(clock, "now_ms", lambda: self.now_ms)
        self.store = self.kube.store()
        self.workloads = WorkloadManager(self.kube, self.store, SETTINGS)
        self.look()
        meta = {"name": "c-driver", "namespace": "n"}
        driver = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
        self.kube.add(driver | {"status": {"phase": "Running"}})
        running = {"applicationState": {"state": "RUNNING"}}
        self.kube.find("SparkApplication", "c")["status"] = running

    def add_executor(self) -> None:
        labels = {**spark.build_executor_selector("c"), CONSUMER_LABEL: "c"}
        meta = {"name": "c-exec-1", "namespace": "n", "labels": labels}
        pod = {"metadata": meta, "spec": {"containers": []}, "status": {"phase": "Running"}}
        self.kube.add({"apiVersion": "v1", "kind": "Pod", **pod})

    def look(self, replicas: int = 2, after_s: float = 0) -> Verdict:
        self.now_ms += int(after_s * 1000)
        for manifest in list(self.kube.objects.values()):
            self.store.put(manifest)
        return asyncio.run(self.workloads.apply(CONSUMER, CONTEXT, replicas, 0)).verdict


def test_a_consumer_says_why_its_executors_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the driver had time to request them, and within 30 seconds."""
    team = Team(monkeypatch)
    team.kube.add(quota({"pods": "1"}, {"pods": "1"}))
    assert team.look().reason == "Scaling"
    assert team.look(after_s=10).reason == "Scaling"
    said = team.look(after_s=10)
    assert (said.ready, said.reason, said.alarm) == (False, "PodRefused", True)
    assert said.message.startswith("0 of 2 executors run. ResourceQuota team: exceeded quota")
    team.add_executor()
    said = team.look()
    assert (said.ready, said.reason) == (True, "PodRefused"), "one of them works"
    assert team.look(replicas=1).reason == "Reconciled"
    assert team.look().reason == "Scaling", "the time counts anew"


@pytest.mark.parametrize("refused", [False, True])
def test_a_cause_that_the_operator_cannot_see_is_in_the_drivers_log(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """A webhook, for example, or quotas that the operator may not list."""
    team = Team(monkeypatch)
    team.look()
    if refused:
        team.kube.denied["ResourceQuota", ""] = "forbidden"
        team.kube.add(quota({"pods": "1"}, {"pods": "1"}))
    said = team.look(after_s=20)
    assert said.reason == "ExecutorsMissing"
    assert said.message.endswith("what the API server answered the driver: kubectl logs c-driver.")


def test_another_error_of_the_api_server_is_one_of_the_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    team = Team(monkeypatch)
    team.look()
    team.kube.absent.add("LimitRange")
    with pytest.raises(KubeError):
        team.look(after_s=20)
