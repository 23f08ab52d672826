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
        found = broker.image.topics.get(topic.name)
        code, there = ErrorCode.unknown_topic_or_partition, range(0)
        if not permits(topic.name):
            code = ErrorCode.topic_authorization_failed
        elif found is not None:
            there = range(len(found.partitions))
        if taken := [p for p in partitions if p in there]:
            known.append((topic.name, taken))
        if left := [p for p in partitions if p not in there]:
            results = [{"partition_index": p, "error_code": code} for p in left]
            refused.append({"name": topic.name, "partitions": results})
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, _now_ms, token: shard.offsets.delete(body.group_id, known, token),
    )
    return mapped(reply, lambda r: {**r, "topics": [*r["topics"], *refused]})
