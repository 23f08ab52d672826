"""The status of a QueueCluster and the event that reports it ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.brokers import pods, tiered_health
from shoal_operator.cluster import decision, metadata_version
from shoal_operator.kube.conditions import Verdict, get_ready_reason, is_ready
from shoal_operator.kube.statuses import StatusWriter, build_transition_key
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.brokers.broker_states import ClusterState
    from shoal_operator.cluster.observation import Observation
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.node_pools import NodePool
    from shoal_operator.model.queue_cluster import QueueCluster, QueueClusterStatus
    from shoal_operator.model.resources import queue_cluster as resources


def build_fields(observation: Observation, default_image: str) -> Mapping[str, Any]:
    """Return the fields of the status besides its conditions. Pure."""
    cluster, state = observation.cluster, observation.state
    dedicated = [
        p for p in observation.pods if node_pools.is_controller(cluster, pods.get_ordinal(p))
    ]
    brokers = [p for p in observation.pods if p not in dedicated]
    ready = sum(ready for p in brokers for ready in pods.get_broker_readiness(p).values())
    (own, *other_pools) = [
        _build_pool_row(observation, pool) for pool in node_pools.list_pools(cluster)
    ]
    fields: QueueClusterStatus = {
        "replicas": own["replicas"],
        "readyReplicas": own["readyReplicas"],
        "brokersReady": f"{ready}/{len(pod_layout.list_brokers(cluster))}",
        "selector": names.format_selector(names.build_selector(cluster["metadata"]["name"])),
        "image": broker_pod.choose_image(cluster, default_image),
        "bootstrapServers": model.get_bootstrap_servers(cluster),
        "listeners": _build_listener_rows(observation),
        "brokers": [row for p in brokers for row in _build_node_rows(p, state)],
    }
    if dedicated:
        fields["controllers"] = [row for p in dedicated for row in _build_node_rows(p, state)]
    if other_pools or cluster.get("status", {}).get("nodePools"):
        fields["nodePools"] = other_pools
    if observation.tiered:
        fields["tieredStorage"] = observation.tiered.build_status()
    if observation.certificates:
        fields["certificates"] = list(observation.certificates)
    if observation.token_key:
        fields["delegationTokenKey"] = observation.token_key
    if state:
        fields |= {
            "clusterId": state.cluster_id,
            "controllerId": state.controller_id,
            "quorumVoters": sorted(state.quorum.voters),
            "appliedLoggers": sorted(broker_config.get_log_levels(cluster)),
            "appliedConfig": sorted(broker_config.select_dynamic(cluster)),
        }
        fields["metadataVersion"] = metadata_version.find_finalized_release(state.features)
        if state.versions:
            fields["version"] = ", ".join(sorted(set(state.versions.values())))
    # None removes the field.
    volume_size = storage.find_volume_size(cluster, observation.claims) or None
    return {**fields, "volumeSize": volume_size}


def _build_node_rows(
    pod: Manifest, state: ClusterState | None
) -> list[resources.QueueClusterStatusBrokers]:
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
        for node, ready in pods.get_broker_readiness(pod).items()
    ]


def _build_pool_row(
    observation: Observation, pool: NodePool
) -> resources.QueueClusterStatusNodePools:
    """Return the row of a pool."""
    pool_pods = pods.filter_by_stateful_set(observation.pods, pool.stateful_set)
    return {
        "name": pool.name,
        "roles": sorted(pool.roles),
        "firstNodeId": pool.first_id,
        "replicas": len(pool_pods),
        "readyReplicas": sum(map(pods.is_ready, pool_pods)),
    }


def _build_listener_rows(
    observation: Observation,
) -> list[resources.QueueClusterStatusListeners]:
    """Return the addresses of each listener."""
    nodes = pods.list_node_addresses(observation.pods)
    rows: list[resources.QueueClusterStatusListeners] = []
    for listener in observation.cluster["spec"]["listeners"]:
        kind = listeners.get_kind(listener)
        servers = listeners.get_bootstrap_servers(observation.cluster, listener)
        if kind != listeners.INTERNAL:
            servers = listeners.find_external_servers(
                observation.cluster, listener, observation.services, nodes
            )
        row: resources.QueueClusterStatusListeners = {
            "name": listener["name"],
            "type": kind,
            "bootstrapServers": servers,
        }
        if security.is_encrypted(listener) and not security.get_secret_name(listener):
            name = observation.cluster["metadata"]["name"]
            row["caCertificateSecret"] = security.format_ca_cert_secret(name, security.CLUSTER)
        rows.append(row)
    return rows


class ClusterStatus:
    """Writes the status of one QueueCluster."""

    def __init__(self, kube: KubeClient, store: Store, default_image: str) -> None:
        self._kube, self._statuses = kube, StatusWriter(kube, store)
        self._default_image = default_image

    async def write(self, observation: Observation, verdict: Verdict) -> None:
        """Write conditions and fields; record an event when the cluster becomes ready, or a roll in
        which it was ready ends."""
        cluster = observation.cluster
        rolled = get_ready_reason(cluster) in decision.ROLLING
        ready = verdict.ready and verdict.reason not in decision.ROLLING
        if ready and (rolled or not is_ready(cluster)):
            before = cluster.get("status", {}).get("conditions", [])
            once = build_transition_key(before)
            await self._kube.record_event(cluster, "Ready", verdict.message, once=once)
        further = (
            [tiered_health.build_condition(observation.tiered)]
            if tiered.is_enabled(cluster)
            else []
        )
        await self._statuses.write(
            cluster, verdict, build_fields(observation, self._default_image), further
        )

    async def merge(self, cluster: QueueCluster, changed: QueueClusterStatus) -> None:
        """Write these fields of the status."""
        await self._statuses.merge(cluster, changed)
