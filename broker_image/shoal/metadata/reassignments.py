"""Decisions on reassignments of partitions (KIP-455). Pure; see `controller`.

During a reassignment a partition's replicas are the target replicas, followed by those to remove.
It is complete once all added replicas are in sync (`partition_changes`). Until then it can be
cancelled or replaced: the original replicas are all except the added ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata import brokers
from shoal.metadata.controller import Decision
from shoal.metadata.image import UNASSIGNED, MetadataImage, PartitionImage, TopicImage
from shoal.metadata.partition_changes import change, settled, view_of
from shoal.metadata.topics import Refused, checked_assignment, directory_of
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.metadata.records import MetadataRecord


class Move(NamedTuple):
    """The target replicas of a partition; None cancels the current reassignment."""

    topic: str
    partition_index: int
    replicas: Sequence[int] | None


def alter(image: MetadataImage, moves: Iterable[Move], *, other_factor: bool = True) -> Decision:
    """Reassign partitions. The response has AlterPartitionReassignments' results by topic.

    Without `other_factor` a move that changes the number of replicas is refused (KIP-860).
    """
    records: list[MetadataRecord] = []
    results: dict[str, list[dict[str, Any]]] = {}
    for move in moves:
        code, message = ErrorCode.none, None
        try:
            record = _move(image, move, other_factor)
            if record is not None:
                records.append(record)
        except Refused as refused:
            code, message = refused.code, refused.message
        results.setdefault(move.topic, []).append(
            {"partition_index": move.partition_index, "error_code": code, "error_message": message}
        )
    return Decision(records, [{"name": n, "partitions": found} for n, found in results.items()])


def _move(image: MetadataImage, move: Move, other_factor: bool) -> MetadataRecord | None:
    index = move.partition_index
    topic, partition = image.topics.get(move.topic), image.partition(move.topic, index)
    if topic is None or partition is None:
        raise Refused(
            ErrorCode.unknown_topic_or_partition,
            f"There is no partition {move.topic}-{index}.",
        )
    # Replicas to remove are last: their original order is unknown.
    before = tuple(r for r in partition.replicas if r not in partition.adding_replicas)
    if move.replicas is None:
        if not partition.adding_replicas and not partition.removing_replicas:
            raise Refused(ErrorCode.no_reassignment_in_progress)
        target = before
    else:
        target = checked_assignment(image, move.replicas, None, index)
        if not other_factor and len(target) != len(before):
            raise Refused(
                ErrorCode.invalid_replication_factor,
                f"The replication factor of {move.topic}-{index} is {len(before)} and would"
                f" become {len(target)}.",
            )
    return _toward(image, topic, index, partition, before, target)


def _toward(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    before: tuple[int, ...],
    target: tuple[int, ...],
) -> MetadataRecord | None:
    """Return the change from `before` to `target`, whatever reassignment runs now."""
    removing = tuple(r for r in before if r not in target)
    wished = partition._replace(
        replicas=target + removing,
        adding_replicas=tuple(r for r in target if r not in before),
        removing_replicas=removing,
    )
    isr = tuple(r for r in partition.isr if r in wished.replicas)
    if not isr and partition.isr:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"None of the in-sync replicas of {topic.name}-{index} would stay.",
        )
    after = settled(wished, view_of(image, topic.name), isr=isr)
    record = change(topic.topic_id, index, partition, after)
    if record is None or "replicas" not in record.fields:
        return record
    directories = [
        directory_of(image, id) if known == UNASSIGNED else known
        for id, known in zip(after.replicas, record.fields["directories"], strict=True)
    ]
    return record._replace(fields=record.fields | {"directories": directories})


def under_way(
    image: MetadataImage, asked: Iterable[tuple[str, Sequence[int]]] | None
) -> list[dict[str, Any]]:
    """Return ListPartitionReassignments' results for (topic, indexes), or for all partitions."""
    wanted = None if asked is None else {(name, i) for name, found in asked for i in found}
    results: dict[str, list[dict[str, Any]]] = {}
    for topic, index, partition in brokers.partitions(image):
        if not partition.adding_replicas and not partition.removing_replicas:
            continue
        if wanted is not None and (topic.name, index) not in wanted:
            continue
        results.setdefault(topic.name, []).append(
            {
                "partition_index": index,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding_replicas,
                "removing_replicas": partition.removing_replicas,
            }
        )
    return [{"name": name, "partitions": found} for name, found in results.items()]
