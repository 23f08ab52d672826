"""A QueueCluster with dedicated controllers and a pool of other brokers, on Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.producing import assert_taken_once, producing
from e2e.resources import queue_cluster, queue_topic, share_group
from e2e.test_three_brokers import replicas_of
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.resources import Resources

pytestmark = pytest.mark.nightly
LABELS = {"backup": "weekly"}
QUORUM = {
    "name": "quorum",
    "firstNodeId": 900,
    "replicas": 1,
    "roles": ["controller"],
    "storage": {"size": "64Mi"},
}


def cluster_with(large: int | None, **quorum: Any) -> dict[str, Any]:
    """Return a cluster of three own brokers, `large` others and a controller; None: without the
    pool."""
    pools = [{**QUORUM, **quorum}]
    if large is not None:
        template = {"persistentVolumeClaim": {"labels": LABELS}}
        pools.append(
            {
                "name": "large",
                "firstNodeId": 100,
                "replicas": large,
                "storage": {"size": "512Mi"},
                "template": template,
            }
        )
    return queue_cluster(replicas=3, nodePools=pools)


def test_a_pool_serves_and_leaves_under_load(resources: Resources) -> None:
    resources.apply(cluster_with(1))
    resources.wait("queuecluster/main", timeout_s=180)
    # All brokers are registered now.
    resources.apply(queue_topic(partitions=8, replicas=1), share_group())
    resources.wait("queuetopic/jobs", "sharegroup/workers")
    status = resources.status("queuecluster/main")
    assert {pool["name"]: pool["replicas"] for pool in status["nodePools"]} == {
        "quorum": 1,
        "large": 1,
    }
    assert status["quorumVoters"] == [900]
    resources.start_client()
    brokers = {broker for (broker,) in replicas_of(resources, "jobs")}
    assert brokers == {0, 1, 2, 100}
    (claim,) = resources.find_all("pvc", "backup=weekly,shoal.dev/node-pool=large")
    assert claim["spec"]["resources"]["requests"]["storage"] == "512Mi"
    with producing(resources) as counts:
        resources.apply(cluster_with(0))
        eventually(
            lambda: {b for (b,) in replicas_of(resources, "jobs")} == {0, 1, 2}, timeout_s=120
        )
        eventually(
            lambda: not resources.find_all("pods", "shoal.dev/node-pool=large"), timeout_s=120
        )
        resources.wait("queuecluster/main", timeout_s=120)
    assert (counts[1], counts[0] > 50) == (0, True), counts
    assert_taken_once(resources, counts[0])
    resources.apply(cluster_with(None))

    def removed() -> bool:
        names = [one["metadata"]["name"] for one in resources.find_all("statefulsets")]
        return sorted(names) == ["main-broker", "main-pool-quorum"]

    eventually(removed, timeout_s=60)
    assert len(resources.find_all("pvc", "shoal.dev/node-pool=large")) == 1


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        (cluster_with(1, roles=["broker"]), "can only be part of a new cluster"),
        (queue_cluster(replicas=3), "cannot be removed"),
        (cluster_with(1, firstNodeId=100), "firstNodeId"),
    ],
)
def test_the_api_server_refuses_what_loses_metadata(
    resources: Resources, spec: dict[str, Any], refusal: str
) -> None:
    resources.apply(cluster_with(1))
    assert refusal in resources.refusal(spec)
