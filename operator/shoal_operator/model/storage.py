"""The disks of brokers: volume claims, or emptyDirs that are lost with their pods
(`spec.storage.type`).

Brokers with ephemeral disks are in a cluster whose topics are tiered, whose controllers are a node
pool with volumes, and whose records have three replicas. The roller restarts such a broker only if
others have all that it has. See ADR 135.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.model import names, node_pools, pod_layout, tiered
from shoal_operator.model.quantities import parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.kubernetes import ClaimMetadata, ClaimSpec, ClaimTemplate, Volume
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster, Resources

EPHEMERAL = node_pools.EPHEMERAL
#: The resources of a broker for which the spec has none. Without requests, a broker gets hardly any
#: CPU beside pods that have them, and is evicted before them.
RESOURCES: Resources = {"requests": {"cpu": "100m", "memory": "256Mi"}}
#: The resources that a running container can get more or less of.
RESIZED = ("cpu", "memory")
#: Brokers among which a cluster with ephemeral disks places three replicas.
BROKERS_MIN = 3
#: The part of an emptyDir that logs and cache leave free: for indexes, for what followers and
#: coordinators append, and for what a producer sends until the broker measures its logs again. The
#: kubelet evicts a pod whose emptyDir exceeds its limit, and with it all of its records.
_SPARE_PART = 10
#: Configs that weaken replication, with their smallest value.
_LEAST = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "rlmm.config.remote.log.metadata.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.replication.factor": 3,
}
_UNCLEAN = "unclean.leader.election.enable"


def is_ephemeral(cluster: QueueCluster) -> bool:
    """Return whether the brokers of a cluster, or the nodes of a pool's view, may lose their
    disks."""
    return bool(cluster["spec"].get("storage", {}).get("type") == EPHEMERAL)


def build_volumes(cluster: QueueCluster) -> list[Volume]:
    """Return the emptyDirs of a pod, none if its disks are volume claims. `cluster` is the pool's
    view."""
    if not is_ephemeral(cluster):
        return []
    limit = cluster["spec"]["storage"]["size"]
    return [
        {"name": pod_layout.format_volume(slot), "emptyDir": {"sizeLimit": limit}}
        for slot in range(pod_layout.get_brokers_per_pod(cluster))
    ]


def build_claim_templates(cluster: QueueCluster, metadata: ClaimMetadata) -> list[ClaimTemplate]:
    """Return the claim templates of a StatefulSet, none if its disks are emptyDirs. `cluster` is
    the pool's view, and `metadata` the claims' labels and annotations."""
    storage = cluster["spec"]["storage"]
    if is_ephemeral(cluster):
        return []
    claim: ClaimSpec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage["size"]}},
    }
    if storage.get("storageClassName"):
        claim["storageClassName"] = storage["storageClassName"]
    if storage.get("volumeAttributesClassName"):
        claim["volumeAttributesClassName"] = storage["volumeAttributesClassName"]
    return [
        {"metadata": {"name": pod_layout.format_volume(slot), **metadata}, "spec": claim}
        for slot in range(pod_layout.get_brokers_per_pod(cluster))
    ]


def find_volume_size(cluster: QueueCluster, claims: Sequence[Manifest]) -> str:
    """Return the size to which `spec.storage.size` may return if volumes cannot grow: the largest
    that a claim has or, if it is smaller, requests. Empty without claims.

    Claims of pools with a size of their own do not count.
    """
    own = {pool["name"] for pool in cluster["spec"].get("nodePools", []) if pool.get("storage")}
    sizes = []
    for claim in claims:
        if claim["metadata"].get("labels", {}).get(names.NODE_POOL) in own:
            continue
        requested = claim["spec"]["resources"]["requests"]["storage"]
        have = claim.get("status", {}).get("capacity", {}).get("storage", requested)
        sizes.append(min(requested, have, key=parse_size_bytes))
    return "" if is_ephemeral(cluster) else max(sizes, key=parse_size_bytes, default="")


def build_resources(cluster: QueueCluster) -> Resources:
    """Return the resources of a container: those of the spec or `RESOURCES`, and the space of its
    emptyDir, so that the scheduler chooses a node that has it. `cluster` is the pool's view."""
    spec = cluster["spec"]
    base = spec.get("resources") or RESOURCES
    if not is_ephemeral(cluster):
        return base
    space: dict[str, int | str] = {"ephemeral-storage": spec["storage"]["size"]}
    return {**base, "requests": space | base.get("requests", {})}


def build_properties(cluster: QueueCluster) -> dict[str, str]:
    """Return the config that keeps the logs of a broker within its emptyDir. `cluster` is the
    pool's view."""
    if not is_ephemeral(cluster):
        return {}
    return {"shoal.log.dir.max.bytes": str(max(1, _compute_log_bytes(cluster)))}


