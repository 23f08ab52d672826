"""A condition names each failure, and clears once the cause is fixed."""

from __future__ import annotations

import yaml
from e2e.cluster import images
from e2e.resources import Resources, queue_cluster, queue_topic, share_group
from support.runs.conditions import eventually

STORAGE_CLASS = "arrives-late"


def test_a_killed_broker_keeps_its_data(queue: Resources) -> None:
    queue.apply(queue_topic(), share_group())
    queue.wait("queuetopic/jobs", "sharegroup/workers")
    queue.produce("jobs", 200)
    assert len(queue.share_consume("jobs", "workers", "-n", "50")) == 50
    before, claim = queue.uid("pod/main-broker-0"), queue.uid("pvc/data-main-broker-0")
    queue.kubectl("delete", "pod", "main-broker-0", "--grace-period=0", "--force")
    queue.wait_replaced("pod/main-broker-0", before)
    queue.kubectl("wait", "--for=condition=Ready", "pod/main-broker-0", "--timeout=60s")
    queue.wait("queuecluster/main", "sharegroup/workers")
    assert queue.uid("pvc/data-main-broker-0") == claim
    queue.wait_status("sharegroup/workers", lag=150)
    left = queue.share_consume("jobs", "workers", "-n", "150")
    assert len(set(left)) == 150
    queue.wait_status("sharegroup/workers", lag=0)


def test_an_unready_node_is_reported_and_recovers(queue: Resources) -> None:
    node = queue.cluster.kubectl("get", "nodes", "--output=name").stdout.strip()
    before = queue.uid("pod/main-broker-0")
    queue.cluster.stop_kubelet()
    try:
        queue.wait_reason("queuecluster/main", "BrokerNotReady", timeout_s=120)
        assert queue.status("queuecluster/main")["brokersReady"] == "0/1"
        queue.wait_event("QueueCluster", "main", "BrokerNotReady")
    finally:
        queue.cluster.start_kubelet()
    queue.cluster.kubectl("wait", node, "--for=condition=Ready=True", "--timeout=90s")
    queue.wait("queuecluster/main", timeout_s=90)
    assert queue.uid("pod/main-broker-0") == before


def test_a_missing_storage_class(resources: Resources) -> None:
    kubectl = resources.cluster.kubectl
    kubectl("delete", "storageclass", STORAGE_CLASS, "--ignore-not-found")
    storage = {"size": "16Mi", "storageClassName": STORAGE_CLASS}
    resources.apply(queue_cluster(storage=storage))

    def named() -> bool:
        condition = resources.condition("queuecluster/main")
        assert STORAGE_CLASS in condition["message"], condition
        return condition["reason"] == "VolumeNotBound"

    eventually(named, timeout_s=60)
    resources.wait_event("QueueCluster", "main", "VolumeNotBound", STORAGE_CLASS)
    standard = yaml.safe_load(kubectl("get", "storageclass", "standard", "--output=yaml").stdout)
    late = {k: v for k, v in standard.items() if k != "metadata"}
    late["metadata"] = {"name": STORAGE_CLASS}
    kubectl("apply", "--filename=-", stdin_text=yaml.safe_dump(late))
    try:
        resources.wait("queuecluster/main", timeout_s=120)
    finally:
        kubectl("delete", "storageclass", STORAGE_CLASS)


def test_a_full_node(resources: Resources) -> None:
    resources.apply(queue_cluster(resources={"requests": {"cpu": "1000"}}))

    def named() -> bool:
        condition = resources.condition("queuecluster/main")
        assert "Insufficient cpu" in condition["message"], condition
        return condition["reason"] == "Unschedulable"

    eventually(named, timeout_s=60)
    resources.wait_event("QueueCluster", "main", "Unschedulable", "Insufficient cpu")
    resources.patch("queuecluster/main", {"spec": {"resources": {"requests": {"cpu": "10m"}}}})
    resources.wait("queuecluster/main", timeout_s=90)


