"""Consumers scale up with the lag, past the number of partitions, and down again."""

from __future__ import annotations

import datetime
import json
import re

from e2e.release import NAMESPACE
from e2e.resources import Resources, queue_topic, share_consumer, share_group
from support.runs.conditions import ceiling, eventually, stopwatch

#: From lag above the target until the first consumer's pod is created.
REACTION_SECONDS_MAX = 10
SCALING = {
    "minReplicas": 0,
    "maxReplicas": 4,
    "targetLagPerReplica": 50,
    "recordsPerReplica": 10,
    "cooldown": "3s",
    "scaleToZeroAfter": "5s",
}


def pods(queue: Resources, consumer: str) -> int:
    """Count the consumers that are not terminating."""
    found = queue.find_all("pods", f"shoal.dev/share-consumer={consumer}")
    return sum("deletionTimestamp" not in p["metadata"] for p in found)


def test_up_with_the_lag_past_the_partitions_to_zero_and_back(queue: Resources) -> None:
    queue.apply(queue_topic(), share_group(), share_consumer(scaling=SCALING))
    queue.wait("queuetopic/jobs", "sharegroup/workers", "shareconsumer/eaters")
    assert pods(queue, "eaters") == 0
    queue.produce("jobs", 1200)
    with stopwatch() as passed_s:
        eventually(lambda: pods(queue, "eaters"), timeout_s=60)
        took = passed_s()
    assert took < ceiling(REACTION_SECONDS_MAX)
    queue.wait_status("shareconsumer/eaters", desiredReplicas=4, readyReplicas=4)
    assert queue.status("shareconsumer/eaters")["partitions"] == 2
    queue.wait_status("sharegroup/workers", members=4)
    queue.wait_status("shareconsumer/eaters", desiredReplicas=0, replicas=0, timeout_s=90)
    queue.wait_status("sharegroup/workers", lag=0, inFlight=0, members=0)
    queue.produce("jobs", 20)
    queue.wait_status("shareconsumer/eaters", desiredReplicas=1, readyReplicas=1)
    queue.wait_status("shareconsumer/eaters", desiredReplicas=0, replicas=0, timeout_s=90)
    queue.wait_status("sharegroup/workers", lag=0)
    steps = queue.events("ShareConsumer", "eaters", "Scaled")
    # The operator may have read the lag while records arrived.
    assert re.match(r"0 to \d: lag \d+ / 50 a consumer", steps[0]), steps
    # The operator's decision is in the status; the spec stays as it was applied.
    assert "replicas" not in queue.get("shareconsumer/eaters")["spec"]


def test_records_that_are_due_tomorrow_start_no_consumer(queue: Resources) -> None:
    later = share_group("later", topics=["reminders"], delay={"max": "48h"})
    eager = share_consumer("eager", "later", scaling=SCALING | {"targetLagPerReplica": 1})
    queue.apply(queue_topic("reminders"), later, eager)
    queue.wait("queuetopic/reminders", "sharegroup/later", "shareconsumer/eager")
    tomorrow = ("--header", "shoal.deliver.after=86400000")
    lines = "".join(f"{n}\n" for n in range(20))
    queue.shoal("produce", "reminders", "--quiet", *tomorrow, stdin_text=lines)
    queue.wait_status("sharegroup/later", lag=20, delayed=20, available=0)
    queue.wait_status("shareconsumer/eager", lag=20, due=0, desiredReplicas=0)
    due = datetime.datetime.fromisoformat(queue.status("sharegroup/later")["nextDueTime"])
    ahead = due - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(hours=23) < ahead <= datetime.timedelta(hours=24)
    assert queue.events("ShareConsumer", "eager", "Scaled") == []
    queue.produce("reminders", 2)
    queue.wait_event("ShareConsumer", "eager", "Scaled", "0 to")
    queue.wait_status("sharegroup/later", lag=20, available=0)
    queue.wait_status("shareconsumer/eager", desiredReplicas=0, timeout_s=90)