def _compute_log_bytes(cluster: QueueCluster) -> int:
    size = parse_size_bytes(cluster["spec"]["storage"]["size"])
    return size - size // _SPARE_PART - tiered.compute_cache_bytes(cluster)


def find_problem(cluster: QueueCluster) -> str:
    """Return why a cluster may not have ephemeral disks, and the remedy; empty if it may.

    The schema refuses a part of it.
    """
    if not is_ephemeral(cluster):
        return ""
    spec, subject = cluster["spec"], "spec.storage.type is ephemeral"
    if not tiered.is_enabled(cluster):
        return (
            f"{subject}, which needs spec.tieredStorage: brokers lose their disks with their pods. "
            "Add it, or set spec.storage.type to persistent."
        )
    if node_pools.find_controller_pool(cluster) is None:
        return (
            f"{subject}, and the first brokers are the controllers: the metadata would be lost "
            "with their disks. Add a node pool with roles [controller], which keeps its volumes."
        )
    if pod_layout.get_replicas(cluster) < BROKERS_MIN:
        return (
            f"{subject}, and spec.replicas is {pod_layout.get_replicas(cluster)}. Set it to "
            f"{BROKERS_MIN} "
            "or more, so that two others have the records of a broker that loses its disk."
        )
    if spec.get("restoreFrom") is not None:
        return (
            f"{subject}, and a restore writes to disks that the brokers' pods must keep. Remove "
            "spec.restoreFrom, or restore into a cluster with spec.storage.type persistent."
        )
    return _find_pool_problem(cluster) or _find_config_problem(spec.get("config", {}))


def _find_pool_problem(cluster: QueueCluster) -> str:
    """Return which storage class has no effect, or which disk has no room for logs."""
    for pool in node_pools.list_pools(cluster):
        view = node_pools.make_view(cluster, pool)
        if not is_ephemeral(view):
            continue
        path = f"spec.nodePools[{pool.name}]" if pool.name else "spec"
        if view["spec"]["storage"].get("storageClassName"):
            return (
                f"{path}.storage.storageClassName has no effect, since spec.storage.type is "
                "ephemeral. Remove it."
            )
        if _compute_log_bytes(view) <= 0:
            return (
                f"spec.tieredStorage.cacheSize leaves no room for logs in {path}.storage.size: "
                f"{100 // _SPARE_PART} % of an ephemeral disk stay free. Lower it."
            )
    return ""


def _find_config_problem(config: Mapping[str, str]) -> str:
    """Return which config would lose records with the disk of one broker."""
    for name, least in _LEAST.items():
        value = str(config.get(name, least)).strip()
        if not value.isdecimal() or int(value) < least:
            return (
                f"spec.config.{name} is {value}. With spec.storage.type ephemeral, it must be "
                f"{least} or more, or not set."
            )
    if str(config.get(_UNCLEAN, "false")).strip().lower() != "false":
        return (
            f"spec.config.{_UNCLEAN} would let a broker lead whose disk is empty. Remove it, since "
            "spec.storage.type is ephemeral."
        )
    return ""


def find_changed_disks(cluster: QueueCluster, stateful_sets: Mapping[str, Manifest]) -> str:
    """Return which StatefulSet has disks of the other type, and the remedy; empty if none has.

    `stateful_sets` are those of the cluster, by name.
    """
    for pool in node_pools.list_pools(cluster):
        have = stateful_sets.get(pool.stateful_set)
        if have is None:
            continue
        was = "persistent" if have["spec"].get("volumeClaimTemplates") else EPHEMERAL
        now = EPHEMERAL if is_ephemeral(node_pools.make_view(cluster, pool)) else "persistent"
        if was != now:
            return (
                f"spec.storage.type cannot change from {was} to {now}: StatefulSet "
                f"{pool.stateful_set} has the records of its brokers on {was} disks. Undo the "
                "change. To move, create another QueueCluster, and move the topics."
            )
    return ""


def find_lost_disks(cluster: QueueCluster, stateful_set: object, claims: list[Manifest]) -> str:
    """Return why a cluster may not begin with the controllers' volumes of an earlier one, whose
    brokers' disks are lost; empty if it may.

    `stateful_set` is that of its brokers, None if there is none, and `claims` are the controllers'.
    """
    begun = stateful_set is not None or bool(cluster.get("status", {}).get("clusterId"))
    if begun or not claims or not is_ephemeral(cluster):
        return ""
    claim_names = ", ".join(claim["metadata"]["name"] for claim in claims)
    return (
        "The controllers of an earlier cluster of this name have left volume claims: "
        f"{claim_names}. The "
        "disks of its brokers are lost. Delete these claims to begin with an empty cluster. To get "
        "the tiered topics back, delete the claims and set spec.storage.type to persistent and "
        "spec.restoreFrom."
    )
