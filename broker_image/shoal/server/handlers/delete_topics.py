"""DeleteTopics: delete topics by name, and from version 6 on by id (KIP-516)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.metadata.topics import delete_topics
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.quota.client_quotas import QUOTA_EXCEEDED, throttle

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.server.broker import Broker
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
    rows, topics = [], []
    quota = broker.quotas.mutation_quota(request, strict=request.version >= STRICT_QUOTA_FROM)
    for name, topic_id in asked:
        row, topic = _find(image, asked, name, topic_id)
        if topic is not None and quota is not None and not quota.allow(len(topic.partitions)):
            row["error_code"] = ErrorCode.throttling_quota_exceeded
            row["error_message"], topic = QUOTA_EXCEEDED, None
        rows.append(row)
        if topic is not None:
            topics.append(topic)
    pause_ms = throttle(request, quota)
    return broker.metadata.submit(
        lambda newest: delete_topics(newest, topics),
        lambda _: {"throttle_time_ms": pause_ms, "responses": rows},
    )


def _asked(request: Request) -> list[Asked]:
    body = request.body
    if request.version >= 6:
        return [(topic.name, topic.topic_id) for topic in body.topics]
    return [(name, None) for name in body.topic_names]


def _find(
    image: MetadataImage, asked: Counter[Asked], name: str | None, topic_id: Any
) -> tuple[dict[str, Any], TopicImage | None]:
    """The result of one topic, and the topic if it can be deleted."""
    topic = image.topics.get(name) if name is not None else image.topic_by_id(topic_id)
    code, message = ErrorCode.none, None
    if name is not None and topic_id is not None:
        code, message = ErrorCode.invalid_request, "You may not specify both topic name and id."
    elif name is None and topic_id is None:
        code, message = ErrorCode.invalid_request, "Neither topic name nor id were specified."
    elif asked[name, topic_id] > 1 or (topic is not None and _twice(asked, topic)):
        what = "name" if topic_id is None else "id"
        code, message = ErrorCode.invalid_request, f"Duplicate topic {what}."
    elif topic is None:
        code = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
        message = f"There is no topic {topic_id if name is None else name}."
    row = {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
    if code is not ErrorCode.none or topic is None:
        return row, None
    return {**row, "name": topic.name, "topic_id": topic.topic_id}, topic


def _twice(asked: Counter[Asked], topic: TopicImage) -> bool:
    """Whether the request has the topic both by its name and by its id."""
    return (topic.name, None) in asked and (None, topic.topic_id) in asked


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {
        "responses": [
            {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
            for name, topic_id in _asked(request)
        ]
    }
