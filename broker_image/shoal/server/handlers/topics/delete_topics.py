"""DeleteTopics: delete topics by name, and from version 6 on by id (KIP-516)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.topics import delete_topics
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import Operation, ResourceType
from shoal.server.handlers import authorization, deadlines
from shoal.server.quota.client_quotas import QUOTA_EXCEEDED, throttle

if TYPE_CHECKING:
    import asyncio

    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import Request

RequestedTopic = tuple[str | None, Any]
#: The first version with TOPIC_DELETION_DISABLED.
DELETION_DISABLED_FROM = 3
#: The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599).
STRICT_QUOTA_FROM = 5


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.DeleteTopicsResponse]:
    image = broker.image
    if not image.broker_config["delete.topic.enable"]:
        if request.version < DELETION_DISABLED_FROM:
            raise ApiError(ErrorCode.invalid_request, "Topics cannot be deleted here")
        raise ApiError(
            ErrorCode.topic_deletion_disabled, "Topic deletion is disabled: delete.topic.enable"
        )
    deadlines.check_timeout(request)
    requested = Counter(_list_requested(request))
    rights = _make_rights(broker, request)
    results, topics = [], []
    quota = broker.quotas.make_mutation_quota(request, strict=request.version >= STRICT_QUOTA_FROM)
    for name, topic_id in requested:
        result, topic = _find(image, requested, name, topic_id, rights)
        if topic is not None and quota is not None and not quota.allow(len(topic.partitions)):
            result["error_code"] = ErrorCode.throttling_quota_exceeded
            result["error_message"], topic = QUOTA_EXCEEDED, None
        results.append(result)
        if topic is not None:
            topics.append(topic)
    pause_ms = throttle(request, quota)
    return broker.metadata.submit(
        lambda newest: delete_topics(newest, topics),
        lambda _: {"throttle_time_ms": pause_ms, "responses": results},
    )


def _list_requested(request: Request) -> list[RequestedTopic]:
    body = request.body
    if request.version >= 6:
        return [(topic.name, topic.topic_id) for topic in body.topics]
    return [(name, None) for name in body.topic_names]


class _Rights(NamedTuple):
    """The topics that the client may describe and delete, by name."""

    describes: Permits
    deletes: Permits


def _make_rights(broker: Broker, request: Request) -> _Rights:
    deletes = authorization.make_checker(broker, request, ResourceType.TOPIC)
    access = broker.access
    if not access.enabled or access.allows_cluster(request, Operation.DELETE, audited=False):
        return _Rights(deletes, deletes)

    def describes(name: str) -> bool:
        return access.allows(request, Operation.DESCRIBE, ResourceType.TOPIC, name)

    return _Rights(describes, deletes)


def _find(
    image: MetadataImage,
    requested: Counter[RequestedTopic],
    name: str | None,
    topic_id: Any,
    rights: _Rights,
) -> tuple[responses.DeleteTopicsDeletableTopicResult, TopicImage | None]:
    """The result of one topic, and the topic if it can be deleted."""
    topic = image.topics.get(name) if name is not None else image.find_topic_by_id(topic_id)
    result: responses.DeleteTopicsDeletableTopicResult = {
        "name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    try:
        _check(requested, name, topic_id)
        if name is not None and not rights.describes(name):
            raise ApiError(ErrorCode.topic_authorization_failed)
        if topic is None:
            unknown = ErrorCode.unknown_topic_or_partition
            code = ErrorCode.unknown_topic_id if name is None else unknown
            raise ApiError(code, f"There is no topic {topic_id if name is None else name}.")
        if not rights.deletes(topic.name):
            if name is None and rights.describes(topic.name):
                result["name"] = topic.name
            raise ApiError(ErrorCode.topic_authorization_failed)
        if (topic.name, None) in requested and (None, topic.topic_id) in requested:
            identifier = "name" if topic_id is None else "id"
            raise ApiError(ErrorCode.invalid_request, f"Duplicate topic {identifier}.")
    except ApiError as refused:
        return result | {"error_code": refused.code, "error_message": refused.message}, None
    return {**result, "name": topic.name, "topic_id": topic.topic_id}, topic


def _check(requested: Counter[RequestedTopic], name: str | None, topic_id: Any) -> None:
    """Check one topic of the request. Raises `ApiError`."""
    message = ""
    if name is not None and topic_id is not None:
        message = "You may not specify both topic name and id."
    elif name is None and topic_id is None:
        message = "Neither topic name nor id were specified."
    elif requested[name, topic_id] > 1:
        message = f"Duplicate topic {'name' if topic_id is None else 'id'}."
    if message:
        raise ApiError(ErrorCode.invalid_request, message)


def refuse(request: Request, code: int, message: str | None) -> responses.DeleteTopicsResponse:
    return {
        "responses": [
            {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
            for name, topic_id in _list_requested(request)
        ]
    }
