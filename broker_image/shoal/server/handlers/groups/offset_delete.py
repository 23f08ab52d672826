"""OffsetDelete: delete offsets of topics without a subscription in the group (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import map_reply

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.OffsetDeleteResponse]:
    body = request.body
    if not body.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    existing: list[tuple[str, list[int]]] = []
    refused: list[responses.OffsetDeleteResponseTopic] = []
    for topic in body.topics:
        partitions = [p.partition_index for p in topic.partitions]
        image_topic = broker.image.topics.get(topic.name)
        code, indexes = ErrorCode.unknown_topic_or_partition, range(0)
        if not permits(topic.name):
            code = ErrorCode.topic_authorization_failed
        elif image_topic is not None:
            indexes = range(len(image_topic.partitions))
        if accepted := [p for p in partitions if p in indexes]:
            existing.append((topic.name, accepted))
        if unknown := [p for p in partitions if p not in indexes]:
            results: list[responses.OffsetDeleteResponsePartition] = [
                {"partition_index": p, "error_code": code} for p in unknown
            ]
            refused.append({"name": topic.name, "partitions": results})
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, _now_ms, token: shard.offsets.delete(body.group_id, existing, token),
    )

    def respond(response: responses.OffsetDeleteResponse) -> responses.OffsetDeleteResponse:
        return {**response, "topics": [*response["topics"], *refused]}

    return map_reply(reply, respond)
