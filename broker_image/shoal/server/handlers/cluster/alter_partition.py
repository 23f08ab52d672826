"""AlterPartition: a leader changes the in-sync replicas of its partitions (KIP-497, KIP-903)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.alter_partition import NO_EPOCH, AlterPartitionItem, alter_partition
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.metadata.alter_partition import AlteredPartition
    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


#: The first version with broker epochs in the ISR (KIP-903).
_EPOCHS_FROM = 3


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.AlterPartitionResponse]:
    body = request.body
    wishes = [
        AlterPartitionItem(
            topic.topic_id,
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            _parse_isr(partition, request.version),
            partition.leader_recovery_state,
        )
        for topic in body.topics
        for partition in topic.partitions
    ]
    return broker.metadata.submit(
        lambda image: alter_partition(image, body.broker_id, body.broker_epoch, wishes),
        _build_response,
    )


def _parse_isr(partition: Any, version: int) -> tuple[tuple[int, int], ...]:
    if version < _EPOCHS_FROM:
        return tuple((id, NO_EPOCH) for id in partition.new_isr)
    return tuple((state.broker_id, state.broker_epoch) for state in partition.new_isr_with_epochs)


def _build_response(results: Sequence[AlteredPartition]) -> responses.AlterPartitionResponse:
    topics: dict[UUID | None, list[responses.AlterPartitionPartitionData]] = {}
    for topic_id, result in results:
        topics.setdefault(topic_id, []).append(result)
    return {
        "error_code": ErrorCode.none,
        "topics": [{"topic_id": id, "partitions": partitions} for id, partitions in topics.items()],
    }
