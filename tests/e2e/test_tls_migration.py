"""Three brokers without TLS get it under load, without a failed produce or a lost job."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.producing import consuming, producing
from e2e.resources import (
    EVERYTHING,
    Manifest,
    Resources,
    client_pod,
    queue_cluster,
    queue_topic,
    queue_user,
    share_group,
)
from support.runs.conditions import eventually

PLAIN = {
    "name": "plain",
    "port": 9092,
    "type": "Internal",
    "tls": {"enabled": False},
    "authentication": {"type": "none"},
}
MTLS = {
    "name": "mtls",
    "port": 9094,
    "type": "Internal",
    "tls": {},
    "authentication": {"type": "tls"},
}
STAGE = "shoal.dev/internal-tls"


def cluster(*listeners: Manifest, **spec: Any) -> Manifest:
    return queue_cluster(replicas=3, listeners=list(listeners), **spec)


def stage(queue: Resources) -> str:
    return queue.get("statefulset/main-broker")["metadata"].get("annotations", {}).get(STAGE, "")


def wait_ready(queue: Resources) -> None:
    queue.wait("queuecluster/main", timeout_s=120)


@pytest.mark.timeout(900)
def test_a_cluster_moves_to_tls_under_load(resources: Resources) -> None:
    resources.apply(cluster(PLAIN), queue_topic(partitions=6), share_group())
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=120)
    assert stage(resources) == ""
    resources.start_pods(client_pod("client"))
    with consuming(resources, "workers", members=2) as deliveries, producing(resources) as counts:
        # Clients of the old listener do not log in. They would have no permissions.
        resources.apply(cluster(PLAIN, MTLS, authorization={"type": "none"}))

        def migrated() -> bool:
            assert stage(resources) == "migrated", stage(resources)
            return True

        eventually(migrated, timeout_s=400)
        wait_ready(resources)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert {value for value, _ in deliveries} == set(range(sent))
    # Clients move to the new listener, and the old one goes.
    resources.apply(queue_user("secured", *EVERYTHING))
    condition = resources.wait_reason("queueuser/secured", "NotAuthorized")
    assert "does not authorize requests" in condition
    resources.apply(cluster(MTLS))
    resources.wait("queueuser/secured", timeout_s=200)
    wait_ready(resources)
    resources.start_pods(client_pod("secured", "secured"))
    listed = resources.kubectl("exec", "secured", "--", "shoal", "topics", "list").stdout
    assert "jobs" in listed
    refused = resources.shoal_result("topics", "list", check=False)
    assert refused.returncode != 0
