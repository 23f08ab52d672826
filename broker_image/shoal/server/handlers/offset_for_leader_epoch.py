"""OffsetForLeaderEpoch: the end offset of a leader epoch (KIP-101, KIP-320).

Clients and followers use it to find the offset at which their log diverges from the leader's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import absence

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _entry(broker, topic.topic, asked, permits(topic.topic))
                    for asked in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _entry(broker: Broker, topic: str, asked: Any, permitted: bool) -> dict[str, Any]:
    partition = broker.partitions.by_name(topic, asked.partition)
    epoch = end_offset = -1
    code: ErrorCode | None
    if not permitted:
        code = ErrorCode.topic_authorization_failed
    elif partition is None:
        code = absence(broker.image, topic, None, asked.partition)[0]
    else:
        code = partition.epoch_error(asked.current_leader_epoch)
        if code is None:
            epoch, end_offset = partition.end_offset_for_epoch(asked.leader_epoch)
    return {
        "error_code": code or ErrorCode.none,
        "partition": asked.partition,
        "leader_epoch": epoch,
        "end_offset": end_offset,
    }
