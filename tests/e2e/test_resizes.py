"""Brokers get other CPU and memory while they run, on a real API server and its kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.resources import Resources

POD = "pod/main-broker-0"


def ask(queue: Resources, cpu: str, memory: str = "300Mi") -> None:
    requests = {"cpu": cpu, "memory": memory}
    queue.patch("queuecluster/main", {"spec": {"resources": {"requests": requests}}})


def container(queue: Resources) -> dict[str, Any]:
    """Return what the kubelet says about the broker's container."""
    (status,) = queue.get(POD)["status"]["containerStatuses"]
    return status


def test_more_cpu_and_memory_without_a_restart(queue: Resources) -> None:
    ask(queue, "100m")
    queue.wait("queuecluster/main", timeout_s=120)
    before, started = queue.uid(POD), container(queue)["containerID"]
    ask(queue, "150m", "320Mi")

    def is_resized() -> bool:
        has = container(queue)["resources"]["requests"]
        assert (has["cpu"], has["memory"]) == ("150m", "320Mi")
        return True

    eventually(is_resized, timeout_s=60)
    queue.wait_event("QueueCluster", "main", "BrokerResized", "main-broker-0")
    queue.wait("queuecluster/main")
    assert (queue.uid(POD), container(queue)["containerID"]) == (before, started)
    assert container(queue)["restartCount"] == 0


def test_more_than_the_node_has_moves_the_broker(queue: Resources) -> None:
    """The kubelet calls the resize infeasible, so the pod is made again, for another node."""
    ask(queue, "100m")
    queue.wait("queuecluster/main", timeout_s=120)
    before = queue.uid(POD)
    ask(queue, "64")
    queue.wait_event("QueueCluster", "main", "BrokerRestart", "its node cannot give it")
    queue.wait_replaced(POD, before)
    queue.wait_reason("queuecluster/main", "Unschedulable", timeout_s=60)
    ask(queue, "100m")
    queue.wait("queuecluster/main", timeout_s=120)
