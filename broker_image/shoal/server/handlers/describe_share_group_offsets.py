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

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.handlers.log_ends import high_watermarks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.group.shard import GroupShard
    from shoal.metadata.image import TopicImage
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import Answer, Body, Request

_Entry = dict[str, Any]
#: Ranges of records in flight in one answer, about 50 bytes each. The client asks for more.
IN_FLIGHT_MAX = 1_000


def handle(broker: Broker, request: Request) -> Answer:
    async def all_groups() -> Mapping[str, Any]:
        permits = authorization.each(broker, request, ResourceType.GROUP)
        describes = authorization.each(broker, request, ResourceType.TOPIC)
        unauthorized = ApiError(ErrorCode.group_authorization_failed)
        lists = any(_in_flight_from(t) for g in request.body.groups for t in g.topics or ())
        answer = _Pages(broker, describes).group if lists else partial(_group, broker, describes)
        return {
            "groups": [
                await answer(group)
                if permits(group.group_id)
                else _refused(group.group_id, unauthorized)
                for group in request.body.groups
            ]
        }

    return asyncio.ensure_future(all_groups())


def refuse(request: Request, code: ErrorCode, message: str | None) -> Body:
    error = ApiError(code, message)
    return {"groups": [_refused(group.group_id, error) for group in request.body.groups]}


def _refused(group_id: str, error: ApiError) -> _Entry:
    return {
        "group_id": group_id,
        "topics": [],
        "error_code": error.code,
        "error_message": error.message,
    }


async def _group(broker: Broker, describes: Permits, asked: Any) -> _Entry:
    group_id = asked.group_id
    unauthorized: list[_Entry] = []
    try:
        if asked.topics is None:
            found = await _initialized(broker, group_id)
            wanted = {name: found[name] for name in found if describes(name)}
        else:
            wanted = {}
            for topic in asked.topics:
                if describes(topic.topic_name):
                    wanted.setdefault(topic.topic_name, []).extend(topic.partitions)
                else:
                    unauthorized.append(_unauthorized(topic))
    except ApiError as refused:
        return _refused(group_id, refused)
    # A partition that is twice in the request is once in the response, as in Kafka.
    topics = [
        await _topic(broker, group_id, name, list(dict.fromkeys(wanted[name]))) for name in wanted
    ]
    return {
        "group_id": group_id,
        "topics": topics + unauthorized,
        "error_code": ErrorCode.none,
    }


class _Pages:
    """Lists records in flight, for all groups of one request within one limit."""

    def __init__(self, broker: Broker, describes: Permits) -> None:
        self._broker = broker
        self._describes = describes
        self._left = IN_FLIGHT_MAX

    async def group(self, asked: Any) -> _Entry:
        return {
            "group_id": asked.group_id,
            "topics": [await self._topic(asked.group_id, topic) for topic in asked.topics or ()],
            "error_code": ErrorCode.none,
        }

    async def _topic(self, group_id: str, asked: Any) -> _Entry:
        if not self._describes(asked.topic_name):
            return _unauthorized(asked)
        topic = self._broker.image.topics.get(asked.topic_name)
        starts = chain(_in_flight_from(asked), repeat(0))
        results = [
            await self._partition(group_id, topic, index, first)
            for index, first in zip(asked.partitions, starts, strict=False)
        ]
        topic_id = None if topic is None else topic.topic_id
        return {"topic_name": asked.topic_name, "topic_id": topic_id, "partitions": results}

    async def _partition(
        self, group_id: str, topic: TopicImage | None, index: int, first: int
    ) -> _Entry:
        result: _Entry = {"partition_index": index, "start_offset": NONE, "lag": NONE}
        if topic is None:
            return result | {"error_code": ErrorCode.unknown_topic_or_partition}
        if not self._left:  # Load no share partition in vain.
            return result | {"next_offset": max(0, first)}
        try:
            found, next_offset = await self._broker.share.admin.in_flight(
                group_id, topic.topic_id, index, first, self._left
            )
        except ApiError as refused:
            return result | {"error_code": refused.code, "error_message": refused.message}
        self._left -= len(found)
        return result | {
            "in_flight": [one._asdict() for one in found],
            "next_offset": NONE if next_offset is None else next_offset,
        }


def _in_flight_from(topic: Any) -> Sequence[int]:
    return getattr(topic, "in_flight_from", ())


def _unauthorized(asked: Any) -> _Entry:
    """A topic that the client may not describe."""
    results = [
        {
            "partition_index": index,
            "start_offset": NONE,
            "lag": NONE,
            "error_code": ErrorCode.topic_authorization_failed,
            "error_message": "Topic authorization failed.",
        }
        for index in asked.partitions
    ]
    return {"topic_name": asked.topic_name, "topic_id": None, "partitions": results}


async def _initialized(broker: Broker, group_id: str) -> dict[str, list[int]]:
    """Return the partitions that the group has state of, by topic.

    A group that does not exist, or that is no share group, has none, as in Kafka.
    Raises `ApiError`.
    """

    def look(shard: GroupShard, _now_ms: int, token: Token) -> Result:
        return Result((), (Reply(token, shard.share.initialized_partitions(group_id)),))

    found: dict[str, list[int]] = await broker.groups.submit(group_id, look)
    return {name: found[name] for name in sorted(found) if name in broker.image.topics}


async def _topic(broker: Broker, group_id: str, name: str, indexes: list[int]) -> _Entry:
    topic = broker.image.topics.get(name)
    if topic is None:
        results = [{"partition_index": i, "start_offset": NONE, "lag": NONE} for i in indexes]
        return {"topic_name": name, "topic_id": None, "partitions": results}
    found = await broker.share.admin.summaries(
        group_id, [(topic.topic_id, index) for index in indexes]
    )
    ends = await high_watermarks(broker, topic, indexes)
    results = [_partition(i, found[(topic.topic_id, i)], ends.get(i, NONE)) for i in indexes]
    return {"topic_name": name, "topic_id": topic.topic_id, "partitions": results}


def _partition(index: int, summary: Mapping[str, Any], end: int) -> _Entry:
    result: _Entry = {
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
