"""CreatePartitions: add partitions to topics, with a result for each topic (KIP-195)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shoal.metadata.topics import CreatePartitionsTopic, create_partitions
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization, deadlines
from shoal.server.quota.client_quotas import QUOTA_EXCEEDED, throttle

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

#: The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599).
STRICT_QUOTA_FROM = 3


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.CreatePartitionsResponse]:
    deadlines.check_timeout(request)
    body = request.body
    times = Counter(topic.name for topic in body.topics)
    refused = [
        _build_refusal(name, ErrorCode.invalid_request, "Duplicate topic name.")
        for name in times
        if times[name] > 1
    ]
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    for name in times:
        if times[name] == 1 and not permits(name):
            times[name] = 0
            refused.append(_build_refusal(name, ErrorCode.topic_authorization_failed, None))
    quota = broker.quotas.make_mutation_quota(request, strict=request.version >= STRICT_QUOTA_FROM)
    if quota is not None and not body.validate_only:
        for topic in body.topics:
            existing = broker.image.topics.get(topic.name)
            more = topic.count - len(existing.partitions) if existing is not None else 0
            if times[topic.name] == 1 and more > 0 and not quota.allow(more):
                times[topic.name] = 0
                code = ErrorCode.throttling_quota_exceeded
                refused.append(_build_refusal(topic.name, code, QUOTA_EXCEEDED))
    pause_ms = throttle(request, quota)
    growths = [
        CreatePartitionsTopic(
            topic.name,
            topic.count,
            None if topic.assignments is None else [a.broker_ids for a in topic.assignments],
        )
        for topic in body.topics
        if times[topic.name] == 1
    ]

    def respond(
        results: Sequence[responses.CreatePartitionsTopicResult],
    ) -> responses.CreatePartitionsResponse:
        return {"throttle_time_ms": pause_ms, "results": [*results, *refused]}

    return broker.metadata.submit(
        lambda image: create_partitions(image, growths, validate_only=body.validate_only),
        respond,
    )


def _build_refusal(
    name: str, code: int, message: str | None
) -> responses.CreatePartitionsTopicResult:
    return {"name": name, "error_code": code, "error_message": message}


def refuse(request: Request, code: int, message: str | None) -> responses.CreatePartitionsResponse:
    return {"results": [_build_refusal(topic.name, code, message) for topic in request.body.topics]}
