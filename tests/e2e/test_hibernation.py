"""A QueueCluster that is hibernated and returns: pods go and come back, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e.resources import queue_cluster, queue_topic, share_consumer, share_group
from e2e.test_three_brokers import BROKER

if TYPE_CHECKING:
    from e2e.resources import Resources

pytestmark = pytest.mark.nightly


def test_a_hibernated_cluster_returns_with_its_records_and_positions(resources: Resources) -> None:
    resources.apply(queue_cluster(replicas=3), queue_topic(partitions=2, replicas=3), share_group())
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=180)
    resources.start_client()
    resources.produce("jobs", 100)
    assert len(resources.share_consume("jobs", "workers", "--max-messages", "40")) == 40
    resources.apply(share_consumer(replicas=0))
    claims = {one["metadata"]["name"]: one["metadata"]["uid"] for one in resources.find_all("pvc")}
    services = {one["metadata"]["uid"] for one in resources.find_all("services")}
    resources.patch("queuecluster/main", {"spec": {"hibernated": True}})
    resources.wait_reason("queuecluster/main", "Hibernated", timeout_s=120)
    assert resources.find_all("pods", BROKER) == []
    for what in ("queuetopic/jobs", "sharegroup/workers", "shareconsumer/eaters"):
        resources.wait_reason(what, "ClusterHibernated")
    resources.patch("queuecluster/main", {"spec": {"hibernated": None}})
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=180)
    kept = {one["metadata"]["name"]: one["metadata"]["uid"] for one in resources.find_all("pvc")}
    assert kept == claims
    assert {one["metadata"]["uid"] for one in resources.find_all("services")} == services
    resources.wait_status("sharegroup/workers", lag=60)
    assert len(resources.share_consume("jobs", "workers")) == 60
