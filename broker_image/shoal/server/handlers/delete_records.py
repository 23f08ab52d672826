"""DeleteRecords: advance the log start offset to the requested offset (KIP-107)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import absence

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

#: The offset that requests deletion up to the high watermark.
HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def handle(broker: Broker, request: Request) -> Answer:
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _delete(broker, topic.name, asked.partition_index, asked.offset)
                    if permits(topic.name)
                    else _refused(asked.partition_index)
                    for asked in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _refused(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "low_watermark": NO_LOW_WATERMARK,
        "error_code": ErrorCode.topic_authorization_failed,
    }


def _delete(broker: Broker, topic: str, index: int, offset: int) -> dict[str, Any]:
    partition = broker.partitions.by_name(topic, index)
    code: ErrorCode | None = None
    low_watermark = NO_LOW_WATERMARK
    if partition is None:
        code, _ = absence(broker.image, topic, None, index)
    elif not partition.is_leader:
        code = ErrorCode.not_leader_or_follower
    elif broker.is_internal(topic):
        code = ErrorCode.invalid_topic_exception
    elif partition.log.config.compact and not partition.log.config.delete:
        # A compacted topic keeps the last value of each key, so it cannot be deleted by offset.
        code = ErrorCode.policy_violation
    else:
        wanted = partition.high_watermark if offset == HIGH_WATERMARK else offset
        try:
            low_watermark = partition.delete_records(wanted)
            broker.directory.checkpoint_log_starts()
        except OffsetOutOfRange:
            code = ErrorCode.offset_out_of_range
        except (OSError, LogOffline):
            code = ErrorCode.kafka_storage_error
    return {
        "partition_index": index,
        "low_watermark": low_watermark,
        "error_code": code or ErrorCode.none,
    }
