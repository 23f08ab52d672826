"""DeleteRecords: advance the log start offset to the requested offset (KIP-107)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import missing_partition_error

if TYPE_CHECKING:
    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

#: The offset that requests deletion up to the high watermark.
HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def handle(broker: Broker, request: Request) -> responses.DeleteRecordsResponse:
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    topics: list[responses.DeleteRecordsTopicResult] = [
        {
            "name": topic.name,
            "partitions": [
                _delete(broker, topic.name, partition.partition_index, partition.offset)
                if permits(topic.name)
                else _build_refusal(partition.partition_index)
                for partition in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    results = [result for topic in topics for result in topic["partitions"]]
    deleted = [result for result in results if not result["error_code"]]
    try:
        if deleted:
            broker.directory.checkpoint_log_starts()  # One file for all logs, which is synced.
    except OSError:
        for result in deleted:
            result["error_code"] = ErrorCode.kafka_storage_error
    return {"topics": topics}


def _build_refusal(index: int) -> responses.DeleteRecordsPartitionResult:
    return {
        "partition_index": index,
        "low_watermark": NO_LOW_WATERMARK,
        "error_code": ErrorCode.topic_authorization_failed,
    }


def _delete(
    broker: Broker, topic: str, index: int, offset: int
) -> responses.DeleteRecordsPartitionResult:
    partition = broker.partitions.find_by_name(topic, index)
    code: ErrorCode | None = None
    low_watermark = NO_LOW_WATERMARK
    if partition is None:
        code, _ = missing_partition_error(broker.image, topic, None, index)
    elif not partition.is_leader:
        code = ErrorCode.not_leader_or_follower
    elif broker.is_internal(topic):
        code = ErrorCode.invalid_topic_exception
    elif partition.log.config.compact and not partition.log.config.delete:
        # A compacted topic keeps the last value of each key, so it cannot be deleted by offset.
        code = ErrorCode.policy_violation
    else:
        target_offset = partition.high_watermark if offset == HIGH_WATERMARK else offset
        try:
            low_watermark = partition.delete_records(target_offset)
        except OffsetOutOfRange:
            code = ErrorCode.offset_out_of_range
        except (OSError, LogOffline):
            code = ErrorCode.kafka_storage_error
    return {
        "partition_index": index,
        "low_watermark": low_watermark,
        "error_code": code or ErrorCode.none,
    }
