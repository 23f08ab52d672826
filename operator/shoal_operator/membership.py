"""Scale-down of brokers, and rebalancing of replicas.

A broker is removed after all replicas have moved to other brokers: first its pod stops, then the
broker is unregistered. Every pass starts from the observed state, so that a new operator continues
after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import KafkaError

from shoal_operator import placement
from shoal_operator.diagnostics import Diagnosis
from shoal_operator.model import names, node_pools, pod_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal_operator.broker_states import ClusterState
    from shoal_operator.brokers import Brokers
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.roller import PartitionState

#: The annotation that requests a rebalancing; each new value is a request.
REBALANCE = f"{names.GROUP}/rebalance"
#: Number of partitions that a message names.
NAMED_MAX = 3


class ScaleDown(NamedTuple):
    """The number of pods that must run, by node pool, and why it exceeds the spec's number."""

    replicas: Mapping[str, int]
    diagnosis: Diagnosis | None = None


class Membership:
    """Moves replicas and unregisters brokers; has no state of its own."""

    def __init__(self, kube: Kube, brokers: Brokers) -> None:
        self._kube, self._brokers = kube, brokers

    async def scale_down(
        self, cluster: Manifest, state: ClusterState, running: Iterable[int]
    ) -> ScaleDown:
        """Move replicas off the brokers that the spec no longer has. Raises `ClientError`.

        `running` are the brokers that have a pod.
        """
        wanted, staying = node_pools.replicas(cluster), pod_layout.brokers(cluster)
        present = set(running)
        extra = (state.registered | present) - set(staying)
        if not extra:
            return ScaleDown(wanted)
        partitions, still = await self._partitions()
        plan = placement.drain(still, staying, state.racks)
        if plan.unplaceable:
            return ScaleDown(_pods_with(extra & present, cluster), _refusal(plan, cluster))
        await self._move(cluster, plan.moves, "BrokersDrain")
        moving = [p for p in partitions if extra & set(p.replicas)]
        left = {b for p in moving for b in p.replicas} & extra
        if left & present:
            stops = "the broker" if pod_layout.per_pod(cluster) == 1 else "their pod"
            text = (
                f"Replicas of {len(moving)} partitions are being moved from {_brokers(left)}; "
                f"{stops} stops after that."
            )
            return ScaleDown(_pods_with(left & present, cluster), Diagnosis("ScalingDown", text))
        for broker in sorted(extra - present - left):
            if broker in state.fenced:
                await self._brokers.unregister(broker)
        return ScaleDown(wanted)

    async def rebalance(self, cluster: Manifest, state: ClusterState) -> str | None:
        """Start a requested rebalancing; return the annotation's value, None without a request.

        Raises `ClientError`.
        """
        asked = cluster["metadata"].get("annotations", {}).get(REBALANCE, "")
        if not asked or asked == cluster.get("status", {}).get("lastRebalance"):
            return None
        _, still = await self._partitions()
        plan = placement.balance(still, pod_layout.brokers(cluster), state.racks)
        await self._move(cluster, plan.moves, "Rebalance")
        return str(asked)

    async def _partitions(self) -> tuple[Sequence[PartitionState], list[PartitionState]]:
        """Return all partitions, and those whose replicas are not being moved."""
        partitions = await self._brokers.partitions()
        under_way = await self._brokers.reassignments()
        return partitions, [p for p in partitions if p.name not in under_way]

    async def _move(
        self, cluster: Manifest, moves: Mapping[str, tuple[int, ...]], reason: str
    ) -> None:
        """Request these reassignments. Raises `KafkaError`."""
        if not moves:
            return
        generation = cluster["metadata"].get("generation")
        text = f"Replicas of {len(moves)} partitions are being moved."
        await self._kube.event(cluster, reason, text, once=f"{generation} {sorted(moves)[:1]}")
        for error in (await self._brokers.reassign(moves)).values():
            if isinstance(error, KafkaError):
                raise error


def _pods_with(brokers: Iterable[int], cluster: Manifest) -> dict[str, int]:
    """Return the numbers of pods that these brokers and those of the spec need."""
    return node_pools.replicas(cluster, map(pod_layout.pod_of, brokers))


def _refusal(plan: placement.Plan, cluster: Manifest) -> Diagnosis:
    names_of = ", ".join(plan.unplaceable[:NAMED_MAX])
    more = (
        f" and {len(plan.unplaceable) - NAMED_MAX} more"
        if len(plan.unplaceable) > NAMED_MAX
        else ""
    )
    wanted = pod_layout.replicas(cluster)
    pods = "pods" if pod_layout.per_pod(cluster) > 1 else "brokers"
    if cluster["spec"].get("nodePools"):
        count = len(node_pools.broker_pods(cluster))
        return Diagnosis(
            "ScaleDownRefused",
            f"{count} {pods if count != 1 else pods[:-1]} would be left, but {names_of}{more} have "
            f"replicas on more {pods} than that. Create the topics with fewer replicas, or raise "
            "spec.replicas or the replicas of a node pool.",
        )
    return Diagnosis(
        "ScaleDownRefused",
        f"spec.replicas is {wanted}, but {names_of}{more} have replicas on more {pods} than that. "
        "Create the topics with fewer replicas, or raise spec.replicas.",
    )


def _brokers(ids: Iterable[int]) -> str:
    every = sorted(ids)
    return f"broker{'s' if len(every) > 1 else ''} {', '.join(map(str, every))}"
