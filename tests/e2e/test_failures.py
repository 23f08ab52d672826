"""What goes wrong is named in a condition, and heals by itself when the cause is gone."""

from __future__ import annotations

import yaml
from conditions import eventually
from e2e.resources import Resources, queue_cluster, queue_topic, share_group

STORAGE_CLASS = "arrives-late"


def test_a_killed_broker_keeps_its_data(queue: Resources) -> None:
    queue.apply(queue_topic(), share_group())
    queue.wait("queuetopic/jobs", "sharegroup/workers")
    queue.produce("jobs", 200)
    assert len(queue.share_consume("jobs", "workers", "-n", "50")) == 50
    before, claim = queue.uid("pod/main-broker-0"), queue.uid("pvc/data-main-broker-0")
    queue.kubectl("delete", "pod", "main-broker-0", "--grace-period=0", "--force")

    def replaced() -> bool:
        found = queue.find("pod/main-broker-0")
        return found is not None and found["metadata"]["uid"] != before

    eventually(replaced, timeout_s=60)
    queue.wait("queuecluster/main", "sharegroup/workers")
    assert queue.uid("pvc/data-main-broker-0") == claim
    queue.wait_status("sharegroup/workers", lag=150)
    left = queue.share_consume("jobs", "workers", "-n", "150")
    assert len(set(left)) == 150
    queue.wait_status("sharegroup/workers", lag=0)


def test_an_unready_node_is_told_and_comes_back(queue: Resources) -> None:
    node = queue.cluster.kubectl("get", "nodes", "--output=name").stdout.strip()
    before = queue.uid("pod/main-broker-0")
    queue.cluster.stop_kubelet()
    try:
        queue.wait_reason("queuecluster/main", "BrokerNotReady", timeout_s=120)
        assert queue.status("queuecluster/main")["brokersReady"] == "0/1"
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
        return True

    eventually(named, timeout_s=60)
    standard = yaml.safe_load(kubectl("get", "storageclass", "standard", "--output=yaml").stdout)
    late = {k: v for k, v in standard.items() if k != "metadata"}
    late["metadata"] = {"name": STORAGE_CLASS}
    kubectl("apply", "--filename=-", input=yaml.safe_dump(late))
    try:
        resources.wait("queuecluster/main", timeout_s=120)
    finally:
        kubectl("delete", "storageclass", STORAGE_CLASS)


def test_a_full_node(resources: Resources) -> None:
    resources.apply(queue_cluster(resources={"requests": {"cpu": "1000"}}))

    def named() -> bool:
        condition = resources.condition("queuecluster/main")
        assert "Insufficient cpu" in condition["message"], condition
        return True

    eventually(named, timeout_s=60)
    resources.patch("queuecluster/main", {"spec": {"resources": {"requests": {"cpu": "10m"}}}})
    resources.wait("queuecluster/main", timeout_s=90)


def test_an_image_that_is_not_there(resources: Resources) -> None:
    resources.apply(queue_cluster(image="localhost/shoal/broker:0.0.0", imagePullPolicy="Never"))

    def named() -> bool:
        condition = resources.condition("queuecluster/main")
        assert "ErrImageNeverPull" in condition["message"], condition
        return True

    eventually(named, timeout_s=60)
    resources.patch("queuecluster/main", {"spec": {"image": ""}})
    resources.wait("queuecluster/main", timeout_s=90)


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
