"""Changes of the number of replicas of topics, by reassignment. Pure.

Every pass starts from the observed state: partitions with another number of replicas that are not
being reassigned yet. At most `MOVES_MAX` partitions of a topic change at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal_operator.brokers import placement
from shoal_operator.kube.conditions import Verdict
from shoal_operator.model import pod_layout

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.brokers.roller import PartitionState
    from shoal_operator.model.resources.queue_topic import QueueTopicStatusReassignment

#: Each reassignment copies a partition to its new replicas, which competes with clients.
MOVES_MAX = 50


@dataclass(frozen=True, slots=True)
class TopicResize:
    """How far a topic is: `progress` for the status, and new replicas by partition."""

    verdict: Verdict
    progress: QueueTopicStatusReassignment | None = None
    moves: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def plan_resizes(
    replica_counts: Mapping[str, int],
    partitions: Sequence[PartitionState],
    under_way: Collection[str],
    brokers: Sequence[int],
    racks: Mapping[int, str],
) -> dict[str, TopicResize]:
    """Return the next moves of topics, by topic.

    `replica_counts` is the number of replicas by topic. `under_way` are partitions that are being
    reassigned, `brokers` those of the spec, and `racks` those that run.
    """
    running = [broker for broker in brokers if broker in racks]
    of_topic: dict[str, list[PartitionState]] = {name: [] for name in replica_counts}
    for partition in partitions:
        topic = partition.name.rpartition("-")[0]
        if topic in replica_counts:
            of_topic[topic].append(partition)
    return {
        topic: _plan_topic(
            replica_counts[topic],
            topic_partitions,
            partitions,
            under_way,
            (brokers, running, racks),
        )
        for topic, topic_partitions in of_topic.items()
    }


def _plan_topic(
    replicas: int,
    topic_partitions: Sequence[PartitionState],
    partitions: Sequence[PartitionState],
    under_way: Collection[str],
    places: tuple[Sequence[int], Sequence[int], Mapping[int, str]],
) -> TopicResize:
    brokers, running, racks = places
    if refusal := _find_refusal(replicas, topic_partitions, brokers):
        return TopicResize(refusal)
    moving = [p for p in topic_partitions if p.name in under_way]
    pending = [
        p for p in topic_partitions if p.name not in under_way and len(p.replicas) != replicas
    ]
    targets = {p.name: replicas for p in pending[: max(0, MOVES_MAX - len(moving))]}
    # A partition that is being reassigned counts with its present and its coming replicas.
    plan = placement.resize(partitions, targets, running, {b: r for b, r in racks.items() if r})
    done_count = len(topic_partitions) - len(moving) - len(pending)
    progress: QueueTopicStatusReassignment = {
        "partitions": len(topic_partitions),
        "done": done_count,
    }
    if plan.unplaceable:
        text = (
            f"The partitions get {replicas} replicas as soon as enough brokers run: "
            f"{plan.unplaceable[0]} has no place for another one now."
        )
        return TopicResize(Verdict.make_waiting("BrokersMissing", text), progress, plan.moves)
    text = (
        f"{done_count} of {len(topic_partitions)} partitions have {replicas} replicas; "
        "the others are reassigned."
    )
    return TopicResize(Verdict(True, "Reassigning", text, progressing=True), progress, plan.moves)


def _find_refusal(
    replicas: int, topic_partitions: Sequence[PartitionState], brokers: Sequence[int]
) -> Verdict | None:
    """Return the verdict on a number of replicas that the topic cannot have, else None."""
    pods = len({pod_layout.get_pod(broker) for broker in brokers})
    if replicas > pods:
        return Verdict.make_refused(
            "ReplicasNotPlaceable",
            f"spec.replicas is {replicas}, and the cluster has {pods} broker pods. Lower "
            "spec.replicas, or raise spec.replicas of the QueueCluster.",
        )
    isr_min = max((p.isr_min for p in topic_partitions), default=1)
    if replicas < isr_min and any(len(p.replicas) > replicas for p in topic_partitions):
        return Verdict.make_refused(
            "ReplicasBelowMinIsr",
            f"spec.replicas is {replicas}, and min.insync.replicas of the topic is {isr_min}: "
            "writes "
            f"with acks=all would fail. Set min.insync.replicas in spec.config to {replicas} or "
            "less first.",
        )
    return None