def test_an_image_that_is_not_there(resources: Resources) -> None:
    resources.apply(queue_cluster(image="localhost/shoal/broker:0.0.0", imagePullPolicy="Never"))

    def named() -> bool:
        condition = resources.condition("queuecluster/main")
        assert "ErrImageNeverPull" in condition["message"], condition
        return condition["reason"] == "ImageNotPulled"

    eventually(named, timeout_s=60)
    resources.wait_event("QueueCluster", "main", "ImageNotPulled", "ErrImageNeverPull")
    resources.patch("queuecluster/main", {"spec": {"image": ""}})
    resources.wait("queuecluster/main", timeout_s=90)


def signal_pod(queue: Resources, pod: str, signal: str) -> None:
    """Send a signal to all processes of a pod from the node: no process inside can stop the
    first."""
    uid = queue.uid(f"pod/{pod}").replace("-", "[-_]")
    processes = f"grep -l 'pod{uid}' /proc/[0-9]*/cgroup | cut -d/ -f3"
    queue.cluster.in_node("sh", "-c", f"kill -{signal} $({processes})")


def test_a_broker_that_does_not_answer(queue: Resources) -> None:
    queue.wait("queuecluster/main", timeout_s=90)
    before = queue.uid("pod/main-broker-0")
    signal_pod(queue, "main-broker-0", "STOP")
    try:
        queue.wait_reason("queuecluster/main", "BrokerNotReady", timeout_s=60)
        queue.wait_event("QueueCluster", "main", "BrokerNotReady")
    finally:
        signal_pod(queue, "main-broker-0", "CONT")
    queue.wait("queuecluster/main", timeout_s=90)
    queue.wait_event("QueueCluster", "main", "Ready")
    assert queue.uid("pod/main-broker-0") == before


def test_a_broker_of_another_version(resources: Resources) -> None:
    """The status reports it while it is unintended, and no data is lost on the way there and
    back."""
    image, archive = images.other_broker("0.0.9")
    resources.cluster.load(archive)
    resources.apply(queue_cluster(), queue_topic(), share_group())
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")
    resources.start_client()
    resources.produce("jobs", 20)
    resources.patch("queuecluster/main", {"spec": {"image": image}})
    resources.wait_status("queuecluster/main", version="0.0.9", timeout_s=90)
    resources.wait("queuecluster/main")
    degraded = resources.condition("queuecluster/main", "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "OtherVersion")
    resources.wait_event("QueueCluster", "main", "OtherVersion", "version 0.0.9")
    resources.wait_event("QueueCluster", "main", "BrokerRestart", f"to {image}")
    resources.wait_status("sharegroup/workers", lag=20)
    resources.patch("queuecluster/main", {"spec": {"version": "0.0.9"}})
    eventually(
        lambda: resources.condition("queuecluster/main", "Degraded")["status"] == "False",
        timeout_s=60,
    )
    ours = images.tag("broker").rpartition(":")[2]
    resources.patch("queuecluster/main", {"spec": {"image": "", "version": ""}})
    resources.wait_status("queuecluster/main", version=ours, timeout_s=90)
    resources.wait("queuecluster/main")
    assert len(set(resources.share_consume("jobs", "workers", "-n", "20"))) == 20


def test_resources_may_come_in_any_order(resources: Resources) -> None:
    resources.apply(share_group(), queue_topic())
    said = resources.wait_reason("sharegroup/workers", "ClusterNotFound")
    assert "'main'" in said
    resources.wait_reason("queuetopic/jobs", "ClusterNotFound")
    resources.apply(queue_cluster())
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")


def test_a_namespace_is_deleted_cleanly(resources: Resources) -> None:
    resources.apply(
        queue_cluster(),
        queue_topic(deletionPolicy="Delete"),
        share_group(deletionPolicy="Delete"),
    )
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")
    kubectl = resources.cluster.kubectl
    kubectl("delete", "namespace", resources.namespace, "--timeout=60s")
    assert kubectl("get", "namespace", resources.namespace, check=False).returncode != 0
    kubectl("create", "namespace", resources.namespace)
