"""Decisions on leader elections by request or by timer (KIP-460, KIP-966).

An unclean election may lose records. It is held only for topics that allow it
(unclean.leader.election.enable). Pure; see `controller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata import brokers
from shoal.metadata.controller import Decision
from shoal.metadata.image import NO_LEADER, MetadataImage
from shoal.metadata.partition_changes import Election, change, settled, view_of
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Election types of ElectLeaders.
PREFERRED, UNCLEAN = 0, 1

_Outcome = tuple[ErrorCode, str | None, MetadataRecord | None]


def elect_leaders(
    image: MetadataImage, election_type: int, asked: Sequence[tuple[str, int]] | None
) -> Decision:
    """Elect leaders for partitions (topic, index); None means all that need an election.

    The response has ElectLeaders' results by topic. For all, it leaves out partitions that need
    none.
    """
    every = [(topic.name, index) for topic, index, _ in brokers.partitions(image)]
    records = []
    results: dict[str, list[dict[str, Any]]] = {}
    for topic, index in every if asked is None else asked:
        code, message, record = _elect(image, election_type, topic, index)
        if record is not None:
            records.append(record)
        if asked is None and code is ErrorCode.election_not_needed:
            continue
        results.setdefault(topic, []).append(
            {"partition_id": index, "error_code": code, "error_message": message}
        )
    return Decision(
        records, [{"topic": name, "partition_result": found} for name, found in results.items()]
    )


def _elect(image: MetadataImage, election_type: int, topic: str, index: int) -> _Outcome:
    """Return (error, message, record) of one partition."""
    if topic not in image.topics:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {topic}", None
    partition = image.partition(topic, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}", None
    led_well = partition.leader == partition.replicas[0]
    if led_well or (election_type == UNCLEAN and partition.leader != NO_LEADER):
        return ErrorCode.election_not_needed, "The partition has its leader already.", None
    election = Election.PREFERRED
    if election_type == UNCLEAN:
        if not image.topic_config(topic)["unclean.leader.election.enable"]:
            return (
                ErrorCode.eligible_leaders_not_available,
                f"Records of {topic} could be lost: its config unclean.leader.election.enable has"
                " to be true first.",
                None,
            )
        election = Election.UNCLEAN
    after = settled(partition, view_of(image, topic), isr=partition.isr, election=election)
    if election is Election.PREFERRED and after.leader != partition.replicas[0]:
        return (
            ErrorCode.preferred_leader_not_available,
            "The preferred replica is not in sync, or its broker is not running.",
            None,
        )
    if after.leader == NO_LEADER:
        return (
            ErrorCode.eligible_leaders_not_available,
            "None of the partition's replicas is on a running broker.",
            None,
        )
    topic_id = image.topics[topic].topic_id
    return ErrorCode.none, None, change(topic_id, index, partition, after)


def balance(image: MetadataImage) -> Decision:
    """Move leaders back to preferred replicas that are in sync and may lead."""
    records: list[MetadataRecord] = []
    for topic, index, partition in brokers.partitions(image):
        preferred = partition.replicas[0]
        if partition.leader == preferred or preferred not in partition.isr:
            continue
        if preferred not in image.active or len(records) >= RECORDS_PER_DECISION_MAX:
            continue
        after = settled(
            partition,
            view_of(image, topic.name),
            isr=partition.isr,
            election=Election.PREFERRED,
        )
        record = change(topic.topic_id, index, partition, after)
        if record is not None:
            records.append(record)
    return Decision(records)


def elect_unclean(image: MetadataImage) -> Decision:
    """Elect leaders of partitions without one whose topics allow unclean elections."""
    records: list[MetadataRecord] = []
    for topic, index, partition in brokers.partitions(image):
        if partition.leader != NO_LEADER or len(records) >= RECORDS_PER_DECISION_MAX:
            continue
        code, _, record = _elect(image, UNCLEAN, topic.name, index)
        if code is ErrorCode.none and record is not None:
            records.append(record)
    return Decision(records)
