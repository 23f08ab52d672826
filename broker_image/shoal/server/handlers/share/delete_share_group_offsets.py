"""DeleteShareGroupOffsets: delete the offsets of topics of an empty share group (KIP-932)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.DeleteShareGroupOffsetsResponse]:
    if not request.body.group_id:
        raise ApiError(ErrorCode.invalid_group_id, "The group id is empty.")
    return asyncio.ensure_future(_delete(broker, request))


async def _delete(broker: Broker, request: Request) -> responses.DeleteShareGroupOffsetsResponse:
    body, permits = request.body, authorization.make_checker(broker, request, ResourceType.TOPIC)
    requested = list(dict.fromkeys(topic.topic_name for topic in body.topics))
    names = [name for name in requested if permits(name)]
    topic_ids = {n: broker.image.topics[n].topic_id for n in names if n in broker.image.topics}
    outcomes = await broker.share.admin.delete_state(body.group_id, list(topic_ids.values()))
    results: list[responses.DeleteShareGroupOffsetsResponseTopic] = [
        {
            "topic_name": name,
            "topic_id": None,
            "error_code": ErrorCode.topic_authorization_failed,
            "error_message": "Topic authorization failed.",
        }
        for name in requested
        if name not in names
    ]
    for name in names:
        topic_id = topic_ids.get(name)
        result: responses.DeleteShareGroupOffsetsResponseTopic = {
            "topic_name": name,
            "topic_id": topic_id,
        }
        if topic_id is None:
            result["error_code"] = ErrorCode.unknown_topic_or_partition
            result["error_message"] = "This server does not host this topic-partition."
        elif topic_id not in outcomes:
            result["topic_id"] = None
            result["error_code"] = ErrorCode.unknown_topic_or_partition
            result["error_message"] = "There is no offset information to delete."
        else:
            result["error_code"] = outcomes[topic_id]
        results.append(result)
    return {"error_code": ErrorCode.none, "responses": results}
