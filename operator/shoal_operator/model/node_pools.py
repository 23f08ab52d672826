"""Node pools: the pods of a QueueCluster that share a StatefulSet, a size and roles.

Every cluster has a pool of its own, without a name: `spec.replicas` pods with the ids from 0 on.
`spec.nodePools` adds others. Pool `p` with `firstNodeId` 200 has the pods 200, 201 and so on, and
no other pool has pods of the same hundred. A pod's number is the id of its broker in slot 0
(`pod_layout`). So ids stand in the manifest, a change of one pool changes no id of another one, and
a volume always belongs to the same id.

The controllers are the first three brokers of the cluster's own pool, or all nodes of the one pool
that has this role. See ADR 130.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal_operator.model import field_defaults, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.model.queue_cluster import (
        ClusterSpec,
        NodePoolSettings,
        QueueCluster,
        QueueClusterStatus,
    )

#: The roles of a node, as in Kafka's `process.roles`.
BROKER, CONTROLLER = "broker", "controller"
#: The types of disks (`spec.storage.type`).
PERSISTENT, EPHEMERAL = "persistent", "ephemeral"
#: The number of ids that belong to a pool.
IDS = 100
#: Controllers of the cluster's own pool; more brokers do not change them.
VOTERS_MAX = 3
#: Kubernetes' limit on labels, less the hash of a revision, which a StatefulSet adds to its name.
NAME_LENGTH_MAX = 63 - len("-0123456789")


@dataclass(frozen=True, slots=True)
class NodePool:
    """Pods of one StatefulSet. `name` is empty for the cluster's own pool."""

    cluster: str
    name: str
    first_id: int
    replicas: int
    roles: frozenset[str]

    @property
    def pods(self) -> range:
        """The numbers of its pods."""
        return range(self.first_id, self.first_id + self.replicas)

    @property
    def is_controller(self) -> bool:
        """Whether its nodes are controllers only."""
        return BROKER not in self.roles

    @property
    def stateful_set(self) -> str:
        """The name of its StatefulSet."""
        if not self.name:
            return names.format_stateful_set(self.cluster)
        return names.format_pool_stateful_set(self.cluster, self.name)

    def has_pod(self, pod: int) -> bool:
        """Return whether a pod of this number is, or would be, one of the pool."""
        return self.first_id <= pod < self.first_id + IDS


def list_pools(cluster: QueueCluster) -> list[NodePool]:
    """Return the pools of a cluster: its own, then the others in the order of their ids."""
    spec, name = cluster["spec"], cluster["metadata"]["name"]
    other_pools = [
        NodePool(
            name,
            pool["name"],
            int(pool["firstNodeId"]),
            int(pool["replicas"]),
            frozenset(pool["roles"]),
        )
        for pool in (
            field_defaults.fill(row, field_defaults.NODE_POOL) for row in spec.get("nodePools", [])
        )
    ]
    roles = (
        {BROKER} if any(CONTROLLER in pool.roles for pool in other_pools) else {BROKER, CONTROLLER}
    )
    own = NodePool(name, "", 0, int(spec.get("replicas", 1)), frozenset(roles))
    return [own, *sorted(other_pools, key=lambda pool: pool.first_id)]


def find_controller_pool(cluster: QueueCluster) -> NodePool | None:
    """Return the pool of dedicated controllers, None if brokers are the controllers."""
    return next((pool for pool in list_pools(cluster) if pool.is_controller), None)


def list_voters(cluster: QueueCluster) -> list[int]:
    """Return the ids of the wanted voters."""
    if dedicated := find_controller_pool(cluster):
        return list(dedicated.pods)
    (own, *_) = list_pools(cluster)
    return list(range(VOTERS_MAX if own.replicas >= VOTERS_MAX else 1))


def list_broker_pods(cluster: QueueCluster) -> list[int]:
    """Return the numbers of the pods that run brokers."""
    return [pod for pool in list_pools(cluster) if not pool.is_controller for pod in pool.pods]


def find_pool(cluster: QueueCluster, pod: int) -> NodePool | None:
    """Return the pool that a pod's number belongs to, None without one."""
    return next((pool for pool in list_pools(cluster) if pool.has_pod(pod)), None)


def format_pod_name(cluster: QueueCluster, pod: int) -> str:
    """Return the name of a pod. A pod without a pool is named as one of the cluster's own."""
    pool = find_pool(cluster, pod)
    return (
        f"{pool.stateful_set}-{pod}" if pool else names.format_pod(cluster["metadata"]["name"], pod)
    )


def find_settings(cluster: QueueCluster, pool: NodePool) -> NodePoolSettings | None:
    """Return the fields of a pool in the spec, None for the cluster's own."""
    rows = cluster["spec"].get("nodePools", [])
    return next((row for row in rows if row["name"] == pool.name), None)


