"""Changes of the number of replicas of topics, by reassignment. Pure.

Every pass starts from the observed state: partitions with another number of replicas that are not
being reassigned yet. At most `MOVES_MAX` partitions of a topic change at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal_operator import placement
from shoal_operator.conditions import Verdict
from shoal_operator.model import pod_layout

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.roller import PartitionState

#: Each reassignment copies a partition to its new replicas, which competes with clients.
MOVES_MAX = 50


@dataclass(frozen=True, slots=True)
class Resize:
    """How far a topic is: `progress` for the status, and new replicas by partition."""

    verdict: Verdict
    progress: Mapping[str, int] | None = None
    moves: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def plan(
    wanted: Mapping[str, int],
    partitions: Sequence[PartitionState],
    under_way: Collection[str],
    brokers: Sequence[int],
    racks: Mapping[int, str],
) -> dict[str, Resize]:
    """Return the next moves of topics, by topic.

    `wanted` is the number of replicas by topic. `under_way` are partitions that are being
    reassigned, `brokers` those of the spec, and `racks` those that run.
    """
    running = [broker for broker in brokers if broker in racks]
    of_topic: dict[str, list[PartitionState]] = {name: [] for name in wanted}
    for partition in partitions:
        topic = partition.name.rpartition("-")[0]
        if topic in wanted:
            of_topic[topic].append(partition)
    return {
        topic: _topic(wanted[topic], every, partitions, under_way, (brokers, running, racks))
        for topic, every in of_topic.items()
    }


def _topic(
    wanted: int,
    every: Sequence[PartitionState],
    partitions: Sequence[PartitionState],
    under_way: Collection[str],
    places: tuple[Sequence[int], Sequence[int], Mapping[int, str]],
) -> Resize:
    brokers, running, racks = places
    if refusal := _refusal(wanted, every, brokers):
        return Resize(refusal)
    moving = [p for p in every if p.name in under_way]
    left = [p for p in every if p.name not in under_way and len(p.replicas) != wanted]
    some = {p.name: wanted for p in left[: max(0, MOVES_MAX - len(moving))]}
    # A partition that is being reassigned counts with its present and its coming replicas.
    found = placement.resize(partitions, some, running, {b: r for b, r in racks.items() if r})
    done = len(every) - len(moving) - len(left)
    progress = {"partitions": len(every), "done": done}
    if found.unplaceable:
        text = (
            f"The partitions get {wanted} replicas as soon as enough brokers run: "
            f"{found.unplaceable[0]} has no place for another one now."
        )
        return Resize(Verdict.waiting("BrokersMissing", text), progress, found.moves)
    text = f"{done} of {len(every)} partitions have {wanted} replicas; the others are reassigned."
    return Resize(Verdict(True, "Reassigning", text, progressing=True), progress, found.moves)


def _refusal(
    wanted: int, every: Sequence[PartitionState], brokers: Sequence[int]
) -> Verdict | None:
    """Return the verdict on a number of replicas that the topic cannot have, else None."""
    pods = len({pod_layout.pod_of(broker) for broker in brokers})
    if wanted > pods:
        return Verdict.refused(
            "ReplicasNotPlaceable",
            f"spec.replicas is {wanted}, and the cluster has {pods} broker pods. Lower "
            "spec.replicas, or raise spec.replicas of the QueueCluster.",
        )
    isr_min = max((p.isr_min for p in every), default=1)
    if wanted < isr_min and any(len(p.replicas) > wanted for p in every):
        return Verdict.refused(
            "ReplicasBelowMinIsr",
            f"spec.replicas is {wanted}, and min.insync.replicas of the topic is {isr_min}: writes "
            f"with acks=all would fail. Set min.insync.replicas in spec.config to {wanted} or less "
            "first.",
        )
    return None
