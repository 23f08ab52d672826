"""CreatePartitions: add partitions to topics, with a result for each topic (KIP-195)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.metadata.topics import Growth, create_partitions
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.quota.client_quotas import QUOTA_EXCEEDED, throttle

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

#: The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599).
STRICT_QUOTA_FROM = 3


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    times = Counter(topic.name for topic in body.topics)
    refused = [
        _refused(name, ErrorCode.invalid_request, "Duplicate topic name.")
        for name in times
        if times[name] > 1
    ]
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    for name in times:
        if times[name] == 1 and not permits(name):
            times[name] = 0
            refused.append(_refused(name, ErrorCode.topic_authorization_failed, None))
    quota = broker.quotas.mutation_quota(request, strict=request.version >= STRICT_QUOTA_FROM)
    if quota is not None and not body.validate_only:
        for topic in body.topics:
            found = broker.image.topics.get(topic.name)
            more = topic.count - len(found.partitions) if found is not None else 0
            if times[topic.name] == 1 and more > 0 and not quota.allow(more):
                times[topic.name] = 0
                code = ErrorCode.throttling_quota_exceeded
                refused.append(_refused(topic.name, code, QUOTA_EXCEEDED))
    pause_ms = throttle(request, quota)
    growths = [
        Growth(
            topic.name,
            topic.count,
            None if topic.assignments is None else [a.broker_ids for a in topic.assignments],
        )
        for topic in body.topics
        if times[topic.name] == 1
    ]
    return broker.metadata.submit(
        lambda image: create_partitions(image, growths, validate_only=body.validate_only),
        lambda results: {"throttle_time_ms": pause_ms, "results": [*results, *refused]},
    )


def _refused(name: str, code: int, message: str | None) -> dict[str, Any]:
    return {"name": name, "error_code": code, "error_message": message}


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {"results": [_refused(topic.name, code, message) for topic in request.body.topics]}
