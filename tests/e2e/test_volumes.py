"""Broker volumes that are full, and that grow.

Neither kind nor the local cluster has a storage driver that lets volumes grow. So the tests act as
the driver: volumes are file systems in the node's memory, and are enlarged by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from e2e.resources import Resources, queue_cluster, queue_topic
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


def volume_name(resources: Resources) -> str:
    """Return the name of the volume and its storage class, which are in no namespace."""
    return f"small-{resources.namespace}"


def small_volume(resources: Resources, name: str, size: str) -> None:
    """Create a volume of exactly this size: a file system in the node's memory."""
    path = f"/mnt/{name}"
    mount = f"mkdir -p {path} && mount -t tmpfs -o size={size},mode=0777 tmpfs {path}"
    resources.cluster.in_node("sh", "-c", mount)
    meta = {"name": name}
    node = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": meta,
        "spec": {
            "capacity": {"storage": "32Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        },
    }
    resources.cluster.kubectl("apply", "--filename=-", stdin_text=yaml.safe_dump(volume))


@pytest.fixture
def small(resources: Resources) -> Iterator[Resources]:
    """A cluster on a small volume that fills soon."""
    kubectl, name = resources.cluster.kubectl, volume_name(resources)
    # The volume of an earlier run is deleted once its namespace is gone.
    kubectl("delete", f"pv/{name}", "--ignore-not-found", "--timeout=60s")
    small_volume(resources, name, "24m")
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "allowVolumeExpansion": True,
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    kubectl("apply", "--filename=-", stdin_text=yaml.safe_dump(storage_class))
    try:
        storage = {"size": "32Mi", "storageClassName": name}
        resources.apply(queue_cluster(storage=storage), queue_topic())
        resources.start_client()
        resources.wait("queuecluster/main", "queuetopic/jobs", timeout_s=90)
        yield resources
    finally:
        resources.kubectl("delete", "queuecluster/main", "--ignore-not-found")
        resources.kubectl("delete", "pod", "client", "--now", "--ignore-not-found")
        kubectl("delete", f"pv/{name}", f"storageclass/{name}", "--wait=false")
        resources.cluster.in_node("umount", "--lazy", f"/mnt/{name}")


def _file(resources: Resources) -> str:
    return f"/mnt/{volume_name(resources)}/fill"


def fill(resources: Resources) -> None:
    """Fill the volume until no record is accepted and the status says so."""
    resources.cluster.in_node("sh", "-c", f"dd if=/dev/zero of={_file(resources)} bs=1M || true")
    said = resources.wait_reason("queuecluster/main", "DiskFull", timeout_s=90)
    assert "raise spec.storage.size" in said
    resources.wait_event("QueueCluster", "main", "DiskFull", "broker 0")


def test_a_full_disk(small: Resources) -> None:
    fill(small)
    large = f"{'x' * 900_000}\n"
    soon = ("-X", "delivery.timeout.ms=10000", "-X", "request.timeout.ms=5000")
    refused = small.shoal_result("produce", "jobs", "--quiet", *soon, stdin_text=large, check=False)
    assert refused.returncode != 0
    small.cluster.in_node("rm", _file(small))
    small.wait("queuecluster/main", timeout_s=120)
    small.produce("jobs", 10)


def grow(resources: Resources, size: str) -> None:
    """Enlarge the claim of broker 0 and its volume, as a storage driver does."""
    capacity, name = {"storage": f"{size}i"}, volume_name(resources)
    resources.cluster.in_node("mount", "-o", f"remount,size={size}", f"/mnt/{name}")
    volume = yaml.safe_dump({"spec": {"capacity": capacity}})
    resources.cluster.kubectl("patch", "pv", name, f"--patch={volume}")
    claim = yaml.safe_dump({"status": {"capacity": capacity}})
    of_status = ("--subresource=status", "--type=merge")
    resources.kubectl("patch", "pvc/data-main-broker-0", *of_status, f"--patch={claim}")


def test_a_volume_grows_and_never_shrinks(small: Resources) -> None:
    """The remedy in the status of a full disk helps, without a restart of the broker."""
    small.produce("jobs", 10)
    pod, claim = small.uid("pod/main-broker-0"), small.uid("pvc/data-main-broker-0")
    fill(small)
    small.patch("queuecluster/main", {"spec": {"storage": {"size": "64Mi"}}})
    small.wait_event("QueueCluster", "main", "VolumeGrows", "data-main-broker-0 grows to 64Mi")
    assert _request(small) == "64Mi"
    grow(small, "64M")
    small.wait("queuecluster/main", timeout_s=120)
    small.produce("jobs", 10, first=10)
    small.patch("queuecluster/main", {"spec": {"storage": {"size": "96Mi"}}})

    def grows() -> bool:
        condition = small.condition("queuecluster/main", "Progressing")
        assert "data-main-broker-0 has 64Mi of 96Mi so far" in condition["message"], condition
        return condition["status"] == "True"

    eventually(grows, timeout_s=30)
    grow(small, "96M")
    eventually(
        lambda: small.condition("queuecluster/main", "Progressing")["status"] == "False",
        timeout_s=60,
    )
    shrunk = queue_cluster(storage={"size": "64Mi", "storageClassName": volume_name(small)})
    assert "never shrink" in small.refusal(shrunk)
    assert _request(small) == "96Mi"
    consumed = small.shoal("consume", "jobs", "--from-beginning", "--format={value}", "-n", "20")
    assert sorted(map(int, consumed.split())) == list(range(20))
    assert (small.uid("pod/main-broker-0"), small.uid("pvc/data-main-broker-0")) == (pod, claim)


def _request(resources: Resources) -> str:
    claim = resources.get("pvc/data-main-broker-0")
    return claim["spec"]["resources"]["requests"]["storage"]
