"""`examples/keda` in the hands of KEDA itself, which scales by the operator's external scaler.

KEDA takes minutes to compile, so the tests run at night.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.cluster.layout import REPOSITORY
from e2e.keda import Keda
from e2e.release import NAMESPACE
from e2e.resources import consumer_pod, queue_topic, share_group
from support.runs.conditions import ceiling, eventually, stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release
    from e2e.resources import Resources

pytestmark = pytest.mark.nightly
EXAMPLE = REPOSITORY / "examples" / "keda"
CONSUMER, SCALED = "shareconsumer/painters", "scaledobject/painters"
#: An interval at which KEDA's own look at the scaler comes too late for the tests.
NEVER_S = 3600
#: From the first record until KEDA has asked for a consumer.
REACTION_S_MAX = 10
#: For an autoscaler, which looks every 15 s.
SCALED_S = 120


@pytest.fixture(scope="module", autouse=True)
def keda(cluster: Cluster, release: Release) -> Iterator[Keda]:
    keda = Keda(cluster)
    release.install(keda={"enabled": True})
    try:
        keda.install()
        yield keda
    finally:
        keda.uninstall()
        release.install()


def example(name: str) -> dict[str, Any]:
    return yaml.safe_load((EXAMPLE / name).read_text())


def share_consumer() -> dict[str, Any]:
    """The example, with consumers that are slow and log in as the user of the tests."""
    made = example("01-share-consumer.yaml")
    made["spec"] |= {"user": "client", "deployment": {"template": {"spec": consumer_pod(5)}}}
    return made


def scaled_object(**spec: Any) -> dict[str, Any]:
    """The example, with the operator of the tests and shorter times."""
    made = example("02-scaled-object.yaml")
    (trigger,) = made["spec"]["triggers"]
    metadata = trigger["metadata"]
    metadata["scalerAddress"] = metadata["scalerAddress"].replace("shoal.svc", f"{NAMESPACE}.svc")
    scaler = made["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    made["spec"] |= {"cooldownPeriod": 5, **spec}
    return made


def test_the_first_record_starts_a_consumer_and_a_backlog_more(queue: Resources) -> None:
    queue.apply(queue_topic(), share_group())
    queue.apply(share_consumer(), scaled_object(pollingInterval=NEVER_S))
    queue.wait("queuetopic/jobs", "sharegroup/workers", CONSUMER)
    queue.kubectl("wait", "--for=condition=Ready", SCALED, "--timeout=60s")
    assert queue.get(CONSUMER)["spec"]["replicas"] == 0
    # The scaler pushes that there is work: KEDA does not look at it within this test.
    queue.produce("jobs", 1)
    with stopwatch() as passed_s:
        eventually(lambda: queue.get(CONSUMER)["spec"]["replicas"] == 1, timeout_s=60)
        took = passed_s()
    assert took < ceiling(REACTION_S_MAX), f"{took:.1f} s until KEDA scaled up"
    queue.wait_status(CONSUMER, replicas=1, readyReplicas=1)
    # One consumer for each 100 records, by an autoscaler that reads the metric from KEDA.
    queue.produce("jobs", 1200)
    eventually(lambda: queue.get(CONSUMER)["spec"]["replicas"] == 8, timeout_s=SCALED_S)
    queue.wait_status(CONSUMER, replicas=8, readyReplicas=8, timeout_s=SCALED_S)
    queue.wait_status("sharegroup/workers", members=8, timeout_s=SCALED_S)
    queue.wait_status("sharegroup/workers", lag=0, timeout_s=SCALED_S)
    # Without records, KEDA stops all of them after its cooldown.
    queue.patch(SCALED, {"spec": {"pollingInterval": 2}})
    eventually(lambda: queue.get(CONSUMER)["spec"]["replicas"] == 0, timeout_s=SCALED_S)
    queue.wait_status(CONSUMER, replicas=0, desiredReplicas=0)
    assert queue.condition(SCALED, "Active")["status"] != "True"
