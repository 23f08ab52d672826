"""ListPartitionReassignments: the partitions that are being moved (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.controller import ControllerResult
from shoal.metadata.reassignments import list_reassignments
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.ListPartitionReassignmentsResponse]:
    topics = request.body.topics
    partitions = None if topics is None else [(t.name, tuple(t.partition_indexes)) for t in topics]
    return broker.metadata.submit(
        lambda image: ControllerResult((), list_reassignments(image, partitions)), _build_response
    )


def _build_response(
    results: Sequence[responses.ListPartitionReassignmentsOngoingTopicReassignment],
) -> responses.ListPartitionReassignmentsResponse:
    return {"error_code": ErrorCode.none, "topics": results}


def refuse(
    request: Request, code: int, message: str | None
) -> responses.ListPartitionReassignmentsResponse:
    """The error of the whole request, with its topics, as in Kafka."""
    topics: list[responses.ListPartitionReassignmentsOngoingTopicReassignment] = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": index} for index in topic.partition_indexes],
        }
        for topic in request.body.topics or ()
    ]
    return {"error_code": code, "error_message": message, "topics": topics}
