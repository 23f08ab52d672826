"""DescribeShareGroupOffsets: start offset and lag of share partitions (KIP-932, KIP-1226).

The lag is the high watermark minus the start offset minus the complete records after it, so
records in flight count. It is -1 if the group has not begun to read, or if the partition's leader
does not answer. The high watermark is the leader's, since the group's coordinator may have no
replica, or one that is behind.

A tagged field of Shoal has the dead-lettered records that block their keys. Other clients ignore
it. Shoal's client may also ask a partition's leader, in a tagged field, for its records in flight.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.handlers.records.log_ends import fetch_high_watermarks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.group.shard import GroupShard
    from shoal.metadata.image import TopicImage
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import Request

#: Ranges of records in flight in one answer, about 50 bytes each. The client asks for more.
IN_FLIGHT_MAX = 1_000


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.DescribeShareGroupOffsetsResponse]:
    async def describe_all() -> responses.DescribeShareGroupOffsetsResponse:
        permits = authorization.make_checker(broker, request, ResourceType.GROUP)
        describes = authorization.make_checker(broker, request, ResourceType.TOPIC)
        unauthorized = ApiError(ErrorCode.group_authorization_failed)
        lists = any(_get_in_flight_from(t) for g in request.body.groups for t in g.topics or ())
        answer = (
            _InFlightPages(broker, describes).describe_group
            if lists
            else partial(_describe_group, broker, describes)
        )
        return {
            "groups": [
                await answer(group)
                if permits(group.group_id)
                else _build_refusal(group.group_id, unauthorized)
                for group in request.body.groups
            ]
        }

    return asyncio.ensure_future(describe_all())


def refuse(
    request: Request, code: ErrorCode, message: str | None
) -> responses.DescribeShareGroupOffsetsResponse:
    error = ApiError(code, message)
    return {"groups": [_build_refusal(group.group_id, error) for group in request.body.groups]}


def _build_refusal(
    group_id: str, error: ApiError
) -> responses.DescribeShareGroupOffsetsResponseGroup:
    return {
        "group_id": group_id,
        "topics": [],
        "error_code": error.code,
        "error_message": error.message,
    }


async def _describe_group(
    broker: Broker, describes: Permits, group: Any
) -> responses.DescribeShareGroupOffsetsResponseGroup:
    group_id = group.group_id
    unauthorized: list[responses.DescribeShareGroupOffsetsResponseTopic] = []
    try:
        if group.topics is None:
            initialized = await _find_initialized(broker, group_id)
            requested = {name: initialized[name] for name in initialized if describes(name)}
        else:
            requested = {}
            for topic in group.topics:
                if describes(topic.topic_name):
                    requested.setdefault(topic.topic_name, []).extend(topic.partitions)
                else:
                    unauthorized.append(_refuse_topic(topic))
    except ApiError as refused:
        return _build_refusal(group_id, refused)
    # A partition that is twice in the request is once in the response, as in Kafka.
    topics = [
        await _describe_topic(broker, group_id, name, list(dict.fromkeys(requested[name])))
        for name in requested
    ]
    return {
        "group_id": group_id,
        "topics": topics + unauthorized,
        "error_code": ErrorCode.none,
    }


class _InFlightPages:
    """Lists records in flight, for all groups of one request within one limit."""

    def __init__(self, broker: Broker, describes: Permits) -> None:
        self._broker = broker
        self._describes = describes
        self._records_left = IN_FLIGHT_MAX

    async def describe_group(self, group: Any) -> responses.DescribeShareGroupOffsetsResponseGroup:
        return {
            "group_id": group.group_id,
            "topics": [
                await self._describe_topic(group.group_id, topic) for topic in group.topics or ()
            ],
            "error_code": ErrorCode.none,
        }

    async def _describe_topic(
        self, group_id: str, requested: Any
    ) -> responses.DescribeShareGroupOffsetsResponseTopic:
        if not self._describes(requested.topic_name):
            return _refuse_topic(requested)
        topic = self._broker.image.topics.get(requested.topic_name)
        starts = chain(_get_in_flight_from(requested), repeat(0))
        partitions = [
            await self._describe_partition(group_id, topic, index, first)
            for index, first in zip(requested.partitions, starts, strict=False)
        ]
        topic_id = None if topic is None else topic.topic_id
        return {"topic_name": requested.topic_name, "topic_id": topic_id, "partitions": partitions}

    async def _describe_partition(
        self, group_id: str, topic: TopicImage | None, index: int, first: int
    ) -> responses.DescribeShareGroupOffsetsResponsePartition:
        result: responses.DescribeShareGroupOffsetsResponsePartition = {
            "partition_index": index,
            "start_offset": NONE,
            "lag": NONE,
        }
        if topic is None:
            return result | {"error_code": ErrorCode.unknown_topic_or_partition}
        if not self._records_left:  # Load no share partition in vain.
            return result | {"next_offset": max(0, first)}
        await asyncio.sleep(0)  # A page takes some milliseconds, and may be asked for many times.
        try:
            records, next_offset = await self._broker.share.admin.list_in_flight(
                group_id, topic.topic_id, index, first, self._records_left
            )
        except ApiError as refused:
            return result | {"error_code": refused.code, "error_message": refused.message}
        self._records_left -= len(records)
        in_flight: Any = [record._asdict() for record in records]
        return result | {
            "in_flight": in_flight,
            "next_offset": NONE if next_offset is None else next_offset,
        }


def _get_in_flight_from(topic: Any) -> Sequence[int]:
    return getattr(topic, "in_flight_from", ())


def _refuse_topic(topic: Any) -> responses.DescribeShareGroupOffsetsResponseTopic:
    """A topic that the client may not describe."""
    results: list[responses.DescribeShareGroupOffsetsResponsePartition] = [
        {
            "partition_index": index,
            "start_offset": NONE,
            "lag": NONE,
            "error_code": ErrorCode.topic_authorization_failed,
            "error_message": "Topic authorization failed.",
        }
        for index in topic.partitions
    ]
    return {"topic_name": topic.topic_name, "topic_id": None, "partitions": results}


async def _find_initialized(broker: Broker, group_id: str) -> dict[str, list[int]]:
    """Return the partitions that the group has state of, by topic.

    A group that does not exist, or that is no share group, has none, as in Kafka.
    Raises `ApiError`.
    """

    def decide(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
        return CoordinatorResult(
            (), (Reply(token, shard.share.get_initialized_partitions(group_id)),)
        )

    partitions: dict[str, list[int]] = await broker.groups.submit(group_id, decide)
    return {name: partitions[name] for name in sorted(partitions) if name in broker.image.topics}


async def _describe_topic(
    broker: Broker, group_id: str, name: str, indexes: list[int]
) -> responses.DescribeShareGroupOffsetsResponseTopic:
    topic = broker.image.topics.get(name)
    if topic is None:
        return {
            "topic_name": name,
            "topic_id": None,
            "partitions": [
                {"partition_index": i, "start_offset": NONE, "lag": NONE} for i in indexes
            ],
        }
    summaries = await broker.share.admin.read_summaries(
        group_id, [(topic.topic_id, index) for index in indexes]
    )
    ends = await fetch_high_watermarks(broker, topic, indexes)
    results = [
        _build_partition(i, summaries[(topic.topic_id, i)], ends.get(i, NONE)) for i in indexes
    ]
    return {"topic_name": name, "topic_id": topic.topic_id, "partitions": results}


def _build_partition(
    index: int, summary: Mapping[str, Any], end: int
) -> responses.DescribeShareGroupOffsetsResponsePartition:
    result: responses.DescribeShareGroupOffsetsResponsePartition = {
        "partition_index": index,
        "start_offset": NONE,
        "leader_epoch": 0,
        "lag": NONE,
    }
    if summary["error_code"]:
        return result
    start_offset, complete = summary["start_offset"], summary["delivery_complete_count"]
    result["start_offset"], result["leader_epoch"] = start_offset, summary["leader_epoch"]
    if summary.get("delays"):
        result["held_offsets"] = [
            {"first_offset": first, "last_offset": last, "delivery_count": count}
            for first, last, count, _ in summary["delays"]
        ]
    if NONE not in (start_offset, complete, end):
        result["lag"] = max(0, end - start_offset - complete)
    return result
