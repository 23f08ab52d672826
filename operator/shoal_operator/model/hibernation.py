"""A QueueCluster that is hibernated (`spec.hibernated`): no pods, with its volumes kept. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.queue_cluster import QueueCluster

#: Annotation of a StatefulSet with the replicas that it had before: the brokers with data.
REPLICAS = f"{names.GROUP}/hibernated-replicas"


def is_hibernated(cluster: QueueCluster) -> bool:
    """Return whether no broker of a cluster may run."""
    return bool(cluster["spec"].get("hibernated"))


def get_replicas(stateful_set: Mapping[str, Any]) -> int:
    """Return the replicas of a StatefulSet, or those that it had before it was hibernated.

    A spec that has fewer meanwhile must not leave out brokers that have replicas.
    """
    replicas: int = stateful_set["spec"]["replicas"]
    return replicas or int(stateful_set["metadata"].get("annotations", {}).get(REPLICAS, 0))
