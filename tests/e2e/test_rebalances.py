"""A QueueRebalance on Kubernetes: the API server's checks, an approval by kubectl, a new broker
with its part of the replicas, and the broker that leaves without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.resources import queue_cluster, queue_rebalance, queue_topic
from e2e.test_three_brokers import replicas_of

if TYPE_CHECKING:
    from e2e.resources import Resources

RESOURCE = "queuerebalance/spread"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"mode": "AddBrokers"}, "brokers belong to the modes AddBrokers and RemoveBrokers"),
        ({"brokers": [1]}, "brokers belong to the modes AddBrokers and RemoveBrokers"),
        ({"mode": "RemoveBrokers", "brokers": []}, "spec.brokers"),
        ({"mode": "Everything"}, "spec.mode"),
        (
            {"mode": "RemoveBrokers", "brokers": [1], "excludedTopics": ["jobs"]},
            "RemoveBrokers moves all replicas",
        ),
        ({"throttle": "fast"}, "spec.throttle"),
        ({"approval": "Perhaps"}, "spec.approval"),
        ({"concurrentPartitionMovements": 0}, "spec.concurrentPartitionMovements"),
    ],
)
def test_the_api_server_refuses_what_cannot_work(
    queue: Resources, spec: dict[str, Any], words: str
) -> None:
    assert words in queue.refusal(queue_rebalance(**spec))


def test_a_broker_gets_replicas_and_leaves_again(resources: Resources) -> None:
    resources.apply(queue_cluster(replicas=3), queue_topic(partitions=6))
    resources.wait("queuecluster/main", "queuetopic/jobs", timeout_s=120)
    resources.start_client()
    resources.produce("jobs", 300)
    resources.patch("queuecluster/main", {"spec": {"replicas": 4}})
    resources.wait_status("queuecluster/main", brokersReady="4/4")
    before = replicas_of(resources, "jobs")
    resources.apply(queue_rebalance(mode="AddBrokers", brokers=[3], throttle="50Mi"))
    wait = ("wait", "--for=condition=ProposalReady", RESOURCE, "--timeout=60s")
    resources.kubectl(*wait)
    found = resources.status(RESOURCE)["proposal"]
    assert 0 < found["replicas"] <= 5
    assert found["bytes"] > 0
    assert replicas_of(resources, "jobs") == before, "nothing moves without an approval"
    resources.kubectl("annotate", RESOURCE, f"shoal.dev/approve={found['id']}")
    resources.wait(RESOURCE, timeout_s=120)
    after = replicas_of(resources, "jobs")
    assert sum(3 in replicas for replicas in after) >= 1
    assert resources.events("QueueRebalance", "spread", "Rebalanced")
    leave = {"spec": {"mode": "RemoveBrokers", "approval": "Automatic"}}
    resources.patch(RESOURCE, leave)
    resources.wait_reason(RESOURCE, "Reconciled", timeout_s=120)
    assert all(3 not in replicas for replicas in replicas_of(resources, "jobs"))
    resources.patch("queuecluster/main", {"spec": {"replicas": 3}})
    resources.kubectl("wait", "--for=delete", "pod/main-broker-3", "--timeout=120s")
    resources.kubectl("delete", RESOURCE, "--timeout=30s")
