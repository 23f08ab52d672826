"""CreateTopics: create or only validate topics, with a result for each (KIP-4, KIP-464)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shoal.metadata import names
from shoal.metadata.topics import NewTopic, create_topics
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import Operation, ResourceType
from shoal.server.handlers import authorization, deadlines
from shoal.server.quota.client_quotas import QUOTA_EXCEEDED, throttle

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

#: The fields of a new topic whose configs the client may not describe.
_HIDDEN: responses.CreateTopicsCreatableTopicResult = {
    "topic_config_error_code": ErrorCode.topic_authorization_failed,
    "num_partitions": -1,
    "replication_factor": -1,
    "configs": [],
}
#: An answer has all configs of each topic. Kafka refuses more than 10,000 metadata records at once,
#: which are 5,000 topics, with the same error.
TOPICS_MAX = 3_000
#: The first version with THROTTLING_QUOTA_EXCEEDED (KIP-599).
STRICT_QUOTA_FROM = 6


def admit(_: Broker, request: Request) -> None:
    """Refuse a request of too many topics as a whole. Raises `ApiError`."""
    if (count := len(request.body.topics)) > TOPICS_MAX:
        raise ApiError(
            ErrorCode.policy_violation,
            f"A request may create {TOPICS_MAX} topics, and this one has {count}. Send several.",
        )


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.CreateTopicsResponse]:
    deadlines.check_timeout(request)
    body = request.body
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    refused: dict[str, responses.CreateTopicsCreatableTopicResult] = {}
    for name, times in Counter(topic.name for topic in body.topics).items():
        if times > 1:
            refused[name] = _build_refusal(name, ErrorCode.invalid_request, "Duplicate topic name.")
        elif name == names.METADATA_TOPIC:
            refused[name] = _build_refusal(
                name,
                ErrorCode.invalid_request,
                f"{name} is the cluster's own and cannot be created.",
            )
        elif not permits(name):
            code = ErrorCode.topic_authorization_failed
            refused[name] = _build_refusal(name, code, "Authorization failed.")
    quota = broker.quotas.make_mutation_quota(request, strict=request.version >= STRICT_QUOTA_FROM)
    if quota is not None and not body.validate_only:
        default = broker.image.broker_config["num.partitions"]
        for topic in body.topics:
            count = len(topic.assignments) or max(topic.num_partitions, 0) or default
            if topic.name not in refused and not quota.allow(count):
                code = ErrorCode.throttling_quota_exceeded
                refused[topic.name] = _build_refusal(topic.name, code, QUOTA_EXCEEDED)
    pause_ms = throttle(request, quota)
    topics = [
        NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            [(a.partition_index, a.broker_ids) for a in topic.assignments],
            [(config.name, config.value) for config in topic.configs],
        )
        for topic in body.topics
        if topic.name not in refused
    ]

    def respond(
        results: Sequence[responses.CreateTopicsCreatableTopicResult],
    ) -> responses.CreateTopicsResponse:
        shown = _hide_configs(broker, request, results)
        return {"throttle_time_ms": pause_ms, "topics": [*shown, *refused.values()]}

    return broker.metadata.submit(
        lambda image: create_topics(
            image,
            topics,
            new_id=broker.node.make_random_id,
            validate_only=body.validate_only,
            request_id=request.id,
        ),
        respond,
    )


def _hide_configs(
    broker: Broker,
    request: Request,
    results: Sequence[responses.CreateTopicsCreatableTopicResult],
) -> list[responses.CreateTopicsCreatableTopicResult]:
    """Hide the configs of new topics from a client that may not describe them."""
    created = {result["name"] for result in results if result["error_code"] is ErrorCode.none}
    shown = broker.access.filter_permitted(
        request, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, created, audited=False
    )
    return [
        result | _HIDDEN if result["name"] in created and result["name"] not in shown else result
        for result in results
    ]


def _build_refusal(
    name: str, code: int, message: str | None
) -> responses.CreateTopicsCreatableTopicResult:
    return {"name": name, "error_code": code, "error_message": message, "configs": None}


def refuse(request: Request, code: int, message: str | None) -> responses.CreateTopicsResponse:
    return {"topics": [_build_refusal(topic.name, code, message) for topic in request.body.topics]}
