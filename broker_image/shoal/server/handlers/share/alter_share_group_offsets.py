"""AlterShareGroupOffsets: set the start offsets of an empty share group (KIP-932).

As in Kafka, a group that does not exist is created when the request names a topic that exists.
Admin clients convert earliest, latest and timestamps to offsets first. Shoal's clients may also ask
the leaders, in tagged fields, to release keys that dead-lettered records block, and to cancel
records.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import CANCELLED_MAX
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from uuid import UUID

    from shoal.metadata.image import TopicImage
    from shoal.protocol.responses import share as wire
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> asyncio.Future[wire.AlterShareGroupOffsetsResponse]:
    if not request.body.group_id:
        raise ApiError(ErrorCode.invalid_group_id, "The group id is empty.")
    entries = [entry for topic in request.body.topics for entry in topic.partitions]
    if any(getattr(entry, "cancelled_offsets", ()) for entry in entries):
        _check_cancelled_offsets(entries)
        return asyncio.ensure_future(_ask_leaders(broker, request, _cancel))
    if any(getattr(entry, "freed_offsets", ()) for entry in entries):
        return asyncio.ensure_future(_ask_leaders(broker, request, _free))
    return asyncio.ensure_future(_alter(broker, request))


def _check_cancelled_offsets(entries: Iterable[Any]) -> None:
    """Raise INVALID_REQUEST for a range that is none, and for too many offsets."""
    count = 0
    for entry in entries:
        for offsets in getattr(entry, "cancelled_offsets", ()):
            if not 0 <= offsets.first_offset <= offsets.last_offset:
                raise ApiError(
                    ErrorCode.invalid_request,
                    f"{offsets.first_offset} to {offsets.last_offset} is not a range of offsets.",
                )
            count += offsets.last_offset - offsets.first_offset + 1
    if count > CANCELLED_MAX:
        raise ApiError(
            ErrorCode.invalid_request,
            f"A request may cancel {CANCELLED_MAX} offsets at most, not {count}. Send several.",
        )


async def _free(
    broker: Broker, group_id: str, topic_id: UUID, entry: Any
) -> wire.AlterShareGroupOffsetsResponsePartition:
    ranges = [(x.first_offset, x.last_offset) for x in getattr(entry, "freed_offsets", ())]
    await broker.share.admin.free(group_id, topic_id, entry.partition_index, ranges)
    return {}


async def _cancel(
    broker: Broker, group_id: str, topic_id: UUID, entry: Any
) -> wire.AlterShareGroupOffsetsResponsePartition:
    records = await broker.share.admin.cancel(
        group_id,
        topic_id,
        entry.partition_index,
        [(x.first_offset, x.last_offset) for x in getattr(entry, "cancelled_offsets", ())],
        dead_letter=getattr(entry, "dead_letter", False),
    )
    return {
        "cancelled": [
            {"first_offset": first, "last_offset": last, "outcome": outcome}
            for first, last, outcome in records
        ]
    }


async def _ask_leaders(
    broker: Broker,
    request: Request,
    act: Callable[
        [Broker, str, UUID, Any], Awaitable[wire.AlterShareGroupOffsetsResponsePartition]
    ],
) -> wire.AlterShareGroupOffsetsResponse:
    """Act on each share partition of a request. `act` returns fields of its answer."""
    body, permits = request.body, authorization.make_checker(broker, request, ResourceType.TOPIC)
    topics: list[wire.AlterShareGroupOffsetsResponseTopic] = []
    for requested in body.topics:
        topic = broker.image.topics.get(requested.topic_name)
        results: list[wire.AlterShareGroupOffsetsResponsePartition] = []
        for entry in requested.partitions:
            index = entry.partition_index
            try:
                if not permits(requested.topic_name):
                    raise ApiError(ErrorCode.topic_authorization_failed)
                if topic is None:
                    raise ApiError(ErrorCode.unknown_topic_or_partition)
                fields = await act(broker, body.group_id, topic.topic_id, entry)
                results.append({**fields, "partition_index": index, "error_code": ErrorCode.none})
            except ApiError as refused:
                results.append(
                    {
                        "partition_index": index,
                        "error_code": refused.code,
                        "error_message": refused.message,
                    }
                )
        topic_id = _get_visible_id(topic, permits(requested.topic_name))
        topics.append(
            {"topic_name": requested.topic_name, "topic_id": topic_id, "partitions": results}
        )
    return {"error_code": ErrorCode.none, "responses": topics}


def _get_visible_id(topic: TopicImage | None, permitted: bool) -> UUID | None:
    """The id of a topic in the response. It would show that the topic exists."""
    return topic.topic_id if topic is not None and permitted else None


async def _alter(broker: Broker, request: Request) -> wire.AlterShareGroupOffsetsResponse:
    body, permits = request.body, authorization.make_checker(broker, request, ResourceType.TOPIC)
    offsets: dict[UUID, dict[int, int]] = {}
    for requested in body.topics:
        topic = broker.image.topics.get(requested.topic_name)
        if topic is None or not permits(requested.topic_name):
            continue
        starts = offsets.setdefault(topic.topic_id, {})
        for entry in requested.partitions:
            if 0 <= entry.partition_index < len(topic.partitions):
                if entry.start_offset < NONE:
                    raise ApiError(
                        ErrorCode.invalid_request,
                        f"{requested.topic_name}-{entry.partition_index} cannot start at"
                        f" {entry.start_offset}",
                    )
                starts[entry.partition_index] = entry.start_offset
    altered = await broker.share.admin.set_offsets(body.group_id, offsets)
    # A topic that is twice in the request is once in the response, as in Kafka.
    results: dict[str, list[wire.AlterShareGroupOffsetsResponsePartition]] = {}
    ids: dict[str, UUID | None] = {}
    for requested in body.topics:
        topic = broker.image.topics.get(requested.topic_name)
        topic_id = ids[requested.topic_name] = _get_visible_id(topic, permits(requested.topic_name))
        results.setdefault(requested.topic_name, []).extend(
            _build_result(topic_id, entry.partition_index, offsets, altered)
            if permits(requested.topic_name)
            else {
                "partition_index": entry.partition_index,
                "error_code": ErrorCode.topic_authorization_failed,
            }
            for entry in requested.partitions
        )
    topics: list[wire.AlterShareGroupOffsetsResponseTopic] = [
        {"topic_name": name, "topic_id": ids[name], "partitions": results[name]} for name in results
    ]
    return {"error_code": ErrorCode.none, "responses": topics}


def _build_result(
    topic_id: UUID | None,
    index: int,
    offsets: Mapping[UUID, Mapping[int, int]],
    altered: set[tuple[UUID, int]],
) -> wire.AlterShareGroupOffsetsResponsePartition:
    if topic_id is None or index not in offsets.get(topic_id, ()):
        message = "This server does not host this topic-partition."
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": message,
        }
    if (topic_id, index) not in altered:
        message = "The share coordinator did not take the offset; try again."
        return {
            "partition_index": index,
            "error_code": ErrorCode.coordinator_not_available,
            "error_message": message,
        }
    return {"partition_index": index, "error_code": ErrorCode.none}