def make_view(cluster: QueueCluster, pool: NodePool) -> QueueCluster:
    """Return the cluster with the pool's resources, storage and template in place of its own.

    Replicas and pools stay. Pods of controllers have one slot, and keep their disks.
    """
    spec: ClusterSpec = {**cluster["spec"]}
    if own := find_settings(cluster, pool):
        if own.get("resources"):
            spec["resources"] = own["resources"]
        if own.get("storage"):
            spec["storage"] = {**spec["storage"], **own["storage"]}
        if own.get("template"):
            spec["template"] = {**spec.get("template", {}), **own["template"]}
    if pool.is_controller:
        spec["brokersPerPod"] = 1
        if spec.get("storage", {}).get("type") == EPHEMERAL:
            spec["storage"] = {**spec["storage"], "type": PERSISTENT}
    return {**cluster, "spec": spec}


def is_controller(cluster: QueueCluster, pod: int) -> bool:
    """Return whether a pod of this number is a dedicated controller."""
    pool = find_pool(cluster, pod)
    return pool is not None and pool.is_controller


def count_replicas(cluster: QueueCluster, pods: Iterable[int] = ()) -> dict[str, int]:
    """Return the number of pods of each pool, by its name, so that it includes these `pods`."""
    pod_numbers = list(pods)
    return {
        pool.name: max(
            [pool.replicas, *(p - pool.first_id + 1 for p in pod_numbers if pool.has_pod(p))]
        )
        for pool in list_pools(cluster)
    }


def with_replicas(cluster: QueueCluster, counts: Mapping[str, int]) -> QueueCluster:
    """Return the cluster with other numbers of pods, by the pool's name."""
    spec: ClusterSpec = {**cluster["spec"]}
    if "" in counts:
        spec["replicas"] = counts[""]
    if spec.get("nodePools"):
        spec["nodePools"] = [
            {**row, "replicas": counts[row["name"]]} if row["name"] in counts else row
            for row in spec["nodePools"]
        ]
    return {**cluster, "spec": spec}


def build_labels(pool: NodePool) -> dict[str, str]:
    """Return the label of a pool's pods and volume claims; those of the cluster's own have none."""
    return {names.NODE_POOL: pool.name} if pool.name else {}


def find_problem(cluster: QueueCluster) -> str:
    """Return what is wrong with the pools of a spec, and the remedy; empty if nothing is.

    The schema refuses most of it. The rest needs the status: ids that are in use keep their roles.
    """
    (own, *other_pools), status = list_pools(cluster), cluster.get("status", {})
    first_ids: dict[int, str] = {}
    for pool in other_pools:
        path = f"spec.nodePools[{pool.name}]"
        if pool.first_id in first_ids:
            return (
                f"{path}.firstNodeId is {pool.first_id}, as in pool {first_ids[pool.first_id]!r}. "
                f"Choose another multiple of {IDS}."
            )
        first_ids[pool.first_id] = pool.name
        if len(pool.roles) != 1:
            return (
                f"{path}.roles has both roles, which only the brokers of spec.replicas can have. "
                "Set it to [broker] or to [controller]."
            )
        if len(pool.stateful_set) > NAME_LENGTH_MAX:
            return (
                f"{path}.name is too long for the names of pods: together with the cluster's name "
                f"it may have {NAME_LENGTH_MAX - len(names.format_pool_stateful_set('', ''))} "
                "characters. Choose a shorter name."
            )
    dedicated = [pool for pool in other_pools if pool.is_controller]
    if len(dedicated) > 1:
        return (
            f"spec.nodePools has {len(dedicated)} pools with the role controller "
            f"({', '.join(pool.name for pool in dedicated)}). Use one, and spread its pods over "
            "zones."
        )
    return _find_change(other_pools, status) or _find_lost_voter(dedicated or [own], status)


def _find_change(pools: Iterable[NodePool], status: QueueClusterStatus) -> str:
    """Return which pool has other ids or roles than its pods."""
    known_rows: dict[str, Mapping[str, Any]] = {
        row["name"]: row for row in status.get("nodePools", [])
    }
    for pool in pools:
        row = known_rows.get(pool.name, {})
        for field, have in (("firstNodeId", pool.first_id), ("roles", sorted(pool.roles))):
            if row.get(field, have) != have:
                return (
                    f"spec.nodePools[{pool.name}].{field} cannot change from {row[field]} to "
                    f"{have}, since its volumes belong to its nodes. Add a pool of another name "
                    "instead."
                )
    return ""


def _find_lost_voter(pools: Iterable[NodePool], status: QueueClusterStatus) -> str:
    """Return which controllers of the cluster the spec no longer has; `pools` has its own."""
    for voter in status.get("quorumVoters", []):
        pool = next((candidate for candidate in pools if candidate.has_pod(voter)), None)
        if pool is None:
            return (
                f"Node {voter} is a controller of this cluster, and spec.nodePools gives the role "
                "to others. Undo that: the pool of the controllers can only be chosen when a "
                "cluster is created."
            )
        if pool.name and voter not in pool.pods:
            return (
                f"spec.nodePools[{pool.name}].replicas is {pool.replicas}, but node {voter} is a "
                "controller. The number of controllers can only grow. Raise it again."
            )
    return ""
