"""DeleteTopics: delete topics by name, and from version 6 on by id (KIP-516)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.topics import delete_topics
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import Operation, ResourceType
from shoal.server.handlers import authorization
from shoal.server.quota.client_quotas import QUOTA_EXCEEDED, throttle

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.server.broker import Broker
    from shoal.server.handlers.authorization import Permits
    from shoal.server.network.api import Answer, Request

Asked = tuple[str | None, Any]
#: The first version with TOPIC_DELETION_DISABLED.
DELETION_DISABLED_FROM = 3
#: The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599).
STRICT_QUOTA_FROM = 5


def handle(broker: Broker, request: Request) -> Answer:
    image = broker.image
    if not image.broker_config["delete.topic.enable"]:
        if request.version < DELETION_DISABLED_FROM:
            raise ApiError(ErrorCode.invalid_request, "Topics cannot be deleted here")
        raise ApiError(
            ErrorCode.topic_deletion_disabled, "Topic deletion is disabled: delete.topic.enable"
        )
    asked = Counter(_asked(request))
    rights = _rights(broker, request)
    results, topics = [], []
    quota = broker.quotas.mutation_quota(request, strict=request.version >= STRICT_QUOTA_FROM)
    for name, topic_id in asked:
        result, topic = _find(image, asked, name, topic_id, rights)
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


def _asked(request: Request) -> list[Asked]:
    body = request.body
    if request.version >= 6:
        return [(topic.name, topic.topic_id) for topic in body.topics]
    return [(name, None) for name in body.topic_names]


class _Rights(NamedTuple):
    """The topics that the client may describe and delete, by name."""

    describes: Permits
    deletes: Permits


def _rights(broker: Broker, request: Request) -> _Rights:
    deletes = authorization.each(broker, request, ResourceType.TOPIC)
    access = broker.access
    if not access.enabled or access.allows_cluster(request, Operation.DELETE, audited=False):
        return _Rights(deletes, deletes)

    def describes(name: str) -> bool:
        return access.allows(request, Operation.DESCRIBE, ResourceType.TOPIC, name)

    return _Rights(describes, deletes)


def _find(
    image: MetadataImage, asked: Counter[Asked], name: str | None, topic_id: Any, rights: _Rights
) -> tuple[dict[str, Any], TopicImage | None]:
    """The result of one topic, and the topic if it can be deleted."""
    topic = image.topics.get(name) if name is not None else image.topic_by_id(topic_id)
    result = {
        "name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    try:
        _check(asked, name, topic_id)
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
        if (topic.name, None) in asked and (None, topic.topic_id) in asked:
            what = "name" if topic_id is None else "id"
            raise ApiError(ErrorCode.invalid_request, f"Duplicate topic {what}.")
    except ApiError as refused:
        return result | {"error_code": refused.code, "error_message": refused.message}, None
    return {**result, "name": topic.name, "topic_id": topic.topic_id}, topic


def _check(asked: Counter[Asked], name: str | None, topic_id: Any) -> None:
    """Check one topic of the request. Raises `ApiError`."""
    message = ""
    if name is not None and topic_id is not None:
        message = "You may not specify both topic name and id."
    elif name is None and topic_id is None:
        message = "Neither topic name nor id were specified."
    elif asked[name, topic_id] > 1:
        message = f"Duplicate topic {'name' if topic_id is None else 'id'}."
    if message:
        raise ApiError(ErrorCode.invalid_request, message)


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {
        "responses": [
            {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
            for name, topic_id in _asked(request)
        ]
    }
