"""CreatePartitions: more partitions for topics, each grown or refused by itself (KIP-195)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.metadata.topics import Growth, create_partitions
from shoal.protocol.errors import ErrorCode
from shoal.server.api import Answer, Request

if TYPE_CHECKING:
    from shoal.server.broker import Broker


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    times = Counter(topic.name for topic in body.topics)
    twice = [
        {
            "name": name,
            "error_code": ErrorCode.invalid_request,
            "error_message": "Duplicate topic name.",
        }
        for name in times
        if times[name] > 1
    ]
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
        lambda rows: {"results": [*rows, *twice]},
    )


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {
        "results": [
            {"name": topic.name, "error_code": code, "error_message": message}
            for topic in request.body.topics
        ]
    }
