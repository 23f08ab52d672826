"""Executors of Spark come with the lag of a share group, past its partitions, and go with it.

The real Spark operator of Kubeflow runs the application; without it the ShareConsumer says so, and
goes on by itself when it comes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conditions import eventually
from e2e.cluster import images, spark_operator
from e2e.cluster.backend import Cluster
from e2e.release import NAMESPACE
from e2e.resources import Resources, queue_topic, share_consumer, share_group

JOB = Path(__file__).with_name("spark_job.py")
EXECUTORS_MAX = 3
RECORDS = 2000
#: Small and quick to start, so that a driver and all executors fit on a laptop.
POD = {"coreRequest": "50m", "memory": "512m"}
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark(**more: object) -> dict[str, object]:
    """`spec.spark` with the job from its ConfigMap."""
    return {
        "image": images.tag("spark"),
        "imagePullPolicy": "Never",
        "mainApplicationFile": "local:///opt/job/spark_job.py",
        "arguments": ["--results=done", "--topics=$(TOPICS)", "--group=$(GROUP_ID)"],
        "minExecutors": 0,
        "maxExecutors": EXECUTORS_MAX,
        "maxRecordsPerTrigger": 400,
        "sparkConf": {
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
        },
        "driver": {**POD, "volumeMounts": [{"name": "job", "mountPath": "/opt/job"}]},
        "executor": POD,
        "volumes": [{"name": "job", "configMap": {"name": "job"}}],
        **more,
    }


SCALING = {"targetLagPerReplica": 100, "cooldown": "10s", "scaleToZeroAfter": "10s"}


@pytest.fixture(scope="module")
def work(queue: Resources) -> Resources:
    """Topics, a group with some lag, and the job."""
    config_map = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job"},
        "data": {JOB.name: JOB.read_text()},
    }  # fmt: skip
    queue.apply(config_map, queue_topic(), queue_topic("done"), share_group(maxRecordLocks=2000))
    queue.wait("queuetopic/jobs", "queuetopic/done", "sharegroup/workers")
    return queue


def executors(queue: Resources) -> int:
    pods = queue.list("pods", "shoal.dev/share-consumer=eaters,spark-role=executor")
    return sum(p["status"]["phase"] == "Running" for p in pods)


def remove_spark_operator(cluster: Cluster) -> None:
    where = (f"--namespace={spark_operator.NAMESPACE}", "--ignore-not-found", "--wait")
    cluster.helm("uninstall", spark_operator.NAMESPACE, *where)
    found = cluster.kubectl("get", "crd", "--output=name").stdout.split()
    ours = [name for name in found if name.endswith(".sparkoperator.k8s.io")]
    if ours:
        cluster.kubectl("delete", *ours, "--timeout=60s")


def test_the_application_fits_the_published_schema(work: Resources, cluster: Cluster) -> None:
    """Without a Spark operator the status says so; its definitions alone take the application."""
    cluster.load(images.archive("spark"))
    remove_spark_operator(cluster)
    work.apply(share_consumer(spark=spark(), scaling=SCALING))
    said = work.wait_reason("shareconsumer/eaters", "SparkOperatorMissing")
    assert "install Kubeflow's Spark operator" in said
    crds = spark_operator.chart() / "crds"
    cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={crds}")
    get = ("get", "sparkapplication/eaters")
    eventually(lambda: work.kubectl(*get, check=False).returncode == 0, timeout_s=30)
    # Unknown and wrong fields are dropped or refused: what is kept is what was rendered.
    made = work.get("sparkapplication/eaters")["spec"]
    assert made["suspend"] is True
    assert made["restartPolicy"]["type"] == "Always"
    assert made["executor"]["instances"] == 1
    dry = ("apply", "--dry-run=server", "--server-side", "--validate=strict", "--force-conflicts")
    manifest = work.get("sparkapplication/eaters")
    bare = {k: manifest[k] for k in ("apiVersion", "kind", "spec")}
    bare["metadata"] = {"name": "eaters"}
    work.kubectl(*dry, "--filename=-", input=yaml.safe_dump(bare))


@pytest.mark.timeout(600)
def test_executors_follow_the_lag_to_zero_and_back(work: Resources, cluster: Cluster) -> None:
    spark_operator.install(cluster, [work.namespace])
    work.apply(share_consumer(spark=spark(), scaling=SCALING))
    work.produce("jobs", RECORDS)
    work.wait_status("shareconsumer/eaters", desiredReplicas=EXECUTORS_MAX)
    uid = work.uid("sparkapplication/eaters")
    seen = 0

    def drained() -> bool:
        nonlocal seen
        seen = max(seen, executors(work))
        return work.status("sharegroup/workers")["lag"] == 0

    eventually(drained, timeout_s=240)
    assert seen > work.status("shareconsumer/eaters")["partitions"] == 2, seen
    values = work.shoal("consume", "done", "--from-beginning", "--format={value}", "--exit-at-end")
    assert set(map(int, values.split())) == set(range(RECORDS))
    work.wait_status("shareconsumer/eaters", desiredReplicas=0, replicas=0, timeout_s=120)
    eventually(lambda: state(work) == "SUSPENDED", timeout_s=60)
    # Back within seconds of new lag, by the same application over the same checkpoint.
    work.produce("jobs", 50, first=RECORDS)
    work.wait_status("sharegroup/workers", lag=0, timeout_s=120)
    assert work.uid("sparkapplication/eaters") == uid
    values = work.shoal("consume", "done", "--from-beginning", "--format={value}", "--exit-at-end")
    assert set(map(int, values.split())) == set(range(RECORDS + 50))


def state(work: Resources) -> str:
    return work.status("shareconsumer/eaters").get("applicationState", "")


def test_the_driver_is_told_over_http(work: Resources) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/services/shoal-operator:metrics/proxy/scale"
    raw = f"{path}/{work.namespace}/eaters"
    signal = json.loads(work.cluster.kubectl("get", "--raw", raw).stdout)
    assert signal["desiredReplicas"] <= EXECUTORS_MAX
    assert signal["partitions"] == 2


def test_a_job_that_fails_is_told_in_its_own_words(work: Resources, cluster: Cluster) -> None:
    spark_operator.install(cluster, [work.namespace])
    work.apply(queue_topic("bad"), share_group("losers", topics=["bad"]))
    wrong = spark(arguments=["--results=done", "--option=maxRecordPerTrigger=1"])
    work.apply(share_consumer("failing", "losers", spark=wrong, replicas=1))
    said = work.wait_reason("shareconsumer/failing", "ApplicationFailed", timeout_s=120)
    assert "maxRecordPerTrigger" in said
    work.kubectl("delete", "shareconsumer/failing")
    eventually(lambda: work.find("sparkapplication/failing") is None, timeout_s=60)
    # The checkpoint outlives its ShareConsumer.
    assert work.find("pvc/failing-checkpoint")


def test_steering_by_hand_is_refused(work: Resources) -> None:
    steered = spark()
    steered["sparkConf"] = {"spark.dynamicAllocation.maxExecutors": "9"}
    refused = work.refusal(share_consumer("steered", spark=steered))
    assert "are set by the operator; use minExecutors and maxExecutors" in refused
