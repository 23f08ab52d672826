"""Decisions on leader elections by request or by timer (KIP-460, KIP-966).

An unclean election may lose records. It is held only for topics that allow it
(unclean.leader.election.enable). Pure; see `controller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import brokers
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import NO_LEADER, MetadataImage
from shoal.metadata.partition_changes import (
    Election,
    build_change_record,
    build_view,
    with_isr_and_leader,
)
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.responses import topics as responses

#: Election types of ElectLeaders.
PREFERRED, UNCLEAN = 0, 1

_NOT_NEEDED = "Leader election not needed for topic partition."

_Outcome = tuple[ErrorCode, str | None, MetadataRecord | None]


def elect_leaders(
    image: MetadataImage,
    election_type: int,
    requested: Sequence[tuple[str, Sequence[int]]] | None,
) -> ControllerResult:
    """Elect leaders for partitions (topic, indexes); None means all that need an election.

    The response has ElectLeaders' results by topic. For all, it has every topic, and leaves out
    partitions that need none.
    """
    if requested is None:
        asked: dict[str, list[int]] = {name: [] for name in image.topics}
        for topic, index, _ in brokers.iter_partitions(image):
            asked[topic.name].append(index)
    records = []
    results: list[responses.ElectLeadersReplicaElectionResult] = []
    for name, indexes in asked.items() if requested is None else requested:
        rows: list[responses.ElectLeadersPartitionResult] = []
        for index in indexes:
            code, message, record = _elect(image, election_type, name, index)
            if record is not None:
                records.append(record)
            if requested is None and code is ErrorCode.election_not_needed:
                continue
            rows.append({"partition_id": index, "error_code": code, "error_message": message})
        results.append({"topic": name, "partition_result": rows})
    return ControllerResult(records, results)


def _elect(image: MetadataImage, election_type: int, topic: str, index: int) -> _Outcome:
    """Return (error, message, record) of one partition."""
    if topic not in image.topics:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {topic}", None
    partition = image.find_partition(topic, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}", None
    led_well = partition.leader == partition.replicas[0]
    if led_well or (election_type == UNCLEAN and partition.leader != NO_LEADER):
        return ErrorCode.election_not_needed, _NOT_NEEDED, None
    election = Election.PREFERRED
    if election_type == UNCLEAN:
        if not image.resolve_topic_config(topic)["unclean.leader.election.enable"]:
            return (
                ErrorCode.eligible_leaders_not_available,
                f"Records of {topic} could be lost: its config unclean.leader.election.enable has"
                " to be true first.",
                None,
            )
        election = Election.UNCLEAN
    after = with_isr_and_leader(
        partition, build_view(image, topic), isr=partition.isr, election=election
    )
    if election is Election.PREFERRED and after.leader != partition.replicas[0]:
        return (
            ErrorCode.preferred_leader_not_available,
            "The preferred leader was not available.",
            None,
        )
    if after.leader == NO_LEADER:
        return (
            ErrorCode.eligible_leaders_not_available,
            "Eligible topic partition leaders are not available.",
            None,
        )
    topic_id = image.topics[topic].topic_id
    return ErrorCode.none, None, build_change_record(topic_id, index, partition, after)


def balance(image: MetadataImage) -> ControllerResult:
    """Move leaders back to preferred replicas that are in sync and may lead."""
    records: list[MetadataRecord] = []
    for topic, index, partition in brokers.iter_partitions(image):
        preferred = partition.replicas[0]
        if partition.leader == preferred or preferred not in partition.isr:
            continue
        if preferred not in image.active or len(records) >= RECORDS_PER_DECISION_MAX:
            continue
        after = with_isr_and_leader(
            partition,
            build_view(image, topic.name),
            isr=partition.isr,
            election=Election.PREFERRED,
        )
        record = build_change_record(topic.topic_id, index, partition, after)
        if record is not None:
            records.append(record)
    return ControllerResult(records)


def elect_unclean(image: MetadataImage) -> ControllerResult:
    """Elect leaders of partitions without one whose topics allow unclean elections."""
    records: list[MetadataRecord] = []
    for topic, index, partition in brokers.iter_partitions(image):
        if partition.leader != NO_LEADER or len(records) >= RECORDS_PER_DECISION_MAX:
            continue
        code, _, record = _elect(image, UNCLEAN, topic.name, index)
        if code is ErrorCode.none and record is not None:
            records.append(record)
    return ControllerResult(records)
