"""Readiness of broker pods, and why a pod has to restart. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock, conditions, roller
from shoal_operator.model import listeners, names, node_pools, pod_layout, security

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from shoal_operator.broker_states import ClusterState
    from shoal_operator.model.names import Manifest

#: A pod that has been ready for this time has registered its own rack.
RACK_SECONDS_MIN = 15.0


def ordinal(pod: Mapping[str, Any]) -> int:
    """Return the pod's number, which is the id of its first broker."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


def of_stateful_set(pods: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the pods of a StatefulSet by their names."""
    return [p for p in pods if p["metadata"]["name"].rpartition("-")[0] == name]


def _containers(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the slots of the brokers by their containers' names."""
    named = [c["name"] for c in pod.get("spec", {}).get("containers", [])]
    return {n: slot for n in named if (slot := pod_layout.slot_of_container(n)) is not None}


def broker_readiness(pod: Mapping[str, Any]) -> dict[int, bool]:
    """Return whether each of the pod's brokers is ready; a single broker is as ready as its pod."""
    every = _containers(pod)
    number = ordinal(pod)
    if len(every) < 2:
        return {number: is_ready(pod)}
    ends = bool(pod["metadata"].get("deletionTimestamp"))
    statuses = pod.get("status", {}).get("containerStatuses", [])
    ready = {s["name"] for s in statuses if s.get("ready")} if not ends else set()
    return {pod_layout.broker(number, slot): name in ready for name, slot in sorted(every.items())}


def node_addresses(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the addresses of the nodes that the pods run on."""
    return sorted({ip for p in pods if (ip := p.get("status", {}).get("hostIP"))})


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod is ready and not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return conditions.is_ready(pod)


def serves(pod: Mapping[str, Any], serving: Container[int]) -> bool:
    """Return whether all brokers of the pod serve clients; they may be out of sync.

    `serving` are the brokers whose health checks said so. The containers must have started: a check
    may have been answered by the process of an earlier pod. If all of them are ready and the pod
    is not, its node is lost.
    """
    if pod["metadata"].get("deletionTimestamp"):
        return False
    brokers, number = _containers(pod), ordinal(pod)
    statuses = pod.get("status", {}).get("containerStatuses", [])
    ours = [s for s in statuses if s["name"] in brokers]
    if len(ours) < len(brokers) or all(s.get("ready") for s in ours):
        return False
    return all(
        s.get("started") and pod_layout.broker(number, brokers[s["name"]]) in serving for s in ours
    )


def unready_seconds(pod: Mapping[str, Any]) -> float:
    """Return for how long the pod has not been ready, 0 if it is."""
    return _seconds_of_ready(pod, "False", "Unknown")


def ready_seconds(pod: Mapping[str, Any]) -> float:
    """Return for how long the pod has been ready, 0 if it is not."""
    return _seconds_of_ready(pod, "True")


def _seconds_of_ready(pod: Mapping[str, Any], *statuses: str) -> float:
    """Return for how long Ready has had one of these statuses; 0 if it has another one."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] in statuses:
            return clock.seconds_since(condition["lastTransitionTime"])
    return 0.0


def image(pod: Mapping[str, Any]) -> str:
    """Return the image that all brokers of a pod run."""
    return str(pod["spec"]["containers"][0]["image"])


def restart_reason(pod: Mapping[str, Any], stateful: Mapping[str, Any] | None) -> str:
    """Return what differs between the pod and its template."""
    template = (stateful or {}).get("spec", {}).get("template", {})
    have, want = image(pod), template["spec"]["containers"][0]["image"]
    notes = template.get("metadata", {}).get("annotations", {})
    mine = pod["metadata"].get("annotations", {})
    if have != want:
        return f"the image changes from {have} to {want}"
    if mine.get(names.CONFIG_HASH) != notes.get(names.CONFIG_HASH):
        return "a config that needs a restart has changed"
    if mine.get(names.RESTART) != notes.get(names.RESTART):
        return f"the annotation {names.RESTART} requests it"
    if mine.get(security.TOKEN_KEY_NOTE) != notes.get(security.TOKEN_KEY_NOTE):
        return "the key of delegation tokens has changed"
    return "the pod template has changed"


def _other_rack(pod: Mapping[str, Any], brokers: Iterable[int], state: ClusterState) -> str:
    """Return how the rack of the pod's node differs from that of its brokers."""
    want = pod["metadata"].get("annotations", {}).get(names.RACK, "")
    for broker in brokers:
        have = state.racks.get(broker, "")
        if want and broker in state.registered - state.fenced and have != want:
            return f"its rack changes from {have or 'none'} to {want}"
    return ""


def is_observed(stateful: Mapping[str, Any] | None) -> bool:
    """Return whether the StatefulSet controller has observed the current template."""
    status = (stateful or {}).get("status", {})
    generation = (stateful or {}).get("metadata", {}).get("generation", 0)
    return bool(status.get("updateRevision")) and status.get("observedGeneration", 0) >= generation


def broker_pods(
    cluster: Manifest,
    found: Sequence[Manifest],
    stateful_sets: Mapping[str, Manifest],
    state: ClusterState | None,
    services: Mapping[str, Manifest],
) -> list[roller.BrokerPod]:
    """Return the pods for the roller; an absent pod is not ready and needs no restart.

    For the roller, a pod is ready if its brokers serve clients: it checks the ISR itself.
    `stateful_sets` are by name.
    """
    advertised = state.advertised if state else {}
    serving = state.serving if state else frozenset()
    by_name = {p["metadata"]["name"]: p for p in found}
    every = [(pool, number) for pool in node_pools.of(cluster) for number in pool.pods]
    out = []
    for pool, broker in every:
        pod = by_name.get(f"{pool.stateful_set}-{broker}")
        others = tuple(
            pod_layout.broker(broker, slot) for slot in pod_layout.slots(cluster, broker)[1:]
        )
        dedicated = pool.is_controller
        if pod is None:
            out.append(roller.BrokerPod(broker, False, others=others, controller=dedicated))
            continue
        reason, stateful = "", stateful_sets.get(pool.stateful_set)
        revision = (stateful or {}).get("status", {}).get("updateRevision", "")
        if pod["metadata"]["labels"].get("controller-revision-hash", "") != revision:
            reason = restart_reason(pod, stateful)
        elif any(
            listeners.resolve_env(pod, listeners.advertised(cluster, b, services)) != advertised[b]
            for b in (broker, *others)
            if b in advertised
        ):
            reason = "its external address has changed"
        elif ready_seconds(pod) > RACK_SECONDS_MIN and state:
            reason = _other_rack(pod, (broker, *others), state)
        ready = is_ready(pod) or serves(pod, serving)
        out.append(roller.BrokerPod(broker, ready, reason, unready_seconds(pod), others, dedicated))
    return out
