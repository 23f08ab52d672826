"""ShareConsumers in a queue of Kueue itself, which decides when a pod or an application may start.

Kueue takes minutes to compile, so the tests run at night.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.cluster import images, spark_operator
from e2e.kueue import Kueue, local_queue
from e2e.resources import consumer_pod, queue_topic, share_consumer, share_group
from e2e.spark_consumers import ARGUMENTS, prepare, spark, state, stored
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.resources import Resources

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
QUEUE = "workers"
PODS, SPARK = "shareconsumer/pods", "shareconsumer/eaters"
#: Of a driver with two executors, of which each pod requests 50m and 512Mi.
CPU, MEMORY = "150m", "1536Mi"
EXECUTORS, RECORDS = 2, 200
SCALING = {"targetLagPerReplica": 50, "cooldown": "10s", "scaleToZeroAfter": "10s"}
#: For a driver and its executors on a busy machine.
STARTED_S = 420


@pytest.fixture(scope="module")
def kueue(cluster: Cluster, queue: Resources) -> Iterator[Kueue]:
    """Kueue, with quota for one of the two ShareConsumers."""
    cluster.load(images.archive("spark"))
    # Before Kueue, which would look for the definition of SparkApplications again later.
    spark_operator.install(cluster, [queue.namespace])
    kueue = Kueue(cluster)
    try:
        kueue.install()
        kueue.set_quota(cpu=CPU, memory=MEMORY)
        queue.apply(local_queue(QUEUE))
        prepare(queue)
        queue.apply(queue_topic("drawings"), share_group("drawers", topics=["drawings"]))
        queue.wait("queuetopic/drawings", "sharegroup/drawers")
        yield kueue
    finally:
        queue.kubectl("delete", "shareconsumers", "--all", "--timeout=120s")
        kueue.uninstall()


def put_into_queue(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a ShareConsumer in Kueue's queue."""
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
    return manifest


def pod_consumers() -> dict[str, Any]:
    """Return a ShareConsumer of two pods, of which the quota has room for one."""
    pod = consumer_pod()
    pod["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    deployment = {"template": {"spec": pod}}
    return put_into_queue(share_consumer("pods", "drawers", deployment=deployment, replicas=2))


def test_pods_run_as_far_as_the_quota_goes(queue: Resources, kueue: Kueue) -> None:
    queue.apply(pod_consumers())
    queue.wait_status(PODS, replicas=2, readyReplicas=1, timeout_s=120)
    said = queue.wait_reason(PODS, "WaitsForAdmission")
    assert said.startswith(f"1 of 2 consumers waits for admission by Kueue in LocalQueue '{QUEUE}'")
    assert "insufficient unused quota for cpu" in said
    assert queue.condition(PODS)["status"] == "True", "one of them runs"
    assert kueue.usage()["cpu"] == "100m"


def test_an_application_waits_for_others_and_gives_its_quota_back(
    queue: Resources, kueue: Kueue
) -> None:
    queue.produce("jobs", RECORDS)
    # The job waits for all executors, which Kueue has admitted with the driver.
    arguments = [*ARGUMENTS, f"--begin-with={EXECUTORS}"]
    job = spark(maxExecutors=EXECUTORS, arguments=arguments)
    queue.apply(put_into_queue(share_consumer(spark=job, scaling=SCALING)))
    said = queue.wait_reason(SPARK, "WaitsForAdmission", timeout_s=60)
    assert "insufficient unused quota for cpu" in said
    application = queue.get("sparkapplication/eaters")
    assert application["spec"]["suspend"] is True, "by Kueue's webhook"
    uid = application["metadata"]["uid"]
    queue.kubectl("delete", PODS)
    eventually(lambda: state(queue) == "RUNNING", timeout_s=STARTED_S)
    assert kueue.usage() == {"cpu": CPU, "memory": "1536Mi"}
    eventually(lambda: stored(queue, "done") >= RECORDS, timeout_s=STARTED_S)
    # Kueue's decision stands: the operator writes neither `suspend` nor another application.
    application = queue.get("sparkapplication/eaters")
    assert (application["metadata"]["uid"], application["spec"]["suspend"]) == (uid, False)
    # At zero executors, the quota is for others.
    queue.wait_reason(SPARK, "ScaledToZero", timeout_s=120)
    eventually(lambda: queue.find("sparkapplication/eaters") is None, timeout_s=60)
    eventually(lambda: kueue.usage()["cpu"] == "0", timeout_s=60)
