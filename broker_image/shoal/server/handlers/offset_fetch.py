"""OffsetFetch: the committed offsets of groups; topic ids since version 10 (KIP-848).

Since version 8 a request may have several groups (KIP-709). In version 1 only partitions can have
an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.group.offsets import TopicQuery
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import Outcome, combined, refused

if TYPE_CHECKING:
    import asyncio

    from shoal.coordinator.group.shard import GroupShard
    from shoal.metadata.image import MetadataImage
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import Answer, Body, Request

GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10
Fields = Mapping[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    version, image = request.version, broker.image
    groups = request.body.groups if version >= GROUPS_SINCE else (request.body,)
    stable = getattr(request.body, "require_stable", False)
    permits = authorization.each(broker, request, ResourceType.GROUP)
    describes = authorization.each(broker, request, ResourceType.TOPIC)
    replies = [
        _ask(broker, group, version, stable, describes)
        if permits(group.group_id)
        else refused(ErrorCode.group_authorization_failed)
        for group in groups
    ]

    def answer(outcomes: list[Outcome]) -> Body:
        results = [
            _result(image, group, outcome, version, describes)
            for group, outcome in zip(groups, outcomes, strict=True)
        ]
        return {"groups": results} if version >= GROUPS_SINCE else results[0]

    return combined(replies, answer)


def _ask(
    broker: Broker, group: Any, version: int, stable: bool, describes: Permits
) -> asyncio.Future[Fields]:
    queries = _queries(broker.image, group.topics, version, describes)
    member_id = getattr(group, "member_id", None)
    member_epoch = getattr(group, "member_epoch", -1)

    def decide(shard: GroupShard, _now_ms: int, token: Token) -> Result:
        fetched = shard.offsets.fetch(
            group.group_id,
            queries,
            member_id=member_id,
            member_epoch=member_epoch,
            require_stable=stable,
            key_ranges_wanted=getattr(group, "key_ranges_wanted", False),
        )
        return Result((), (Reply(token, fetched),))

    return broker.groups.submit(group.group_id, decide)


def _queries(
    image: MetadataImage, topics: Sequence[Any] | None, version: int, describes: Permits
) -> list[TopicQuery] | None:
    """The topics for the shard, without unknown topic ids and those that the client may not
    describe; None for all topics."""
    if topics is None:
        return None
    queries = []
    for asked in topics:
        if version >= TOPIC_IDS_SINCE:
            topic = image.topic_by_id(asked.topic_id)
        else:
            topic = image.topics.get(asked.name)
        name = asked.name if version < TOPIC_IDS_SINCE else "" if topic is None else topic.name
        if name and not describes(name):
            continue
        if topic is not None:
            queries.append(TopicQuery(topic.name, topic.topic_id, asked.partition_indexes))
        elif version < TOPIC_IDS_SINCE:
            queries.append(TopicQuery(asked.name, None, asked.partition_indexes))
    return queries


def _result(
    image: MetadataImage, group: Any, outcome: Outcome, version: int, describes: Permits
) -> Fields:
    """The response for one group."""
    if isinstance(outcome, ApiError):
        topics = [_none(asked, outcome.code) for asked in group.topics or ()] if version < 2 else ()
        return {"group_id": group.group_id, "topics": topics, "error_code": outcome.code}
    topics = []
    for topic in outcome["topics"]:
        if version < TOPIC_IDS_SINCE:
            topics.append(topic)
        elif (known := image.topics.get(topic["name"])) is not None:
            topics.append({**topic, "topic_id": known.topic_id})
    if group.topics is None:
        return {**outcome, "topics": [topic for topic in topics if describes(topic["name"])]}
    return {**outcome, "topics": topics + _refused(image, group.topics, version, describes)}


def _refused(
    image: MetadataImage, topics: Sequence[Any], version: int, describes: Permits
) -> list[Fields]:
    """The topics of a request that the client may not describe, or whose ids are unknown."""
    results = []
    for asked in topics:
        if version < TOPIC_IDS_SINCE:
            name = asked.name
        else:
            known = image.topic_by_id(asked.topic_id)
            if known is None:
                results.append(_none(asked, ErrorCode.unknown_topic_id))
                continue
            name = known.name
        if not describes(name):
            results.append(_none(asked, ErrorCode.topic_authorization_failed))
    return results


def _none(asked: Any, error: ErrorCode) -> Fields:
    """A topic without an offset for any partition."""
    partitions = [
        {
            "partition_index": p,
            "committed_offset": -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": error,
        }
        for p in asked.partition_indexes
    ]
    name = getattr(asked, "name", "")
    return {"name": name, "topic_id": getattr(asked, "topic_id", None), "partitions": partitions}
