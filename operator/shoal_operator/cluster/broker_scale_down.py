"""Scale-down of brokers.

A broker is removed after all replicas have moved to other brokers. It is cordoned before, so that
it gets no new ones. Then its pod stops, and the broker is unregistered. Every pass starts from the
observed state, so that a new operator continues after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import KafkaError

from shoal_operator.brokers import placement
from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.model import node_pools, pod_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal_operator.brokers.broker_states import ClusterState
    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.brokers.cordons import BrokerCordons
    from shoal_operator.brokers.roller import PartitionState
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.model.queue_cluster import QueueCluster

#: Number of partitions that a message names.
NAMED_MAX = 3


class ScaleDown(NamedTuple):
    """The number of pods that must run, by node pool, and why it exceeds the spec's number."""

    replicas: Mapping[str, int]
    diagnosis: Diagnosis | None = None


class ReplicaMover:
    """Moves replicas and unregisters brokers; has no state of its own."""

    def __init__(self, kube: KubeClient, brokers: Brokers, cordons: BrokerCordons) -> None:
        self._kube, self._brokers, self._cordons = kube, brokers, cordons

    async def scale_down(
        self, cluster: QueueCluster, state: ClusterState, running: Iterable[int]
    ) -> ScaleDown:
        """Move replicas off the brokers that the spec no longer has. Raises `ClientError`.

        `running` are the brokers that have a pod.
        """
        replicas, staying = node_pools.count_replicas(cluster), pod_layout.list_brokers(cluster)
        present = set(running)
        extra = (state.registered | present) - set(staying)
        if not extra:
            await self._cordons.uncordon(cluster)
            return ScaleDown(replicas)
        partitions, still = await self._describe_partitions()
        plan = placement.drain(still, staying, state.racks)
        if plan.unplaceable:
            await self._cordons.uncordon(cluster)
            return ScaleDown(
                _count_pods(extra & present, cluster), _diagnose_refusal(plan, cluster)
            )
        await self._cordons.uncordon(cluster, staying)
        if await self._cordons.cordon(cluster, extra & state.registered - state.fenced):
            # They may have got replicas since the partitions were described.
            text = f"New replicas no longer go to {_format_brokers(extra)}."
            return ScaleDown(_count_pods(extra & present, cluster), Diagnosis("ScalingDown", text))
        await self._move(cluster, plan.moves, "BrokersDrain")
        moving = [p for p in partitions if extra & set(p.replicas)]
        draining = {b for p in moving for b in p.replicas} & extra
        if draining & present:
            stops = "the broker" if pod_layout.get_brokers_per_pod(cluster) == 1 else "their pod"
            text = (
                f"Replicas of {len(moving)} partitions are being moved from "
                f"{_format_brokers(draining)}; "
                f"{stops} stops after that."
            )
            return ScaleDown(
                _count_pods(draining & present, cluster), Diagnosis("ScalingDown", text)
            )
        for broker in sorted(extra - present - draining):
            if broker in state.fenced:
                await self._unregister(cluster, broker)
        return ScaleDown(replicas)

    async def _unregister(self, cluster: QueueCluster, broker: int) -> None:
        """Unregister a broker. Its cordon ends before, also that of a user, because configs outlive
        the registration: another broker with this id would get no replicas. Raises
        `ClientError`."""
        await self._brokers.cordons.uncordon([broker])
        await self._brokers.unregister(broker)
        await self._cordons.forget(cluster, broker)

    async def _describe_partitions(self) -> tuple[Sequence[PartitionState], list[PartitionState]]:
        """Return all partitions, and those whose replicas are not being moved."""
        partitions = await self._brokers.describe_partitions()
        under_way = await self._brokers.list_reassignments()
        return partitions, [p for p in partitions if p.name not in under_way]

    async def _move(
        self, cluster: QueueCluster, moves: Mapping[str, tuple[int, ...]], reason: str
    ) -> None:
        """Request these reassignments. Raises `KafkaError`."""
        if not moves:
            return
        generation = cluster["metadata"].get("generation")
        text = f"Replicas of {len(moves)} partitions are being moved."
        await self._kube.record_event(
            cluster, reason, text, once=f"{generation} {sorted(moves)[:1]}"
        )
        for error in (await self._brokers.reassign(moves)).values():
            if isinstance(error, KafkaError):
                raise error


def _count_pods(brokers: Iterable[int], cluster: QueueCluster) -> dict[str, int]:
    """Return the numbers of pods that these brokers and those of the spec need."""
    return node_pools.count_replicas(cluster, map(pod_layout.get_pod, brokers))


def _diagnose_refusal(plan: placement.ReassignmentPlan, cluster: QueueCluster) -> Diagnosis:
    names_of = ", ".join(plan.unplaceable[:NAMED_MAX])
    more = (
        f" and {len(plan.unplaceable) - NAMED_MAX} more"
        if len(plan.unplaceable) > NAMED_MAX
        else ""
    )
    replicas = pod_layout.get_replicas(cluster)
    pods = "pods" if pod_layout.get_brokers_per_pod(cluster) > 1 else "brokers"
    if cluster["spec"].get("nodePools"):
        count = len(node_pools.list_broker_pods(cluster))
        return Diagnosis(
            "ScaleDownRefused",
            f"{count} {pods if count != 1 else pods[:-1]} would be left, but {names_of}{more} have "
            f"replicas on more {pods} than that. Create the topics with fewer replicas, or raise "
            "spec.replicas or the replicas of a node pool.",
        )
    return Diagnosis(
        "ScaleDownRefused",
        f"spec.replicas is {replicas}, but {names_of}{more} have replicas on more {pods} than "
        "that. Create the topics with fewer replicas, or raise spec.replicas.",
    )


def _format_brokers(ids: Iterable[int]) -> str:
    sorted_ids = sorted(ids)
    return f"broker{'s' if len(sorted_ids) > 1 else ''} {', '.join(map(str, sorted_ids))}"
