"""The layout of pods with several brokers (`spec.brokersPerPod`): ids, ports, names.

A pod has a slot for each of its brokers, with a container and a volume. The broker in slot `s` of
pod `p` has the id `p + 1000 s`; its ports are those of the spec plus `1000 s`. The brokers in slot
0 are the same as in a cluster with one broker per pod. A change of the number of pods changes no
id. `node_pools` has the numbers of the pods. The rack of all brokers of a pod is the pod, or with
`spec.rack` that of its node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.model import node_pools

if TYPE_CHECKING:
    from shoal_operator.model.queue_cluster import QueueCluster

#: The step between the ids and ports of two slots; it exceeds the number of pods of any cluster.
STEP = 1000


def get_replicas(cluster: QueueCluster) -> int:
    """Return the number of pods of the cluster's own pool."""
    return int(cluster["spec"].get("replicas", 1))


def get_brokers_per_pod(cluster: QueueCluster) -> int:
    """Return the number of brokers per pod."""
    return int(cluster["spec"].get("brokersPerPod", 1))


def list_brokers(cluster: QueueCluster) -> list[int]:
    """Return the ids of all brokers, slot by slot."""
    pods = node_pools.list_broker_pods(cluster)
    return [compute_broker_id(pod, s) for s in range(get_brokers_per_pod(cluster)) for pod in pods]


def list_nodes(cluster: QueueCluster) -> list[int]:
    """Return the ids of all brokers, then those of dedicated controllers."""
    dedicated = node_pools.find_controller_pool(cluster)
    return [*list_brokers(cluster), *(dedicated.pods if dedicated else ())]


def list_slots(cluster: QueueCluster, pod: int) -> range:
    """Return the slots of a pod."""
    pool = node_pools.find_pool(cluster, pod)
    return range(1 if pool and pool.is_controller else get_brokers_per_pod(cluster))


def compute_broker_id(pod: int, slot: int = 0) -> int:
    """Return a broker id."""
    return pod + STEP * slot


def get_pod(broker_id: int) -> int:
    """Return the ordinal of a broker's pod."""
    return broker_id % STEP


def get_slot(broker_id: int) -> int:
    """Return a broker's slot in its pod."""
    return broker_id // STEP


def compute_port(base_port: int, slot: int) -> int:
    """Return the port in a slot; `base_port` is the port of slot 0."""
    return base_port + STEP * slot


def format_container(slot: int) -> str:
    """Return the name of the container in a slot: `broker`, `broker1` and so on."""
    return f"broker{slot or ''}"


def parse_container_slot(name: str) -> int | None:
    """Return the slot of a container, None for a container without a broker."""
    if name == "broker":
        return 0
    number = name.removeprefix("broker")
    return int(number) if number != name and number.isdecimal() else None


def format_port_name(name: str, slot: int) -> str:
    """Return the name of a port in a slot; port names are unique within a pod."""
    return f"{name}-{slot}" if slot else name


def format_volume(slot: int) -> str:
    """Return the name of the volume, and of the claim template, in a slot."""
    return f"data{slot or ''}"
