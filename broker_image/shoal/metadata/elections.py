"""Decisions on who leads a partition. Pure; see `controller`. Sources: KIP-460, KIP-966."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.metadata.controller import Decision
from shoal.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ErrorCode

#: ElectLeaders' election types.
PREFERRED, UNCLEAN = 0, 1
_RECOVERING = 1


def elect_leaders(
    image: MetadataImage, election_type: int, asked: Sequence[tuple[str, int]] | None
) -> Decision:
    """Elect leaders for partitions (topic, index); None stands for all that need it.

    The response is ElectLeaders' rows by topic. For all, those that need nothing are left out.
    """
    every = [(n, i) for n in sorted(image.topics) for i in range(len(image.topics[n].partitions))]
    records = []
    results: dict[str, list[dict[str, Any]]] = {}
    for topic, index in every if asked is None else asked:
        code, message, change = _elect(image, election_type, topic, index)
        if change is not None:
            records.append(MetadataRecord("PartitionChangeRecord", change))
        if asked is None and code is ErrorCode.election_not_needed:
            continue
        results.setdefault(topic, []).append(
            {"partition_id": index, "error_code": code, "error_message": message}
        )
    return Decision(
        records, [{"topic": name, "partition_result": rows} for name, rows in results.items()]
    )


def _elect(
    image: MetadataImage, election_type: int, topic: str, index: int
) -> tuple[ErrorCode, str | None, dict[str, Any] | None]:
    """(error, message, change) of one partition."""
    if topic not in image.topics:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {topic}", None
    partition = image.partition(topic, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}", None
    led_well = partition.leader == partition.replicas[0]
    if led_well or (election_type == UNCLEAN and partition.leader != NO_LEADER):
        return ErrorCode.election_not_needed, "The partition has its leader already.", None
    change: dict[str, Any] = {
        "topic_id": image.topics[topic].topic_id,
        "partition_id": index,
    }
    if election_type == PREFERRED:
        preferred = partition.replicas[0]
        if preferred not in partition.isr or preferred not in image.running:
            return (
                ErrorCode.preferred_leader_not_available,
                "The preferred replica is not in sync, or its broker is not running.",
                None,
            )
        return ErrorCode.none, None, change | {"leader": preferred}
    chosen, clean = _anyone(image, partition)
    if chosen is None:
        return (
            ErrorCode.eligible_leaders_not_available,
            "None of the partition's replicas is on a running broker.",
            None,
        )
    change |= {"leader": chosen}
    if not clean:
        change |= {"isr": [chosen], "leader_recovery_state": _RECOVERING}
    return ErrorCode.none, None, change


def _anyone(image: MetadataImage, partition: PartitionImage) -> tuple[int | None, bool]:
    """The best running replica, and whether it has all committed records."""
    running = [replica for replica in partition.replicas if replica in image.running]
    whole = [r for r in running if r in partition.isr or r in partition.eligible_leader_replicas]
    if whole:
        return whole[0], True
    return (running[0] if running else None), False
