"""DescribeShareGroupOffsets: start offset and lag of share partitions (KIP-932, KIP-1226).

Lag is the log's end less the start offset less what is complete behind it, so records in flight
count; -1 where the group has not begun to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.group.share_group import ShareGroup
from shoal.coordinator.share.state_store import NONE
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server import share_admin
from shoal.server.api import Answer, Request

if TYPE_CHECKING:
    from shoal.server.broker import Broker

_Entry = dict[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    async def all_groups() -> Mapping[str, Any]:
        return {"groups": [await _group(broker, group) for group in request.body.groups]}

    return asyncio.ensure_future(all_groups())


async def _group(broker: Broker, asked: Any) -> _Entry:
    group_id = asked.group_id
    try:
        if asked.topics is None:
            wanted = await _initialized(broker, group_id)
        else:
            wanted = {topic.topic_name: list(topic.partitions) for topic in asked.topics}
    except ApiError as refused:
        return {
            "group_id": group_id,
            "topics": [],
            "error_code": refused.code,
            "error_message": refused.message,
        }
    topics = [await _topic(broker, group_id, name, wanted[name]) for name in wanted]
    return {"group_id": group_id, "topics": topics, "error_code": ErrorCode.none}


async def _initialized(broker: Broker, group_id: str) -> dict[str, list[int]]:
    """The partitions that the group has state of. Raises `ApiError`."""

    def look(shard: GroupShard, now_ms: int, token: Token) -> Result:
        group = shard.context.groups.find_of(group_id, ShareGroup)
        known = group.initialization.initialized
        return Result(
            (), (Reply(token, {named.name: sorted(named.partitions) for named in known.values()}),)
        )

    found: dict[str, list[int]] = await broker.groups.submit(group_id, look)
    return {name: found[name] for name in sorted(found) if name in broker.image.topics}


async def _topic(broker: Broker, group_id: str, name: str, indexes: list[int]) -> _Entry:
    topic = broker.image.topics.get(name)
    if topic is None:
        rows = [{"partition_index": i, "start_offset": NONE, "lag": NONE} for i in indexes]
        return {"topic_name": name, "topic_id": None, "partitions": rows}
    found = await share_admin.summaries(
        broker.share, group_id, [(topic.topic_id, index) for index in indexes]
    )
    rows = [_partition(broker, topic.topic_id, i, found[(topic.topic_id, i)]) for i in indexes]
    return {"topic_name": name, "topic_id": topic.topic_id, "partitions": rows}


def _partition(broker: Broker, topic_id: UUID, index: int, summary: Mapping[str, Any]) -> _Entry:
    row: _Entry = {"partition_index": index, "start_offset": NONE, "leader_epoch": 0, "lag": NONE}
    if summary["error_code"]:
        return row
    start_offset, complete = summary["start_offset"], summary["delivery_complete_count"]
    row["start_offset"], row["leader_epoch"] = start_offset, summary["leader_epoch"]
    partition = broker.partitions.get(topic_id, index)
    if NONE not in (start_offset, complete) and partition is not None:
        row["lag"] = partition.high_watermark - start_offset - complete
    return row
