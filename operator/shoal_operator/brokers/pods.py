"""Readiness of broker pods, and why a pod has to restart. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock
from shoal_operator.brokers import resizing, roller
from shoal_operator.kube import conditions
from shoal_operator.model import listeners, names, node_pools, pod_layout, security

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from shoal_operator.brokers.broker_states import ClusterState
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

#: A pod that has been ready for this time has registered its own rack.
RACK_SECONDS_MIN = 15.0


def get_ordinal(pod: Mapping[str, Any]) -> int:
    """Return the pod's number, which is the id of its first broker."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


def filter_by_stateful_set(pods: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the pods of a StatefulSet by their names."""
    return [p for p in pods if p["metadata"]["name"].rpartition("-")[0] == name]


def _map_containers(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the slots of the brokers by their containers' names."""
    container_names = [c["name"] for c in pod.get("spec", {}).get("containers", [])]
    return {
        n: slot for n in container_names if (slot := pod_layout.parse_container_slot(n)) is not None
    }


def get_broker_readiness(pod: Mapping[str, Any]) -> dict[int, bool]:
    """Return whether each of the pod's brokers is ready; a single broker is as ready as its pod."""
    containers = _map_containers(pod)
    number = get_ordinal(pod)
    if len(containers) < 2:
        return {number: is_ready(pod)}
    ends = bool(pod["metadata"].get("deletionTimestamp"))
    statuses = pod.get("status", {}).get("containerStatuses", [])
    ready = {s["name"] for s in statuses if s.get("ready")} if not ends else set()
    return {
        pod_layout.compute_broker_id(number, slot): name in ready
        for name, slot in sorted(containers.items())
    }


def list_node_addresses(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the addresses of the nodes that the pods run on."""
    return sorted({ip for p in pods if (ip := p.get("status", {}).get("hostIP"))})


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod is ready and not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return conditions.is_ready(pod)


def is_serving(pod: Mapping[str, Any], serving: Container[int]) -> bool:
    """Return whether all brokers of the pod serve clients; they may be out of sync.

    `serving` are the brokers whose health checks said so. The containers must have started: a check
    may have been answered by the process of an earlier pod. If all of them are ready and the pod
    is not, its node is lost.
    """
    if pod["metadata"].get("deletionTimestamp"):
        return False
    brokers, number = _map_containers(pod), get_ordinal(pod)
    statuses = pod.get("status", {}).get("containerStatuses", [])
    ours = [s for s in statuses if s["name"] in brokers]
    if len(ours) < len(brokers) or all(s.get("ready") for s in ours):
        return False
    return all(
        s.get("started") and pod_layout.compute_broker_id(number, brokers[s["name"]]) in serving
        for s in ours
    )


def get_unready_seconds(pod: Mapping[str, Any]) -> float:
    """Return for how long the pod has not been ready, 0 if it is."""
    return _get_status_seconds(pod, "False", "Unknown")


def get_ready_seconds(pod: Mapping[str, Any]) -> float:
    """Return for how long the pod has been ready, 0 if it is not."""
    return _get_status_seconds(pod, "True")


def _get_status_seconds(pod: Mapping[str, Any], *statuses: str) -> float:
    """Return for how long Ready has had one of these statuses; 0 if it has another one."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] in statuses:
            return clock.count_seconds_since(condition["lastTransitionTime"])
    return 0.0


def get_image(pod: Mapping[str, Any]) -> str:
    """Return the image that all brokers of a pod run."""
    return str(pod["spec"]["containers"][0]["image"])


def find_restart_reason(
    pod: Mapping[str, Any], stateful: Mapping[str, Any] | None, *, resizable: bool = False
) -> str:
    """Return what differs between the pod and its template; empty if it is CPU and memory only, and
    the pod is `resizable`."""
    if resizing.is_resizable(pod, stateful):
        if infeasible := resizing.find_infeasible(pod):
            return f"its node cannot give it the CPU and memory of the spec ({infeasible})"
        if resizable or not resizing.build_resize(pod, stateful):
            return ""
        return "its CPU or memory changes, which this Kubernetes does not do without a restart"
    template = (stateful or {}).get("spec", {}).get("template", {})
    have, want = get_image(pod), template["spec"]["containers"][0]["image"]
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


def _find_revision_reason(
    pod: Mapping[str, Any], stateful: Mapping[str, Any] | None, unresizable: Container[str]
) -> str:
    """Return why a pod of another revision than its StatefulSet's has to restart; empty if it does
    not."""
    revision = (stateful or {}).get("status", {}).get("updateRevision", "")
    if pod["metadata"]["labels"].get("controller-revision-hash", "") == revision:
        return ""
    resizable = pod["metadata"].get("uid") not in unresizable
    return find_restart_reason(pod, stateful, resizable=resizable)


def _describe_rack_change(
    pod: Mapping[str, Any], brokers: Iterable[int], state: ClusterState
) -> str:
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


def build_broker_pods(
    cluster: QueueCluster,
    manifests: Sequence[Manifest],
    stateful_sets: Mapping[str, Manifest],
    state: ClusterState | None,
    services: Mapping[str, Manifest],
    unresizable: Container[str] = frozenset(),
) -> list[roller.BrokerPod]:
    """Return the pods for the roller; an absent pod is not ready and needs no restart.

    `unresizable` are the uids of pods whose CPU and memory change only by a restart.

    For the roller, a pod is ready if its brokers serve clients: it checks the ISR itself.
    `stateful_sets` are by name.
    """
    advertised = state.advertised if state else {}
    serving = state.serving if state else frozenset()
    by_name = {p["metadata"]["name"]: p for p in manifests}
    pool_pods = [(pool, number) for pool in node_pools.list_pools(cluster) for number in pool.pods]
    out = []
    for pool, broker in pool_pods:
        pod = by_name.get(f"{pool.stateful_set}-{broker}")
        other_brokers = tuple(
            pod_layout.compute_broker_id(broker, slot)
            for slot in pod_layout.list_slots(cluster, broker)[1:]
        )
        dedicated = pool.is_controller
        if pod is None:
            out.append(
                roller.BrokerPod(broker, False, other_brokers=other_brokers, controller=dedicated)
            )
            continue
        reason = _find_revision_reason(pod, stateful_sets.get(pool.stateful_set), unresizable)
        if not reason and any(
            listeners.resolve_env(pod, listeners.format_advertised(cluster, b, services))
            != advertised[b]
            for b in (broker, *other_brokers)
            if b in advertised
        ):
            reason = "its external address has changed"
        elif not reason and get_ready_seconds(pod) > RACK_SECONDS_MIN and state:
            reason = _describe_rack_change(pod, (broker, *other_brokers), state)
        ready = is_ready(pod) or is_serving(pod, serving)
        out.append(
            roller.BrokerPod(
                broker, ready, reason, get_unready_seconds(pod), other_brokers, dedicated
            )
        )
    return out
