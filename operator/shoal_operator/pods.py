"""Readiness of broker pods, and why a pod has to restart. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock, conditions, roller
from shoal_operator.model import listeners, names, pod_layout, security

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal_operator.model.names import Manifest


def ordinal(pod: Mapping[str, Any]) -> int:
    """Return the pod's number in its StatefulSet."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


def broker_readiness(pod: Mapping[str, Any]) -> dict[int, bool]:
    """Return whether each of the pod's brokers is ready; a single broker is as ready as its pod."""
    named = [c["name"] for c in pod.get("spec", {}).get("containers", [])]
    every = {
        name: slot for name in named if (slot := pod_layout.slot_of_container(name)) is not None
    }
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


def restart_reason(pod: Mapping[str, Any], stateful: Mapping[str, Any] | None) -> str:
    """Return what differs between the pod and its template."""
    template = (stateful or {}).get("spec", {}).get("template", {})
    # All brokers of a pod run the same image.
    have, want = pod["spec"]["containers"][0], template["spec"]["containers"][0]
    notes = template.get("metadata", {}).get("annotations", {})
    mine = pod["metadata"].get("annotations", {})
    if have["image"] != want["image"]:
        return f"the image changes from {have['image']} to {want['image']}"
    if mine.get(names.CONFIG_HASH) != notes.get(names.CONFIG_HASH):
        return "a config that needs a restart has changed"
    if mine.get(names.RESTART) != notes.get(names.RESTART):
        return f"the annotation {names.RESTART} requests it"
    if mine.get(security.TOKEN_KEY_NOTE) != notes.get(security.TOKEN_KEY_NOTE):
        return "the key of delegation tokens has changed"
    return "the pod template has changed"


def is_observed(stateful: Mapping[str, Any] | None) -> bool:
    """Return whether the StatefulSet controller has observed the current template."""
    status = (stateful or {}).get("status", {})
    generation = (stateful or {}).get("metadata", {}).get("generation", 0)
    return bool(status.get("updateRevision")) and status.get("observedGeneration", 0) >= generation


def broker_pods(
    cluster: Manifest,
    found: Sequence[Manifest],
    stateful: Manifest | None,
    advertised: Mapping[int, str],
    services: Mapping[str, Manifest],
) -> list[roller.BrokerPod]:
    """Return the pods for the roller; an absent pod is not ready and needs no restart.

    `advertised` has the `advertised.listeners` of each broker that reported them.
    """
    revision = (stateful or {}).get("status", {}).get("updateRevision", "")
    by_name = {p["metadata"]["name"]: p for p in found}
    name = cluster["metadata"]["name"]
    out = []
    for broker in range(pod_layout.replicas(cluster)):
        pod = by_name.get(names.pod(name, broker))
        others = tuple(
            pod_layout.broker(broker, slot) for slot in range(1, pod_layout.per_pod(cluster))
        )
        if pod is None:
            out.append(roller.BrokerPod(broker, False, others=others))
            continue
        reason = ""
        if pod["metadata"]["labels"].get("controller-revision-hash", "") != revision:
            reason = restart_reason(pod, stateful)
        elif any(
            listeners.resolve_env(pod, listeners.advertised(cluster, b, services)) != advertised[b]
            for b in (broker, *others)
            if b in advertised
        ):
            reason = "its external address has changed"
        out.append(roller.BrokerPod(broker, is_ready(pod), reason, unready_seconds(pod), others))
    return out