def test_kubectl_scale_drives_it_where_the_operator_does_not(queue: Resources) -> None:
    queue.apply(queue_topic("by-hand"), share_group("handy", topics=["by-hand"]))
    queue.apply(share_consumer("manual", "handy", replicas=1))
    queue.wait_status("shareconsumer/manual", readyReplicas=1)
    queue.kubectl("scale", "shareconsumer/manual", "--replicas=3")
    queue.wait_status("shareconsumer/manual", replicas=3, readyReplicas=3)
    selector = queue.status("shareconsumer/manual")["selector"]
    assert len(queue.find_all("pods", selector)) == 3
    queue.patch("shareconsumer/manual", {"spec": {"paused": True}})
    queue.wait_status("shareconsumer/manual", replicas=0)
    assert queue.condition("shareconsumer/manual", "Paused")["status"] == "True"
    queue.patch("shareconsumer/manual", {"spec": {"paused": False}})
    queue.wait_status("shareconsumer/manual", readyReplicas=3)
    # Kubernetes' own autoscaler drives it too: below its minimum it needs no metrics.
    target = {"apiVersion": "shoal.dev/v1beta1", "kind": "ShareConsumer", "name": "manual"}
    queue.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "manual"},
            "spec": {"scaleTargetRef": target, "minReplicas": 4, "maxReplicas": 5},
        }
    )
    queue.wait_status("shareconsumer/manual", replicas=4, readyReplicas=4)
    queue.kubectl("delete", "hpa/manual", "shareconsumer/manual")
    eventually(lambda: queue.find("deployment/manual") is None, timeout_s=30)


def test_the_scale_signal_is_served_over_http(queue: Resources) -> None:
    queue.apply(queue_topic("heard"), share_group("listeners", topics=["heard"]))
    queue.apply(share_consumer("listening", "listeners", replicas=0))
    queue.wait("queuetopic/heard", "sharegroup/listeners", "shareconsumer/listening")
    queue.produce("heard", 42)
    service = f"/api/v1/namespaces/{NAMESPACE}/services/shoal-operator:metrics/proxy"

    def signal() -> dict[str, int]:
        path = f"{service}/scale/{queue.namespace}/listening"
        return json.loads(queue.cluster.kubectl("get", "--raw", path).stdout)

    eventually(lambda: signal()["lag"] == 42, timeout_s=20)
    assert signal()["desiredReplicas"] == 0
    missing = queue.cluster.kubectl("get", "--raw", f"{service}/scale/x/y", check=False)
    assert missing.returncode != 0
    # An unknown lag is an error, for KEDA's fallback; 0 would stop all consumers.
    queue.apply(share_consumer("unknown", "not-there", replicas=0))
    path = f"{service}/scale/{queue.namespace}/unknown"

    def refused() -> bool:
        said = queue.cluster.kubectl("get", "--raw", path, check=False).stderr
        assert "ServiceUnavailable" in said or "currently unable" in said, said
        return True

    eventually(refused, timeout_s=20)


def test_parallelism_that_locks_forbid_is_a_warning(queue: Resources) -> None:
    group = share_group("narrow", topics=["narrow"], maxRecordLocks=100)
    scaling = {"minReplicas": 0, "maxReplicas": 10, "recordsPerReplica": 100}
    queue.apply(queue_topic("narrow"), group, share_consumer("many", "narrow", scaling=scaling))
    queue.wait("queuetopic/narrow", "sharegroup/narrow")

    def warned() -> str:
        condition = queue.condition("shareconsumer/many", "Degraded")
        assert condition["reason"] == "ParallelismUnreachable", condition
        return condition["message"]

    assert "record locks are enough for 2 consumers" in eventually(warned, timeout_s=20)
    assert queue.status("shareconsumer/many")["ceiling"] == 2


def test_a_missing_group_is_reported_and_awaited(queue: Resources) -> None:
    queue.apply(share_consumer("early", "not-yet", replicas=1))
    said = queue.wait_reason("shareconsumer/early", "ShareGroupNotFound")
    assert "'not-yet'" in said
    queue.apply(queue_topic("late"), share_group("not-yet", topics=["late"]))
    queue.wait("shareconsumer/early")


def test_a_workload_is_required(queue: Resources) -> None:
    manifest = share_consumer("neither")
    del manifest["spec"]["deployment"]
    assert "give one of deployment, spark, scaleTargetRef and job" in queue.refusal(manifest)
