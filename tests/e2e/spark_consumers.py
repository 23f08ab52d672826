"""A ShareConsumer whose executors hold each record for 20 ms, and its observable state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import images
from e2e.resources import Resources, queue_topic, share_group
from shoal.monitoring.exposition import parse_samples

JOB = Path(__file__).with_name("spark_job.py")
PARTITIONS = 2
#: More than the partitions.
EXECUTORS_MAX = 3
ARGUMENTS = ["--results=done", "--topics=$(TOPICS)", "--group=$(GROUP_ID)"]
#: The bound from the group's locks; a batch takes ten seconds or less.
RECORDS_PER_TRIGGER = 4000
#: Small and quick to start, so that a driver and all executors fit on a laptop.
DRIVER = {"coreRequest": "50m", "memory": "512m"}
EXECUTOR = {**DRIVER, "memoryOverhead": "256m"}
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SCALING = {"targetLagPerReplica": 100, "cooldown": "10s", "scaleToZeroAfter": "10s"}
END_OFFSET = "kafka_log_Log_LogEndOffset"


def spark(**more: object) -> dict[str, object]:
    """Return `spec.spark` with the job from its ConfigMap."""
    return {
        "image": images.tag("spark"),
        "imagePullPolicy": "Never",
        "mainApplicationFile": "local:///opt/job/spark_job.py",
        "arguments": ARGUMENTS,
        "minExecutors": 0,
        "maxExecutors": EXECUTORS_MAX,
        "maxRecordsPerTrigger": RECORDS_PER_TRIGGER,
        "sparkConf": {
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
        },
        "driver": {**DRIVER, "volumeMounts": [{"name": "job", "mountPath": "/opt/job"}]},
        "executor": EXECUTOR,
        "volumes": [{"name": "job", "configMap": {"name": "job"}}],
        **more,
    }


def prepare(queue: Resources) -> Resources:
    """Create topics, a group, and the job."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "job"},
        "data": {JOB.name: JOB.read_text()},
    }
    queue.apply(config_map, queue_topic(), queue_topic("done"), share_group(maxRecordLocks=2000))
    queue.wait("queuetopic/jobs", "queuetopic/done", "sharegroup/workers")
    return queue


def executors(queue: Resources) -> list[str]:
    """Return the names of the running executor pods."""
    pods = queue.find_all("pods", "shoal.dev/share-consumer=eaters,spark-role=executor")
    return [
        p["metadata"]["name"]
        for p in pods
        if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
    ]


def stored(queue: Resources, topic: str) -> int:
    """Return the number of records ever written to a topic, by the broker's metrics; -1 without
    one."""
    pod = f"/api/v1/namespaces/{queue.namespace}/pods/main-broker-0:9404/proxy/metrics"
    scraped = queue.kubectl("get", "--raw", pod, check=False)
    found = parse_samples(scraped.stdout, [END_OFFSET], zeros=[END_OFFSET])
    ends = [int(s.value) for s in found if s.labels["topic"] == topic]
    return sum(ends) if ends else -1


def gauge(queue: Resources, name: str) -> int:
    """Return the driver's Prometheus value of this count of the source; -1 if there is none."""
    pod = f"/api/v1/namespaces/{queue.namespace}/pods/eaters-driver:4040/proxy/metrics/prometheus"
    text = queue.kubectl("get", "--raw", pod, check=False).stdout
    found = re.search(rf"^metrics_\S+_sharegroup_workers_{name}_Value\S* (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else -1


class Result(NamedTuple):
    """A record that the job has finished: its value, in which micro-batch, and on which pod."""

    value: int
    batch: int
    executor: str


def results(queue: Resources) -> list[Result]:
    """Return what the job has written so far."""
    words = ("consume", "done", "--from-beginning", "--format={value} {key}", "--exit-at-end")
    rows = [line.split() for line in queue.shoal(*words).splitlines()]
    return [Result(int(value), int(batch), executor) for value, batch, executor in rows]


def list_values(found: list[Result]) -> list[int]:
    return sorted(result.value for result in found)


def count_sharing(found: list[Result]) -> int:
    """Return the highest number of executors that shared a micro-batch."""
    sharing: dict[int, set[str]] = {}
    for result in found:
        sharing.setdefault(result.batch, set()).add(result.executor)
    return max(map(len, sharing.values()), default=0)


def state(queue: Resources) -> str:
    """Return the SparkApplication's state, as Kubeflow names it."""
    return queue.status("shareconsumer/eaters").get("applicationState", "")
