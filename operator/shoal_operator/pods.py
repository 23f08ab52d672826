"""What a pod of brokers says of itself, and why it has to start anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock, conditions, roller
from shoal_operator.model import listeners, names, pod_layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest


def ordinal(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def broker_readiness(pod: Mapping[str, Any]) -> dict[int, bool]:
    """The pod's brokers, and whether each is ready; with one broker that is what the pod is."""
    named = [c["name"] for c in pod.get("spec", {}).get("containers", [])]
    every = {
        name: slot for name in named if (slot := pod_layout.slot_of_container(name)) is not None
    }
    number = ordinal(pod)
    if len(every) < 2:
        return {number: is_ready(pod)}
    ends = bool(pod["metadata"].get("deletionTimestamp"))
    said = pod.get("status", {}).get("containerStatuses", [])
    ready = {s["name"] for s in said if s.get("ready")} if not ends else set()
    return {pod_layout.broker(number, slot): name in ready for name, slot in sorted(every.items())}


def is_ready(pod: Mapping[str, Any]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return conditions.is_ready(pod)


def unready_seconds(pod: Mapping[str, Any]) -> float:
    return _seconds_of_ready(pod, "False", "Unknown")


def ready_seconds(pod: Mapping[str, Any]) -> float:
    return _seconds_of_ready(pod, "True")


def _seconds_of_ready(pod: Mapping[str, Any], *statuses: str) -> float:
    """How long the condition Ready has had one of these statuses; 0 where it has another one."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] in statuses:
            return clock.seconds_since(condition["lastTransitionTime"])
    return 0.0


def restart_reason(pod: Mapping[str, Any], stateful: Mapping[str, Any] | None) -> str:
    """The reason of a restart: what differs between the pod and its template."""
    template = (stateful or {}).get("spec", {}).get("template", {})
    # The brokers of a pod run the same image.
    have, want = pod["spec"]["containers"][0], template["spec"]["containers"][0]
    notes = template.get("metadata", {}).get("annotations", {})
    mine = pod["metadata"].get("annotations", {})
    if have["image"] != want["image"]:
        return f"image {have['image']} becomes {want['image']}"
    if mine.get(names.CONFIG_HASH) != notes.get(names.CONFIG_HASH):
        return "a setting changed that brokers read at their start"
    if mine.get(names.RESTART) != notes.get(names.RESTART):
        return f"the annotation {names.RESTART} asks for it"
    return "the pod's template changed"


def is_observed(stateful: Mapping[str, Any] | None) -> bool:
    """Whether Kubernetes has looked at this StatefulSet as it stands, so that its revision is
    that of its template."""
    status = (stateful or {}).get("status", {})
    generation = (stateful or {}).get("metadata", {}).get("generation", 0)
    return bool(status.get("updateRevision")) and status.get("observedGeneration", 0) >= generation


def broker_pods(
    cluster: Manifest,
    found: Sequence[Manifest],
    stateful: Manifest | None,
    told: Mapping[int, str],
    services: Mapping[str, Manifest],
) -> list[roller.BrokerPod]:
    """The pods as the roller sees them; an absent one is not ready and runs nothing old.

    `told` is what each broker tells clients outside to find it at, as far as it is known.
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
            listeners.resolve_env(pod, listeners.advertised(cluster, b, services)) != told[b]
            for b in (broker, *others)
            if b in told
        ):
            reason = "the address that clients outside find it at changed"
        out.append(roller.BrokerPod(broker, is_ready(pod), reason, unready_seconds(pod), others))
    return out
