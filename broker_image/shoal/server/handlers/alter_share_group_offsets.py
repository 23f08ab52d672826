"""AlterShareGroupOffsets: set the start offsets of an empty share group (KIP-932).

As in Kafka, a group that does not exist is created when the request names a topic that exists.
Admin clients convert earliest, latest and timestamps to offsets first. Shoal's clients may also ask
the leaders, in a tagged field, to release keys that dead-lettered records block.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shoal.metadata.image import TopicImage
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    if not request.body.group_id:
        raise ApiError(ErrorCode.invalid_group_id, "The group id is empty.")
    if any(getattr(e, "freed_offsets", ()) for t in request.body.topics for e in t.partitions):
        return asyncio.ensure_future(_free(broker, request))
    return asyncio.ensure_future(_alter(broker, request))


async def _free(broker: Broker, request: Request) -> Mapping[str, Any]:
    body, permits = request.body, authorization.each(broker, request, ResourceType.TOPIC)
    responses = []
    for asked in body.topics:
        topic = broker.image.topics.get(asked.topic_name)
        results = []
        for entry in asked.partitions:
            index = entry.partition_index
            ranges = [(x.first_offset, x.last_offset) for x in entry.freed_offsets]
            try:
                if not permits(asked.topic_name):
                    raise ApiError(ErrorCode.topic_authorization_failed)
                if topic is None:
                    raise ApiError(ErrorCode.unknown_topic_or_partition)
                await broker.share.admin.free(body.group_id, topic.topic_id, index, ranges)
                results.append({"partition_index": index, "error_code": ErrorCode.none})
            except ApiError as refused:
                results.append(
                    {
                        "partition_index": index,
                        "error_code": refused.code,
                        "error_message": refused.message,
                    }
                )
        topic_id = _shown_id(topic, permits(asked.topic_name))
        responses.append(
            {"topic_name": asked.topic_name, "topic_id": topic_id, "partitions": results}
        )
    return {"error_code": ErrorCode.none, "responses": responses}


def _shown_id(topic: TopicImage | None, permitted: bool) -> UUID | None:
    """The id of a topic in the response. It would show that the topic exists."""
    return topic.topic_id if topic is not None and permitted else None


async def _alter(broker: Broker, request: Request) -> Mapping[str, Any]:
    body, permits = request.body, authorization.each(broker, request, ResourceType.TOPIC)
    offsets: dict[UUID, dict[int, int]] = {}
    for asked in body.topics:
        topic = broker.image.topics.get(asked.topic_name)
        if topic is None or not permits(asked.topic_name):
            continue
        starts = offsets.setdefault(topic.topic_id, {})
        for entry in asked.partitions:
            if 0 <= entry.partition_index < len(topic.partitions):
                if entry.start_offset < NONE:
                    raise ApiError(
                        ErrorCode.invalid_request,
                        f"{asked.topic_name}-{entry.partition_index} cannot start at"
                        f" {entry.start_offset}",
                    )
                starts[entry.partition_index] = entry.start_offset
    done = await broker.share.admin.set_offsets(body.group_id, offsets)
    # A topic that is twice in the request is once in the response, as in Kafka.
    results: dict[str, list[dict[str, Any]]] = {}
    ids: dict[str, UUID | None] = {}
    for asked in body.topics:
        topic = broker.image.topics.get(asked.topic_name)
        topic_id = ids[asked.topic_name] = _shown_id(topic, permits(asked.topic_name))
        results.setdefault(asked.topic_name, []).extend(
            {"partition_index": entry.partition_index}
            | (
                _result(topic_id, entry.partition_index, offsets, done)
                if permits(asked.topic_name)
                else {"error_code": ErrorCode.topic_authorization_failed}
            )
            for entry in asked.partitions
        )
    responses = [
        {"topic_name": name, "topic_id": ids[name], "partitions": results[name]} for name in results
    ]
    return {"error_code": ErrorCode.none, "responses": responses}


def _result(
    topic_id: UUID | None,
    index: int,
    asked: Mapping[UUID, Mapping[int, int]],
    done: set[tuple[UUID, int]],
) -> dict[str, Any]:
    if topic_id is None or index not in asked.get(topic_id, ()):
        message = "This server does not host this topic-partition."
        return {"error_code": ErrorCode.unknown_topic_or_partition, "error_message": message}
    if (topic_id, index) not in done:
        message = "The share coordinator did not take the offset; try again."
        return {"error_code": ErrorCode.coordinator_not_available, "error_message": message}
    return {"error_code": ErrorCode.none}
