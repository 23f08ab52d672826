"""OffsetFetch: the committed offsets of groups; topic ids since version 10 (KIP-848).

Since version 8 a request may have several groups (KIP-709). In version 1 only partitions can have
an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.offsets.requests import TopicQuery
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import Outcome, combine_replies, make_refusal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from shoal.coordinator.group.shard import GroupShard
    from shoal.metadata.image import MetadataImage
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import BodyOrFuture, Request

GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.OffsetFetchResponse]:
    version, image = request.version, broker.image
    groups = request.body.groups if version >= GROUPS_SINCE else (request.body,)
    stable = getattr(request.body, "require_stable", False)
    permits = authorization.make_checker(broker, request, ResourceType.GROUP)
    describes = authorization.make_checker(broker, request, ResourceType.TOPIC)
    replies = [
        _ask(broker, group, version, stable, describes)
        if permits(group.group_id)
        else make_refusal(ErrorCode.group_authorization_failed)
        for group in groups
    ]

    def answer(outcomes: list[Outcome]) -> responses.OffsetFetchResponse:
        results = [
            _build_result(image, group, outcome, version, describes)
            for group, outcome in zip(groups, outcomes, strict=True)
        ]
        if version >= GROUPS_SINCE:
            return {"groups": results}
        (only,) = results
        older = cast("Sequence[responses.OffsetFetchResponseTopic]", only["topics"])
        return {"topics": older, "error_code": only["error_code"]}

    return combine_replies(replies, answer)


def _ask(
    broker: Broker, group: Any, version: int, stable: bool, describes: Permits
) -> asyncio.Future[responses.OffsetFetchResponseGroup]:
    queries = _build_queries(broker.image, group.topics, version, describes)
    member_id = getattr(group, "member_id", None)
    member_epoch = getattr(group, "member_epoch", -1)

    def decide(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
        fetched = shard.offsets.fetch(
            group.group_id,
            queries,
            member_id=member_id,
            member_epoch=member_epoch,
            require_stable=stable,
            key_ranges_wanted=getattr(group, "key_ranges_wanted", False),
        )
        return CoordinatorResult((), (Reply(token, fetched),))

    return broker.groups.submit(group.group_id, decide)


def _build_queries(
    image: MetadataImage, topics: Sequence[Any] | None, version: int, describes: Permits
) -> list[TopicQuery] | None:
    """The topics for the shard, without unknown topic ids and those that the client may not
    describe; None for all topics."""
    if topics is None:
        return None
    queries = []
    for requested in topics:
        if version >= TOPIC_IDS_SINCE:
            topic = image.find_topic_by_id(requested.topic_id)
        else:
            topic = image.topics.get(requested.name)
        name = requested.name if version < TOPIC_IDS_SINCE else "" if topic is None else topic.name
        if name and not describes(name):
            continue
        if topic is not None:
            queries.append(TopicQuery(topic.name, topic.topic_id, requested.partition_indexes))
        elif version < TOPIC_IDS_SINCE:
            queries.append(TopicQuery(requested.name, None, requested.partition_indexes))
    return queries


def _build_result(
    image: MetadataImage, group: Any, outcome: Outcome, version: int, describes: Permits
) -> responses.OffsetFetchResponseGroup:
    """The response for one group."""
    if isinstance(outcome, ApiError):
        missing = (
            [_build_missing(requested, outcome.code) for requested in group.topics or ()]
            if version < 2
            else ()
        )
        return {"group_id": group.group_id, "topics": missing, "error_code": outcome.code}
    fetched = cast("responses.OffsetFetchResponseGroup", outcome)
    topics: list[responses.OffsetFetchResponseTopics] = []
    for topic in fetched["topics"]:
        if version < TOPIC_IDS_SINCE:
            topics.append(topic)
        elif (image_topic := image.topics.get(topic["name"])) is not None:
            topics.append({**topic, "topic_id": image_topic.topic_id})
    if group.topics is None:
        return {**fetched, "topics": [topic for topic in topics if describes(topic["name"])]}
    return {**fetched, "topics": topics + _list_refused(image, group.topics, version, describes)}


def _list_refused(
    image: MetadataImage, topics: Sequence[Any], version: int, describes: Permits
) -> list[responses.OffsetFetchResponseTopics]:
    """The topics of a request that the client may not describe, or whose ids are unknown."""
    results: list[responses.OffsetFetchResponseTopics] = []
    for requested in topics:
        if version < TOPIC_IDS_SINCE:
            name = requested.name
        else:
            topic = image.find_topic_by_id(requested.topic_id)
            if topic is None:
                results.append(_build_missing(requested, ErrorCode.unknown_topic_id))
                continue
            name = topic.name
        if not describes(name):
            results.append(_build_missing(requested, ErrorCode.topic_authorization_failed))
    return results


def _build_missing(topic: Any, error: ErrorCode) -> responses.OffsetFetchResponseTopics:
    """A topic without an offset for any partition."""
    partitions: list[responses.OffsetFetchResponsePartitions] = [
        {
            "partition_index": p,
            "committed_offset": -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": error,
        }
        for p in topic.partition_indexes
    ]
    name = getattr(topic, "name", "")
    return {"name": name, "topic_id": getattr(topic, "topic_id", None), "partitions": partitions}
