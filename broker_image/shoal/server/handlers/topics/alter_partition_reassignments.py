"""AlterPartitionReassignments: move partitions to other brokers, or cancel a move (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.reassignments import PartitionReassignment
from shoal.metadata.reassignments import alter as decide
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.AlterPartitionReassignmentsResponse]:
    body = request.body
    other_factor = getattr(body, "allow_replication_factor_change", True)
    moves = [
        PartitionReassignment(topic.name, partition.partition_index, partition.replicas)
        for topic in body.topics
        for partition in topic.partitions
    ]

    def respond(
        results: Sequence[responses.AlterPartitionReassignmentsReassignableTopicResponse],
    ) -> responses.AlterPartitionReassignmentsResponse:
        return {
            "allow_replication_factor_change": other_factor,
            "error_code": ErrorCode.none,
            "responses": results,
        }

    return broker.metadata.submit(
        lambda image: decide(image, moves, other_factor=other_factor), respond
    )


def refuse(
    request: Request, code: int, message: str | None
) -> responses.AlterPartitionReassignmentsResponse:
    """The error of the whole request, which each partition has too."""
    results: list[responses.AlterPartitionReassignmentsReassignableTopicResponse] = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": partition.partition_index,
                    "error_code": code,
                    "error_message": message,
                }
                for partition in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    return {"error_code": code, "error_message": message, "responses": results}
