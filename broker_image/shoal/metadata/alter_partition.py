"""Changes of the ISR by partition leaders: AlterPartition (KIP-497, KIP-841, KIP-903).

A change names a partition epoch. A request with an older epoch is refused, and the leader learns
the new epoch from the metadata. A replica joins the ISR only with the epoch of its broker's current
registration. So a restarted broker cannot join on the strength of its earlier state. Pure; see
`controller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata import brokers
from shoal.metadata.controller import Decision
from shoal.metadata.delta import changed_partition
from shoal.metadata.partition_changes import RECOVERED, RECOVERING, change, settled, view_of
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from shoal.metadata.image import MetadataImage, PartitionImage

#: The epoch in requests without broker epochs (v2), and of replicas whose epoch is unknown.
NO_EPOCH = -1


class Wish(NamedTuple):
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


def alter_partition(
    image: MetadataImage, broker_id: int, broker_epoch: int, wishes: Iterable[Wish]
) -> Decision:
    """Change the ISRs. The response has a result for each request.

    Raises `ApiError` with STALE_BROKER_EPOCH.
    """
    brokers.checked(image, broker_id, broker_epoch)
    records, results = [], []
    for wish in wishes:
        topic = image.topic_by_id(wish.topic_id)
        partition = None
        if topic is not None and 0 <= wish.partition_index < len(topic.partitions):
            partition = topic.partitions[wish.partition_index]
        error = _refusal(image, broker_id, wish, partition)
        result: dict[str, Any] = {
            "topic_id": wish.topic_id,
            "partition_index": wish.partition_index,
        }
        if topic is None:
            error = ErrorCode.unknown_topic_id
        if error is not None or topic is None or partition is None:
            results.append(result | {"error_code": error, "leader_id": -1, "leader_epoch": -1})
            continue
        isr = tuple(id for id, _ in wish.isr)
        wished = partition._replace(leader_recovery_state=wish.leader_recovery_state)
        after = settled(wished, view_of(image, topic.name), isr=isr)
        record = change(topic.topic_id, wish.partition_index, partition, after)
        if record is not None:
            records.append(record)
            after = changed_partition(partition, record.fields)
        results.append(result | _result(broker_id, wish, after))
    return Decision(records, results)


def _result(broker_id: int, wish: Wish, after: PartitionImage) -> dict[str, Any]:
    if after.leader_epoch != wish.leader_epoch:
        # The change elected another leader or completed a reassignment.
        error = ErrorCode.fenced_leader_epoch
        if after.leader != broker_id:
            error = ErrorCode.new_leader_elected
        return {"error_code": error, "leader_id": -1, "leader_epoch": -1}
    return {
        "error_code": ErrorCode.none,
        "leader_id": after.leader,
        "leader_epoch": after.leader_epoch,
        "isr": after.isr,
        "leader_recovery_state": after.leader_recovery_state,
        "partition_epoch": after.partition_epoch,
    }


def _refusal(
    image: MetadataImage, broker_id: int, wish: Wish, partition: PartitionImage | None
) -> ErrorCode | None:
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    if (
        wish.leader_epoch > partition.leader_epoch
        or wish.partition_epoch > partition.partition_epoch
    ):
        return ErrorCode.not_controller  # The sender has newer metadata than this node.
    if wish.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    ids = [id for id, _ in wish.isr]
    if partition.leader != broker_id:
        return ErrorCode.invalid_request
    if wish.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    if (
        broker_id not in ids
        or len(set(ids)) < len(ids)
        or not set(ids) <= set(partition.replicas)
        or (wish.leader_recovery_state == RECOVERING and len(ids) > 1)
        or (
            wish.leader_recovery_state == RECOVERING
            and partition.leader_recovery_state == RECOVERED
        )
    ):
        return ErrorCode.invalid_request
    for id, epoch in wish.isr:
        known = image.brokers.get(id)
        if id not in image.active or known is None:
            return ErrorCode.ineligible_replica
        if epoch not in (NO_EPOCH, known.broker_epoch):
            return ErrorCode.ineligible_replica
    return None
