"""ListPartitionReassignments: the partitions that are being moved (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.controller import Decision
from shoal.metadata.reassignments import under_way
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    asked = request.body.topics
    wanted = None if asked is None else [(t.name, tuple(t.partition_indexes)) for t in asked]
    return broker.metadata.submit(
        lambda image: Decision((), under_way(image, wanted)),
        lambda results: {"error_code": ErrorCode.none, "topics": results},
    )


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    """The error of the whole request, with its topics, as in Kafka."""
    topics = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": index} for index in topic.partition_indexes],
        }
        for topic in request.body.topics or ()
    ]
    return {"error_code": code, "error_message": message, "topics": topics}
