"""The status of a QueueCluster and the event that reports it ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import pods, tiered_health
from shoal_operator.cluster import decision, metadata_version
from shoal_operator.conditions import Verdict, is_ready, ready_reason
from shoal_operator.model import (
    broker_config,
    broker_pod,
    listeners,
    names,
    node_pools,
    pod_layout,
    security,
    storage,
    tiered,
)
from shoal_operator.model import cluster as model
from shoal_operator.statuses import Statuses, transition_key

if TYPE_CHECKING:
    from shoal_operator.broker_states import ClusterState
    from shoal_operator.cluster.observation import Observation
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.node_pools import NodePool
    from shoal_operator.store import Store


def fields(seen: Observation, default_image: str) -> dict[str, Any]:
    """Return the fields of the status besides its conditions. Pure."""
    cluster, state = seen.cluster, seen.state
    dedicated = [p for p in seen.pods if node_pools.is_controller(cluster, pods.ordinal(p))]
    brokers = [p for p in seen.pods if p not in dedicated]
    ready = sum(ready for p in brokers for ready in pods.broker_readiness(p).values())
    (own, *others) = [_pool(seen, pool) for pool in node_pools.of(cluster)]
    found: dict[str, Any] = {
        "replicas": own["replicas"],
        "readyReplicas": own["readyReplicas"],
        "brokersReady": f"{ready}/{len(pod_layout.brokers(cluster))}",
        "selector": names.selector_text(names.selector(cluster["metadata"]["name"])),
        "image": broker_pod.image(cluster, default_image),
        "bootstrapServers": model.bootstrap_servers(cluster),
        "listeners": _listeners(seen),
        "brokers": [row for p in brokers for row in _nodes(p, state)],
        "volumeSize": storage.volume_size(cluster, seen.claims) or None,
    }
    if dedicated:
        found["controllers"] = [row for p in dedicated for row in _nodes(p, state)]
    if others or cluster.get("status", {}).get("nodePools"):
        found["nodePools"] = others
    if seen.tiered:
        found["tieredStorage"] = seen.tiered.status()
    if seen.certificates:
        found["certificates"] = list(seen.certificates)
    if seen.token_key:
        found["delegationTokenKey"] = seen.token_key
    if state:
        found |= {
            "clusterId": state.cluster_id,
            "controllerId": state.controller_id,
            "quorumVoters": sorted(state.quorum.voters),
            "appliedLoggers": sorted(broker_config.log_levels(cluster)),
            "appliedConfig": sorted(broker_config.dynamic(cluster)),
        }
        found["metadataVersion"] = metadata_version.finalized(state.features)
        if state.versions:
            found["version"] = ", ".join(sorted(set(state.versions.values())))
    return found


def _nodes(pod: Manifest, state: ClusterState | None) -> list[Manifest]:
    """Return the rows of a pod's nodes."""
    return [
        {
            "id": node,
            "pod": pod["metadata"]["name"],
            "ready": ready,
            "node": pod["spec"].get("nodeName", ""),
            "version": state.versions.get(node, "") if state else "",
            "configHash": pod["metadata"]["annotations"].get(names.CONFIG_HASH, ""),
        }
        for node, ready in pods.broker_readiness(pod).items()
    ]


def _pool(seen: Observation, pool: NodePool) -> Manifest:
    """Return the row of a pool."""
    found = pods.of_stateful_set(seen.pods, pool.stateful_set)
    return {
        "name": pool.name,
        "roles": sorted(pool.roles),
        "firstNodeId": pool.first_id,
        "replicas": len(found),
        "readyReplicas": sum(map(pods.is_ready, found)),
    }


def _listeners(seen: Observation) -> list[Manifest]:
    """Return the addresses of each listener."""
    nodes = pods.node_addresses(seen.pods)
    found = []
    for listener in seen.cluster["spec"]["listeners"]:
        kind = listeners.kind(listener)
        servers = listeners.bootstrap_servers(seen.cluster, listener)
        if kind != listeners.INTERNAL:
            servers = listeners.external_bootstrap_servers(
                seen.cluster, listener, seen.services, nodes
            )
        row = {"name": listener["name"], "type": kind, "bootstrapServers": servers}
        if security.is_encrypted(listener) and not security.secret_name(listener):
            name = seen.cluster["metadata"]["name"]
            row["caCertificateSecret"] = security.ca_cert(name, security.CLUSTER)
        found.append(row)
    return found


class ClusterStatus:
    """Writes the status of one QueueCluster."""

    def __init__(self, kube: Kube, store: Store, default_image: str) -> None:
        self._kube, self._statuses = kube, Statuses(kube, store)
        self._default_image = default_image

    async def write(self, seen: Observation, verdict: Verdict) -> None:
        """Write conditions and fields; record an event when the cluster becomes ready, or a roll in
        which it was ready ends."""
        cluster = seen.cluster
        rolled = ready_reason(cluster) in decision.ROLLING
        ready = verdict.ready and verdict.reason not in decision.ROLLING
        if ready and (rolled or not is_ready(cluster)):
            before = cluster.get("status", {}).get("conditions", [])
            once = transition_key(before)
            await self._kube.event(cluster, "Ready", verdict.message, once=once)
        further = [tiered_health.condition(seen.tiered)] if tiered.is_enabled(cluster) else []
        await self._statuses.write(cluster, verdict, fields(seen, self._default_image), further)

    async def merge(self, cluster: Manifest, changed: dict[str, Any]) -> None:
        """Write these fields of the status."""
        await self._statuses.merge(cluster, changed)
