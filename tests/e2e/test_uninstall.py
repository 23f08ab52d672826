"""Uninstalling keeps brokers and data; deleting a cluster keeps its volumes by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conditions import eventually
from e2e.resources import Resources, queue_cluster, queue_topic, share_group

if TYPE_CHECKING:
    from e2e.release import Release

CLAIM = "pvc/data-main-broker-0"


def test_uninstall_and_reinstall_over_kept_data(queue: Resources, release: Release) -> None:
    queue.apply(queue_topic(), share_group())
    queue.wait("queuetopic/jobs", "sharegroup/workers")
    queue.produce("jobs", 30)
    before = queue.uid("pod/main-broker-0")
    release.uninstall()
    eventually(lambda: release.pods() == [], what="no pod is left")
    # Without an operator the cluster keeps serving.
    queue.produce("jobs", 10, first=30)
    assert queue.uid("pod/main-broker-0") == before
    release.install()
    queue.apply(queue_topic("after"))
    queue.wait("queuetopic/after", "queuecluster/main")
    assert queue.uid("pod/main-broker-0") == before
    queue.wait_status("sharegroup/workers", lag=40)
    assert len(set(queue.share_consume("jobs", "workers", "-n", "40"))) == 40


def test_a_deleted_cluster_leaves_its_volume_to_the_next(queue: Resources) -> None:
    queue.apply(queue_topic("kept"))
    queue.wait("queuetopic/kept")
    queue.produce("kept", 25)
    claim = queue.uid(CLAIM)
    queue.kubectl("delete", "queuecluster/main")
    queue.kubectl("wait", "--for=delete", "pod/main-broker-0", "--timeout=60s")
    assert queue.uid(CLAIM) == claim
    queue.apply(queue_cluster())
    queue.wait("queuecluster/main", "queuetopic/kept")
    queue.apply(share_group("finders", topics=["kept"]))
    queue.wait_status("sharegroup/finders", lag=25)


def test_a_deletion_policy_takes_the_volume_along(resources: Resources) -> None:
    resources.apply(queue_cluster(storage={"size": "16Mi", "deletionPolicy": "Delete"}))
    resources.wait("queuecluster/main")
    assert resources.find(CLAIM)
    resources.kubectl("delete", "queuecluster/main")
    eventually(lambda: resources.find(CLAIM) is None, timeout_s=60)
