"""Volumes of a tiered cluster are lost under load: one, and then all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from e2e.object_store import TIERED_STORAGE, start_store
from e2e.producing import producing, starting_to_produce
from e2e.resources import queue_cluster, queue_topic
from e2e.test_three_brokers import wait_in_sync
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.resources import Resources

pytestmark = pytest.mark.nightly
BROKER = "app.kubernetes.io/component=broker"
TAKEN = 40
#: Copies and backups every few seconds, and few partitions of internal topics.
CONFIG = {
    "remote.log.manager.task.interval.ms": "1000",
    "shoal.remote.backup.interval.ms": "2000",
    "shoal.remote.lease.interval.ms": "1000",
    **dict.fromkeys(
        (
            "offsets.topic.num.partitions",
            "share.coordinator.state.topic.num.partitions",
            "transaction.state.log.num.partitions",
            "rlmm.config.remote.log.metadata.topic.num.partitions",
        ),
        "3",
    ),
}


def tiered_cluster(**spec: Any) -> dict[str, Any]:
    return queue_cluster(
        replicas=3,
        storage={"size": "256Mi", "deletionPolicy": "Delete"},
        tieredStorage={**TIERED_STORAGE, "copyInterval": "5s"},
        config=CONFIG,
        **spec,
    )


def copied_to(resources: Resources) -> int:
    (row,) = json.loads(resources.shoal("storage", "status", "jobs", "--format=json"))
    return row["copied_to"]


def lose_volume(resources: Resources, broker: int) -> None:
    """Delete the volume of a broker, and its pod, which uses it."""
    claim, pod = f"pvc/data-main-broker-{broker}", f"pod/main-broker-{broker}"
    before = resources.uid(claim)
    resources.kubectl("delete", claim, "--wait=false")
    resources.kubectl("delete", pod, "--wait=false")
    resources.wait_replaced(claim, before)


def lose_cluster(resources: Resources) -> None:
    """Delete the cluster and all of its volumes."""
    resources.kubectl("delete", "queuecluster/main")

    def gone() -> bool:
        left = [resources.find_all(kind, BROKER) for kind in ("pods", "pvc")]
        return not any(left)

    eventually(gone, timeout_s=120, what="no pods and volume claims of brokers")


def records(resources: Resources) -> list[tuple[int, int]]:
    """Return offset and value of each record."""
    words = ("--from-beginning", "--exit-at-end", "--format={offset} {value}")
    lines = resources.shoal("consume", "jobs", *words).splitlines()
    return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]


def test_a_cluster_loses_one_volume_and_then_all(resources: Resources) -> None:
    start_store(resources)
    resources.apply(tiered_cluster(), queue_topic(partitions=1, replicas=3, tiered=True))
    resources.wait("queuecluster/main", "queuetopic/jobs", timeout_s=180)
    resources.start_client()
    with producing(resources) as counts:
        lose_volume(resources, 1)
        resources.wait("queuecluster/main", timeout_s=180)
        wait_in_sync(resources)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    taken = resources.share_consume("jobs", "workers", "--from-beginning", "-n", str(TAKEN))
    assert taken == [str(n) for n in range(TAKEN)]
    eventually(lambda: copied_to(resources) >= sent, timeout_s=60, what="all records in the store")
    health = resources.condition("queuecluster/main", "TieredStorageHealthy")
    assert health["status"] == "True", health

    with starting_to_produce(resources) as process:
        lose_cluster(resources)
        process.kill()
    resources.kubectl("delete", "pod", "client", "--now")
    resources.apply(tiered_cluster(restoreFrom={}))
    resources.wait("queuecluster/main", timeout_s=300)
    resources.wait("queuetopic/jobs", timeout_s=60)
    found = resources.status("queuecluster/main")["restore"]
    assert (found["phase"], found["topics"], found["missingSegments"]) == ("Restored", 1, 0)
    (row,) = found["endOffsets"]
    (end,) = row["partitions"]
    assert (row["topic"], end >= sent) == ("jobs", True), (found, sent)
    resources.start_client()
    have = records(resources)[:end]
    assert have == [(n, n if n < sent else n - sent) for n in range(end)]
    # The positions came back, too, and the restored cluster serves.
    (following, *_) = resources.share_consume("jobs", "workers", "-n", "1")
    assert int(following) == TAKEN
    with producing(resources) as counts:
        wait_in_sync(resources)
    assert (counts[1], counts[0] > 50) == (0, True), counts
    # The field may go, and cannot come back.
    resources.apply(tiered_cluster())
    assert "only when a QueueCluster is created" in resources.refusal(
        tiered_cluster(restoreFrom={})
    )


def test_a_cluster_with_node_pools_loses_all_volumes(resources: Resources) -> None:
    """Brokers of all pools come back, and the dedicated controller with the metadata."""
    pools = [
        {"name": "large", "firstNodeId": 100, "replicas": 1, "storage": {"size": "512Mi"}},
        {"name": "quorum", "firstNodeId": 900, "replicas": 1, "roles": ["controller"]},
    ]
    start_store(resources)
    resources.apply(tiered_cluster(nodePools=pools))
    resources.wait("queuecluster/main", timeout_s=180)
    resources.apply(queue_topic(partitions=1, replicas=3, tiered=True))
    resources.wait("queuetopic/jobs")
    resources.start_client()
    with producing(resources) as counts:
        wait_in_sync(resources)
    sent, failed = counts
    assert failed == 0
    eventually(lambda: copied_to(resources) >= sent, timeout_s=60, what="all records in the store")
    lose_cluster(resources)
    resources.apply(tiered_cluster(nodePools=pools, restoreFrom={}))
    resources.wait("queuecluster/main", timeout_s=300)
    resources.wait("queuetopic/jobs", timeout_s=60)
    status = resources.status("queuecluster/main")
    found = status["restore"]
    assert (found["phase"], found["brokersRestored"]) == ("Restored", "5/5"), found
    assert status["quorumVoters"] == [900]
    assert records(resources)[:sent] == [(n, n) for n in range(sent)]
