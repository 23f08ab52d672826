"""Changes of the ISR by partition leaders: AlterPartition (KIP-497, KIP-841, KIP-903).

A change names a partition epoch. A request with an older epoch is refused, and the leader learns
the new epoch from the metadata. A replica joins the ISR only with the epoch of its broker's current
registration. So a restarted broker cannot join on the strength of its earlier state. Pure; see
`controller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata import brokers
from shoal.metadata.controller import ControllerResult
from shoal.metadata.delta import apply_partition_change
from shoal.metadata.partition_changes import (
    RECOVERED,
    RECOVERING,
    build_change_record,
    build_view,
    with_isr_and_leader,
)
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from shoal.metadata.image import MetadataImage, PartitionImage
    from shoal.metadata.records import MetadataRecord
    from shoal.protocol.responses import quorum as responses

#: The epoch in requests without broker epochs (v2), and of replicas whose epoch is unknown.
NO_EPOCH = -1


class AlterPartitionItem(NamedTuple):
    """A requested ISR of one partition.

    Has the (broker id, broker epoch) of its members, and the leader and partition epochs that it is
    based on.
    """

    topic_id: UUID | None
    partition_index: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int = RECOVERED


class AlteredPartition(NamedTuple):
    """The result for one partition, with the id of its topic."""

    topic_id: UUID | None
    result: responses.AlterPartitionPartitionData


def alter_partition(
    image: MetadataImage, broker_id: int, broker_epoch: int, items: Iterable[AlterPartitionItem]
) -> ControllerResult:
    """Change the ISRs. The response has a result for each request.

    Raises `ApiError` with STALE_BROKER_EPOCH.
    """
    brokers.check_broker_epoch(image, broker_id, broker_epoch)
    records: list[MetadataRecord] = []
    results: list[AlteredPartition] = []
    for item in items:
        topic = image.find_topic_by_id(item.topic_id)
        partition = None
        if topic is not None and 0 <= item.partition_index < len(topic.partitions):
            partition = topic.partitions[item.partition_index]
        error = _find_refusal(image, broker_id, item, partition)
        if topic is None:
            error = ErrorCode.unknown_topic_id
        if error is not None or topic is None or partition is None:
            refusal = _build_refusal(item, error or ErrorCode.unknown_topic_or_partition)
            results.append(AlteredPartition(item.topic_id, refusal))
            continue
        isr = tuple(id for id, _ in item.isr)
        requested = partition._replace(leader_recovery_state=item.leader_recovery_state)
        after = with_isr_and_leader(requested, build_view(image, topic.name), isr=isr)
        record = build_change_record(topic.topic_id, item.partition_index, partition, after)
        if record is not None:
            records.append(record)
            after = apply_partition_change(partition, record.fields)
        results.append(AlteredPartition(item.topic_id, _build_result(broker_id, item, after)))
    return ControllerResult(records, results)


def _build_refusal(
    item: AlterPartitionItem, error: ErrorCode
) -> responses.AlterPartitionPartitionData:
    return {
        "partition_index": item.partition_index,
        "error_code": error,
        "leader_id": -1,
        "leader_epoch": -1,
    }


def _build_result(
    broker_id: int, item: AlterPartitionItem, after: PartitionImage
) -> responses.AlterPartitionPartitionData:
    if after.leader_epoch != item.leader_epoch:
        # The change elected another leader or completed a reassignment.
        error = ErrorCode.fenced_leader_epoch
        if after.leader != broker_id:
            error = ErrorCode.new_leader_elected
        return _build_refusal(item, error)
    return {
        "partition_index": item.partition_index,
        "error_code": ErrorCode.none,
        "leader_id": after.leader,
        "leader_epoch": after.leader_epoch,
        "isr": after.isr,
        "leader_recovery_state": after.leader_recovery_state,
        "partition_epoch": after.partition_epoch,
    }


def _find_refusal(
    image: MetadataImage, broker_id: int, item: AlterPartitionItem, partition: PartitionImage | None
) -> ErrorCode | None:
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    if (
        item.leader_epoch > partition.leader_epoch
        or item.partition_epoch > partition.partition_epoch
    ):
        return ErrorCode.not_controller  # The sender has newer metadata than this node.
    if item.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    ids = [id for id, _ in item.isr]
    if partition.leader != broker_id:
        return ErrorCode.invalid_request
    if item.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    if (
        broker_id not in ids
        or len(set(ids)) < len(ids)
        or not set(ids) <= set(partition.replicas)
        or (item.leader_recovery_state == RECOVERING and len(ids) > 1)
        or (
            item.leader_recovery_state == RECOVERING
            and partition.leader_recovery_state == RECOVERED
        )
    ):
        return ErrorCode.invalid_request
    for id, epoch in item.isr:
        broker = image.brokers.get(id)
        if id not in image.active or broker is None:
            return ErrorCode.ineligible_replica
        if epoch not in (NO_EPOCH, broker.broker_epoch):
            return ErrorCode.ineligible_replica
    return None
