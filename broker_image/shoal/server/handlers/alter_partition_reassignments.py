"""AlterPartitionReassignments: move partitions to other brokers, or cancel a move (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.reassignments import Move
from shoal.metadata.reassignments import alter as decide
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    other_factor = getattr(body, "allow_replication_factor_change", True)
    moves = [
        Move(topic.name, partition.partition_index, partition.replicas)
        for topic in body.topics
        for partition in topic.partitions
    ]
    return broker.metadata.submit(
        lambda image: decide(image, moves, other_factor=other_factor),
        lambda results: {
            "allow_replication_factor_change": other_factor,
            "error_code": ErrorCode.none,
            "responses": results,
        },
    )


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    """The error of the whole request, which each partition has too."""
    responses = [
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
    return {"error_code": code, "error_message": message, "responses": responses}
