"""Brokers that shall leave a cluster, and replicas that shall spread over those that came.

A broker leaves once no partition has a replica on it. Its pod ends only then, and it is taken out
of the cluster's metadata once it is gone. All of it is worked out anew from what is there, so that
an operator that dies in between goes on where it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import KafkaError

from shoal_operator import placement
from shoal_operator.diagnostics import Diagnosis
from shoal_operator.model import names, pod_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal_operator.broker_states import ClusterState
    from shoal_operator.brokers import Brokers
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.roller import PartitionState

#: The annotation that asks, by any new value, for replicas to be spread over all brokers.
REBALANCE = f"{names.GROUP}/rebalance"
#: Partitions that are named in a message.
NAMED_MAX = 3


class ScaleDown(NamedTuple):
    """How many pods have to be there still, and why it is more than the spec asks for."""

    replicas: int
    diagnosis: Diagnosis | None = None


class Membership:
    """Owns no state but what brokers and Kubernetes have."""

    def __init__(self, kube: Kube, brokers: Brokers) -> None:
        self._kube, self._brokers = kube, brokers

    async def scale_down(
        self, cluster: Manifest, state: ClusterState, running: Iterable[int]
    ) -> ScaleDown:
        """Move replicas off the brokers that the spec has no more; `running` are those with a
        pod. Raises `ClientError`."""
        wanted, staying = pod_layout.replicas(cluster), pod_layout.brokers(cluster)
        present = set(running)
        extra = (state.registered | present) - set(staying)
        if not extra:
            return ScaleDown(wanted)
        partitions, still = await self._partitions()
        plan = placement.drain(still, staying, state.racks)
        if plan.unplaceable:
            return ScaleDown(_pods_with(extra & present, wanted), _refusal(plan, cluster))
        await self._move(cluster, plan.moves, "BrokersDrain")
        moving = [p for p in partitions if extra & set(p.replicas)]
        left = {b for p in moving for b in p.replicas} & extra
        if left & present:
            end = (
                "and then it ends"
                if pod_layout.per_pod(cluster) == 1
                else "and then their pod ends"
            )
            text = f"{len(moving)} partitions are leaving {_brokers(left)}, {end}."
            return ScaleDown(_pods_with(left & present, wanted), Diagnosis("ScalingDown", text))
        for broker in sorted(extra - present - left):
            if broker in state.fenced:
                await self._brokers.unregister(broker)
        return ScaleDown(wanted)

    async def rebalance(self, cluster: Manifest, state: ClusterState) -> str | None:
        """Spread replicas if that was asked for; what it was asked with, once it is under way.
        Raises `ClientError`."""
        asked = cluster["metadata"].get("annotations", {}).get(REBALANCE, "")
        if not asked or asked == cluster.get("status", {}).get("lastRebalance"):
            return None
        _, still = await self._partitions()
        plan = placement.balance(still, pod_layout.brokers(cluster), state.racks)
        await self._move(cluster, plan.moves, "Rebalance")
        return str(asked)

    async def _partitions(self) -> tuple[Sequence[PartitionState], list[PartitionState]]:
        """All of them, and those that are not on the move already."""
        partitions = await self._brokers.partitions()
        under_way = await self._brokers.reassignments()
        return partitions, [p for p in partitions if p.name not in under_way]

    async def _move(
        self, cluster: Manifest, moves: Mapping[str, tuple[int, ...]], reason: str
    ) -> None:
        """Ask for these moves, if there are any. Raises `KafkaError`."""
        if not moves:
            return
        generation = cluster["metadata"].get("generation")
        text = f"{len(moves)} partitions get other replicas."
        await self._kube.event(cluster, reason, text, once=f"{generation} {sorted(moves)[:1]}")
        for error in (await self._brokers.reassign(moves)).values():
            if isinstance(error, KafkaError):
                raise error


def _pods_with(brokers: Iterable[int], wanted: int) -> int:
    """How many pods there have to be for these brokers, and for those of the spec."""
    return max([wanted, *(pod_layout.pod_of(broker) + 1 for broker in brokers)])


def _refusal(plan: placement.Plan, cluster: Manifest) -> Diagnosis:
    names_of = ", ".join(plan.unplaceable[:NAMED_MAX])
    more = (
        f" and {len(plan.unplaceable) - NAMED_MAX} more"
        if len(plan.unplaceable) > NAMED_MAX
        else ""
    )
    wanted = pod_layout.replicas(cluster)
    many = "more replicas than that" + (", a pod each" if pod_layout.per_pod(cluster) > 1 else "")
    return Diagnosis(
        "ScaleDownRefused",
        f"spec.replicas is {wanted}, and {names_of}{more} have {many}; lower "
        "their spec.replicas, or keep the brokers.",
    )


def _brokers(ids: Iterable[int]) -> str:
    every = sorted(ids)
    return f"broker{'s' if len(every) > 1 else ''} {', '.join(map(str, every))}"
