"""Brokers of a tiered cluster without volume claims: they lose all records with their pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.object_store import TIERED_STORAGE, start_store
from e2e.producing import producing
from e2e.resources import queue_cluster, queue_topic
from e2e.test_node_pools import QUORUM
from e2e.test_three_brokers import wait_in_sync
from e2e.test_tiered_storage import BROKER, CONFIG, records

if TYPE_CHECKING:
    from e2e.resources import Resources

pytestmark = pytest.mark.nightly


def ephemeral_cluster(**changes: Any) -> dict[str, Any]:
    """Return the cluster; a field that is None is left out."""
    fields = {
        "replicas": 3,
        "storage": {"type": "ephemeral", "size": "512Mi", "deletionPolicy": "Delete"},
        "tieredStorage": {**TIERED_STORAGE, "cacheSize": "32Mi", "copyInterval": "5s"},
        "nodePools": [QUORUM],
        "config": CONFIG,
        **changes,
    }
    return queue_cluster(**{name: value for name, value in fields.items() if value is not None})


def test_no_record_is_lost_with_a_pod_or_in_a_roll(resources: Resources) -> None:
    start_store(resources)
    resources.apply(ephemeral_cluster(), queue_topic(partitions=3, replicas=3, tiered=True))
    resources.wait("queuecluster/main", "queuetopic/jobs", timeout_s=180)
    claims = [one["metadata"]["name"] for one in resources.find_all("pvc")]
    assert claims == ["data-main-pool-quorum-900"]
    pods = {p["metadata"]["name"]: p["metadata"]["uid"] for p in resources.find_all("pods", BROKER)}
    brokers = sorted(name for name in pods if name.startswith("main-broker-"))
    assert len(brokers) == 3
    resources.start_client()
    with producing(resources) as counts:
        resources.kubectl("delete", "pod", "main-broker-1", "--wait=false")
        resources.wait_replaced("pod/main-broker-1", pods["main-broker-1"])
        resources.wait("queuecluster/main", timeout_s=180)
        wait_in_sync(resources)
        pods["main-broker-1"] = resources.uid("pod/main-broker-1")
        # A config that needs a restart rolls all brokers.
        resources.patch("queuecluster/main", {"spec": {"config": {"num.partitions": "3"}}})
        for broker in brokers:
            resources.wait_replaced(f"pod/{broker}", pods[broker])
        resources.wait("queuecluster/main", timeout_s=180)
        wait_in_sync(resources)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert sorted(value for _offset, value in records(resources)) == list(range(sent))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"tieredStorage": None}, "requires tieredStorage"),
        ({"nodePools": None}, "requires a node pool of controllers"),
        ({"replicas": 1}, "requires 3 replicas or more"),
        ({"restoreFrom": {}}, "restoreFrom requires storage.type persistent"),
        (
            {"storage": {"type": "ephemeral", "size": "512Mi", "storageClassName": "fast"}},
            "storageClassName has no effect",
        ),
    ],
)
def test_the_api_server_refuses_what_loses_records(
    resources: Resources, changes: dict[str, Any], refusal: str
) -> None:
    assert refusal in resources.refusal(ephemeral_cluster(**changes))


def test_the_type_of_a_cluster_stays(resources: Resources) -> None:
    resources.apply(ephemeral_cluster())
    persistent = ephemeral_cluster(storage={"type": "persistent", "size": "512Mi"})
    assert "storage.type cannot change" in resources.refusal(persistent)
