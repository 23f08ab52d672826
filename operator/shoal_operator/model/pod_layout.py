"""Several brokers in a pod (`spec.brokersPerPod`): the pod_layout of a pod, and who has them.

A pod has a container and a volume for each of its brokers. That of slot `s` in pod `p` is broker
`p + 1000 s`, and its ports are those of the spec plus `1000 s`. So the first brokers are what the
only ones are in a cluster of one broker a pod, an id tells the pod, and more pods or fewer change
no id. All brokers of a pod name it as their rack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Between the ids, and the ports, of two brokers of a pod: more than a cluster has pods.
STEP = 1000


def replicas(cluster: Mapping[str, Any]) -> int:
    """How many pods there are."""
    return int(cluster["spec"].get("replicas", 1))


def per_pod(cluster: Mapping[str, Any]) -> int:
    return int(cluster["spec"].get("brokersPerPod", 1))


def brokers(cluster: Mapping[str, Any]) -> list[int]:
    """The ids of all brokers, the first of each pod before the second ones."""
    return [broker(pod, s) for s in range(per_pod(cluster)) for pod in range(replicas(cluster))]


def broker(pod: int, slot: int = 0) -> int:
    return pod + STEP * slot


def pod_of(broker_id: int) -> int:
    """The ordinal of the pod that a broker runs in."""
    return broker_id % STEP


def slot_of(broker_id: int) -> int:
    return broker_id // STEP


def port(given: int, slot: int) -> int:
    """The port of the broker on that slot, where the spec gives the first one's."""
    return given + STEP * slot


def container(slot: int) -> str:
    """The name of a broker's container: `broker`, `broker1` and so on."""
    return f"broker{slot or ''}"


def slot_of_container(name: str) -> int | None:
    """None for a container that is no broker."""
    if name == "broker":
        return 0
    number = name.removeprefix("broker")
    return int(number) if number != name and number.isdecimal() else None


def port_name(name: str, slot: int) -> str:
    """Names of ports are the pod's, so each broker needs its own."""
    return f"{name}-{slot}" if slot else name


def volume(slot: int) -> str:
    """The name of a broker's volume in its pod, and of the template of its claim."""
    return f"data{slot or ''}"
