"""Uninstalling keeps brokers and data; deleting a cluster keeps its volumes by default."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from e2e.release import NAMESPACE
from e2e.resources import Resources, queue_cluster, queue_topic, share_consumer, share_group
from e2e.spark_consumers import spark
from support.runs.conditions import eventually

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


def test_a_release_of_another_name_finds_drivers_as_they_were(
    queue: Resources, release: Release
) -> None:
    """Their binding keeps its role, and the address of the operator is no part of their pods."""
    queue.apply(queue_topic(), share_group(), share_consumer(spark=spark(), replicas=0))
    binding, account = "rolebinding/eaters-driver", f"{queue.namespace}:eaters-driver"
    eventually(lambda: queue.find(binding), timeout_s=60)
    before = queue.uid(binding)
    asked = ("auth", "can-i", "create", "pods", f"--as=system:serviceaccount:{account}")

    def may_run_executors() -> bool:
        return queue.kubectl(*asked, check=False).stdout.strip() == "yes"

    def get_url() -> str:
        return base64.b64decode(queue.get("secret/eaters-scale")["data"]["url"]).decode()

    assert may_run_executors()
    assert get_url().startswith(f"http://shoal-operator.{NAMESPACE}.svc:")
    release.uninstall()
    try:
        assert not may_run_executors(), "the role is part of the chart"
        release.install("queues")
        assert may_run_executors()
        eventually(lambda: get_url().startswith(f"http://queues-operator.{NAMESPACE}."))
        assert queue.uid(binding) == before
    finally:
        release.uninstall("queues")
        release.install()


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
