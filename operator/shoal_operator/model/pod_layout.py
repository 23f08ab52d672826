"""The layout of pods with several brokers (`spec.brokersPerPod`): ids, ports, names.

A pod has a slot for each of its brokers, with a container and a volume. The broker in slot `s` of
pod `p` has the id `p + 1000 s`; its ports are those of the spec plus `1000 s`. The brokers in slot
0 are the same as in a cluster with one broker per pod. A change of the number of pods changes no
id. `node_pools` has the numbers of the pods. The rack of all brokers of a pod is the pod, or with
`spec.rack` that of its node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import node_pools

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The step between the ids and ports of two slots; it exceeds the number of pods of any cluster.
STEP = 1000


def replicas(cluster: Mapping[str, Any]) -> int:
    """Return the number of pods of the cluster's own pool."""
    return int(cluster["spec"].get("replicas", 1))


def per_pod(cluster: Mapping[str, Any]) -> int:
    """Return the number of brokers per pod."""
    return int(cluster["spec"].get("brokersPerPod", 1))


def brokers(cluster: Mapping[str, Any]) -> list[int]:
    """Return the ids of all brokers, slot by slot."""
    pods = node_pools.broker_pods(cluster)
    return [broker(pod, s) for s in range(per_pod(cluster)) for pod in pods]


def nodes(cluster: Mapping[str, Any]) -> list[int]:
    """Return the ids of all brokers, then those of dedicated controllers."""
    dedicated = node_pools.controllers(cluster)
    return [*brokers(cluster), *(dedicated.pods if dedicated else ())]


def slots(cluster: Mapping[str, Any], pod: int) -> range:
    """Return the slots of a pod."""
    found = node_pools.of_pod(cluster, pod)
    return range(1 if found and found.is_controller else per_pod(cluster))


def broker(pod: int, slot: int = 0) -> int:
    """Return a broker id."""
    return pod + STEP * slot


def pod_of(broker_id: int) -> int:
    """Return the ordinal of a broker's pod."""
    return broker_id % STEP


def slot_of(broker_id: int) -> int:
    """Return a broker's slot in its pod."""
    return broker_id // STEP


def port(given: int, slot: int) -> int:
    """Return the port in a slot; `given` is the port of slot 0."""
    return given + STEP * slot


def container(slot: int) -> str:
    """Return the name of the container in a slot: `broker`, `broker1` and so on."""
    return f"broker{slot or ''}"


def slot_of_container(name: str) -> int | None:
    """Return the slot of a container, None for a container without a broker."""
    if name == "broker":
        return 0
    number = name.removeprefix("broker")
    return int(number) if number != name and number.isdecimal() else None


def port_name(name: str, slot: int) -> str:
    """Return the name of a port in a slot; port names are unique within a pod."""
    return f"{name}-{slot}" if slot else name


def volume(slot: int) -> str:
    """Return the name of the volume, and of the claim template, in a slot."""
    return f"data{slot or ''}"
