"""Spark executors scale with the lag of a share group, past its partitions, and back.

Kubeflow's real Spark operator runs the application. Without it the ShareConsumer reports that, and
continues when the operator is installed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from e2e.cluster import images, spark_operator
from e2e.release import NAMESPACE
from e2e.resources import Resources, queue_topic, share_consumer, share_group
from e2e.spark_consumers import (
    ARGUMENTS,
    EXECUTORS_MAX,
    PARTITIONS,
    SCALING,
    count_sharing,
    executors,
    gauge,
    list_values,
    prepare,
    results,
    spark,
    state,
    stored,
)
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.cluster.backend import Cluster

#: Work for all executors, which the first micro-batch waits for.
RECORDS = 600
#: Records that arrive when it sleeps: work for one executor.
MORE = 100


@pytest.fixture(scope="module")
def work(queue: Resources) -> Resources:
    return prepare(queue)


def is_finished(queue: Resources, count: int) -> bool:
    """Return True if this number of records is finished; raise AssertionError if not."""
    done = stored(queue, "done")
    assert done >= count, f"{done} records are finished, {len(executors(queue))} executors run"
    return True


def test_the_application_fits_the_published_schema(work: Resources, cluster: Cluster) -> None:
    """Without a Spark operator the status says so; its CRDs alone accept the application."""
    cluster.load(images.archive("spark"))
    spark_operator.uninstall(cluster)
    work.apply(share_consumer(spark=spark(), scaling=SCALING))
    said = work.wait_reason("shareconsumer/eaters", "SparkOperatorMissing")
    assert "install Kubeflow's Spark operator" in said
    crds = spark_operator.chart() / "crds"
    cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={crds}")
    get = ("get", "sparkapplication/eaters")
    eventually(lambda: work.kubectl(*get, check=False).returncode == 0, timeout_s=30)
    # Unknown and wrong fields are dropped or refused: the stored object equals the rendered one.
    made = work.get("sparkapplication/eaters")["spec"]
    assert made["suspend"] is True
    assert made["restartPolicy"]["type"] == "Always"
    assert made["executor"]["instances"] == 1
    dry = ("apply", "--dry-run=server", "--server-side", "--validate=strict", "--force-conflicts")
    manifest = work.get("sparkapplication/eaters")
    bare = {k: manifest[k] for k in ("apiVersion", "kind", "spec")}
    bare["metadata"] = {"name": "eaters"}
    work.kubectl(*dry, "--filename=-", stdin_text=yaml.safe_dump(bare))


@pytest.mark.timeout(900)
def test_executors_follow_the_lag_to_zero(work: Resources, cluster: Cluster) -> None:
    """Two partitions have more than two executors at work; and none without records."""
    cluster.load(images.archive("spark"))
    spark_operator.install(cluster, [work.namespace])
    job = spark(arguments=[*ARGUMENTS, f"--begin-with={EXECUTORS_MAX}"])
    work.apply(share_consumer(spark=job, scaling=SCALING))
    work.produce("jobs", RECORDS)
    work.wait_status("shareconsumer/eaters", desiredReplicas=EXECUTORS_MAX)
    eventually(lambda: is_finished(work, RECORDS), timeout_s=420)
    work.wait_status("sharegroup/workers", lag=0)
    assert work.status("shareconsumer/eaters")["partitions"] == PARTITIONS
    done = results(work)
    assert list_values(done) == list(range(RECORDS)), "lost, or done twice"
    assert count_sharing(done) > PARTITIONS

    work.wait_status("shareconsumer/eaters", desiredReplicas=0, replicas=0, timeout_s=120)
    eventually(lambda: state(work) == "SUSPENDED", timeout_s=60)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_new_lag_brings_back_a_suspended_application(work: Resources) -> None:
    """It is the same application, with the same checkpoint."""
    assert state(work) == "SUSPENDED", "the test above leaves it so"
    uid = work.uid("sparkapplication/eaters")
    work.produce("jobs", MORE, first=RECORDS)
    eventually(lambda: is_finished(work, RECORDS + MORE), timeout_s=420)
    work.wait_status("sharegroup/workers", lag=0)
    assert work.uid("sparkapplication/eaters") == uid
    assert list_values(results(work)) == list(range(RECORDS + MORE))


def test_kubectl_scale_moves_executors(work: Resources, cluster: Cluster) -> None:
    """Without `scaling`, the user or an HPA sets the number within the running application."""
    cluster.load(images.archive("spark"))
    spark_operator.install(cluster, [work.namespace])
    work.kubectl("delete", "shareconsumer/eaters", "--ignore-not-found")
    eventually(lambda: work.find("sparkapplication/eaters") is None, timeout_s=60)
    # Its pods end after it.
    eventually(lambda: not executors(work) and not work.find("pod/eaters-driver"), timeout_s=60)
    work.apply(share_consumer(spark=spark(), replicas=1))
    eventually(lambda: len(executors(work)) == 1, timeout_s=120, what="one executor")
    driver = work.uid("pod/eaters-driver")
    for count in (3, 1):
        work.kubectl("scale", "shareconsumer/eaters", f"--replicas={count}")
        eventually(lambda n=count: len(executors(work)) == n, timeout_s=90, what=f"{count} of them")
    assert work.uid("pod/eaters-driver") == driver, "the application was restarted"
    # Prometheus finds the source's counts at the address in the pod's annotations.
    notes = work.get("pod/eaters-driver")["metadata"]["annotations"]
    where = notes["prometheus.io/port"], notes["prometheus.io/path"]
    assert where == ("4040", "/metrics/prometheus")
    work.produce("jobs", 10)
    eventually(lambda: gauge(work, "acquired") >= 10, timeout_s=60, what="ten are counted")


def test_the_driver_gets_the_number_over_http(work: Resources) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/services/shoal-operator:metrics/proxy/scale"
    raw = f"{path}/{work.namespace}/eaters"
    signal = json.loads(work.cluster.kubectl("get", "--raw", raw).stdout)
    assert signal["desiredReplicas"] <= EXECUTORS_MAX
    assert signal["partitions"] == 2


def test_a_failed_job_is_reported_with_its_error(work: Resources, cluster: Cluster) -> None:
    spark_operator.install(cluster, [work.namespace])
    work.apply(queue_topic("bad"), share_group("losers", topics=["bad"]))
    wrong = spark(arguments=["--results=done", "--option=maxRecordPerTrigger=1"])
    work.apply(share_consumer("failing", "losers", spark=wrong, replicas=1))
    said = work.wait_reason("shareconsumer/failing", "ApplicationFailed", timeout_s=120)
    # Spark gives a source the names of its options in lower case.
    assert "unknown option 'maxrecordpertrigger'" in said
    work.kubectl("delete", "shareconsumer/failing")
    eventually(lambda: work.find("sparkapplication/failing") is None, timeout_s=60)
    # The checkpoint outlives its ShareConsumer.
    assert work.find("pvc/failing-checkpoint")


def test_steering_by_hand_is_refused(work: Resources) -> None:
    steered = spark()
    steered["sparkConf"] = {"spark.dynamicAllocation.maxExecutors": "9"}
    refused = work.refusal(share_consumer("steered", spark=steered))
    assert "are set by the operator; use minExecutors and maxExecutors" in refused
