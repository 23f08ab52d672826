"""A ShareConsumer with `spec.job` on Kubernetes: each record gets a Job that nobody stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e.cluster import images
from e2e.resources import queue_topic, share_consumer, share_group
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.resources import Resources

RECORDS, AT_ONCE, KEPT = 6, 3, 2
#: Takes one record, and works for some seconds more.
TAKE = "shoal share-consume jobs --group workers --max-messages 1 --timeout 30s && sleep 8"


@pytest.mark.nightly
def test_each_record_gets_a_job_that_nobody_stops(queue: Resources) -> None:
    queue.apply(queue_topic(), share_group())
    queue.wait("queuetopic/jobs", "sharegroup/workers")
    container = {
        "name": "one",
        "image": images.tag("broker"),
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", TAKE],
    }
    job = {
        "template": {"spec": {"containers": [container]}},
        "successfulJobsHistoryLimit": KEPT,
    }
    scaling = {"targetLagPerReplica": 1, "recordsPerReplica": 1, "maxReplicas": AT_ONCE}
    queue.apply(share_consumer(job=job, scaling=scaling))
    queue.produce("jobs", RECORDS)
    most = 0
    seen: set[str] = set()

    def all_done() -> bool:
        nonlocal most
        jobs = queue.find_all("jobs")
        seen.update(one["metadata"]["name"] for one in jobs)
        most = max(most, sum(one["status"].get("active", 0) for one in jobs))
        assert not any(one["status"].get("failed") for one in jobs)
        status = queue.status("shareconsumer/eaters")
        return status["lag"] == 0 and status["replicas"] == 0 and len(seen) == RECORDS

    eventually(all_done, timeout_s=240)
    queue.wait_reason("shareconsumer/eaters", "ScaledToZero")
    assert most == AT_ONCE
    assert len(queue.find_all("jobs")) == KEPT
