"""OffsetForLeaderEpoch: the end offset of a leader epoch (KIP-101, KIP-320).

Clients and followers use it to find the offset at which their log diverges from the leader's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import missing_partition_error

if TYPE_CHECKING:
    from shoal.protocol.responses import logs as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> responses.OffsetForLeaderEpochResponse:
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _build_entry(broker, topic.topic, partition, permits(topic.topic))
                    for partition in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _build_entry(
    broker: Broker, topic: str, requested: Any, permitted: bool
) -> responses.OffsetForLeaderEpochEpochEndOffset:
    partition = broker.partitions.find_by_name(topic, requested.partition)
    epoch = end_offset = -1
    code: ErrorCode | None
    if not permitted:
        code = ErrorCode.topic_authorization_failed
    elif partition is None:
        code = missing_partition_error(broker.image, topic, None, requested.partition)[0]
    else:
        code = partition.find_epoch_error(requested.current_leader_epoch)
        if code is None:
            epoch, end_offset = partition.find_epoch_end_offset(requested.leader_epoch)
    return {
        "error_code": code or ErrorCode.none,
        "partition": requested.partition,
        "leader_epoch": epoch,
        "end_offset": end_offset,
    }
