"""OffsetDelete: delete offsets of topics without a subscription in the group (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import mapped

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    if not body.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    known: list[tuple[str, list[int]]] = []
    refused: list[dict[str, Any]] = []
    for topic in body.topics:
        partitions = [p.partition_index for p in topic.partitions]
        if permits(topic.name) and topic.name in broker.image.topics:
            known.append((topic.name, partitions))
            continue
        code = ErrorCode.unknown_topic_or_partition
        if not permits(topic.name):
            code = ErrorCode.topic_authorization_failed
        rows = [{"partition_index": p, "error_code": code} for p in partitions]
        refused.append({"name": topic.name, "partitions": rows})
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, _now_ms, token: shard.offsets.delete(body.group_id, known, token),
    )
    return mapped(reply, lambda r: {**r, "topics": [*r["topics"], *refused]})
