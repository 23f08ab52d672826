"""Decisions on reassignments of partitions (KIP-455). Pure; see `controller`.

During a reassignment a partition's replicas are the target replicas, followed by those to remove.
It is complete once all added replicas are in sync (`partition_changes`). Until then it can be
cancelled or replaced: the original replicas are all except the added ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata import brokers
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import UNASSIGNED, MetadataImage, PartitionImage, TopicImage
from shoal.metadata.partition_changes import build_change_record, build_view, with_isr_and_leader
from shoal.metadata.topics import TopicChangeRefused, find_directory, validate_assignment
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.metadata.records import MetadataRecord
    from shoal.protocol.responses import topics as responses

    _AlterResult = responses.AlterPartitionReassignmentsReassignablePartitionResponse
    _ListResult = responses.ListPartitionReassignmentsOngoingPartitionReassignment


class PartitionReassignment(NamedTuple):
    """The target replicas of a partition; None cancels the current reassignment."""

    topic: str
    partition_index: int
    replicas: Sequence[int] | None


def alter(
    image: MetadataImage, moves: Iterable[PartitionReassignment], *, other_factor: bool = True
) -> ControllerResult:
    """Reassign partitions. The response has AlterPartitionReassignments' results by topic, in the
    order of the moves.

    Without `other_factor` a move that changes the number of replicas is refused (KIP-860).
    """
    records: list[MetadataRecord] = []
    results: list[tuple[str, list[_AlterResult]]] = []
    for move in moves:
        code, message = ErrorCode.none, None
        try:
            record = _move(image, move, other_factor)
            if record is not None:
                records.append(record)
        except TopicChangeRefused as refused:
            code, message = refused.code, refused.message
        if not results or results[-1][0] != move.topic:
            results.append((move.topic, []))
        results[-1][1].append(
            {"partition_index": move.partition_index, "error_code": code, "error_message": message}
        )
    topics: list[responses.AlterPartitionReassignmentsReassignableTopicResponse] = [
        {"name": name, "partitions": partitions} for name, partitions in results
    ]
    return ControllerResult(records, topics)


def _move(
    image: MetadataImage, move: PartitionReassignment, other_factor: bool
) -> MetadataRecord | None:
    index = move.partition_index
    topic, partition = image.topics.get(move.topic), image.find_partition(move.topic, index)
    if topic is None or partition is None:
        raise TopicChangeRefused(
            ErrorCode.unknown_topic_or_partition,
            f"There is no partition {move.topic}-{index}.",
        )
    # Replicas to remove are last: their original order is unknown.
    before = tuple(r for r in partition.replicas if r not in partition.adding_replicas)
    if move.replicas is None:
        if not partition.adding_replicas and not partition.removing_replicas:
            raise TopicChangeRefused(ErrorCode.no_reassignment_in_progress)
        target = before
    else:
        target = validate_assignment(image, move.replicas, None, index)
        if not other_factor and len(target) != len(before):
            raise TopicChangeRefused(
                ErrorCode.invalid_replication_factor,
                f"The replication factor of {move.topic}-{index} is {len(before)} and would"
                f" become {len(target)}.",
            )
    return _build_move_record(image, topic, index, partition, before, target)


def _build_move_record(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    before: tuple[int, ...],
    target: tuple[int, ...],
) -> MetadataRecord | None:
    """Return the change from `before` to `target`, whatever reassignment runs now."""
    removing = tuple(r for r in before if r not in target)
    requested = partition._replace(
        replicas=target + removing,
        adding_replicas=tuple(r for r in target if r not in before),
        removing_replicas=removing,
    )
    isr = tuple(r for r in partition.isr if r in requested.replicas)
    if not isr and partition.isr:
        raise TopicChangeRefused(
            ErrorCode.invalid_replica_assignment,
            f"None of the in-sync replicas of {topic.name}-{index} would stay.",
        )
    after = with_isr_and_leader(requested, build_view(image, topic.name), isr=isr)
    record = build_change_record(topic.topic_id, index, partition, after)
    if record is None or "replicas" not in record.fields:
        return record
    directories = [
        find_directory(image, id) if directory == UNASSIGNED else directory
        for id, directory in zip(after.replicas, record.fields["directories"], strict=True)
    ]
    return record._replace(fields=record.fields | {"directories": directories})


def list_reassignments(
    image: MetadataImage, requested: Iterable[tuple[str, Sequence[int]]] | None
) -> list[responses.ListPartitionReassignmentsOngoingTopicReassignment]:
    """Return ListPartitionReassignments' results for (topic, indexes), or for all partitions."""
    selected = (
        None if requested is None else {(name, i) for name, entries in requested for i in entries}
    )
    results: dict[str, list[_ListResult]] = {}
    for topic, index, partition in brokers.iter_partitions(image):
        if not partition.adding_replicas and not partition.removing_replicas:
            continue
        if selected is not None and (topic.name, index) not in selected:
            continue
        results.setdefault(topic.name, []).append(
            {
                "partition_index": index,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding_replicas,
                "removing_replicas": partition.removing_replicas,
            }
        )
    return [{"name": name, "partitions": entries} for name, entries in results.items()]
