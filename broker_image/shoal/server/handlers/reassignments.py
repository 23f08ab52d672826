"""AlterPartitionReassignments and ListPartitionReassignments, as one broker answers them (KIP-455).

With one broker the replicas that a partition may be given are those that it has, so a reassignment
is done when it is asked for, and none is ever under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.metadata.image import MetadataImage
from shoal.metadata.topics import Refused, checked_assignment
from shoal.protocol.errors import ErrorCode
from shoal.server.api import Answer, Request

if TYPE_CHECKING:
    from shoal.server.broker import Broker


def alter(broker: Broker, request: Request) -> Answer:
    body = request.body
    return {
        "allow_replication_factor_change": getattr(body, "allow_replication_factor_change", True),
        "error_code": ErrorCode.none,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _row(broker.image, topic.name, p.partition_index, p.replicas)
                    for p in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _row(
    image: MetadataImage, topic: str, index: int, replicas: Sequence[int] | None
) -> dict[str, Any]:
    code, message = ErrorCode.none, None
    partition = image.partition(topic, index)
    if partition is None:
        code = ErrorCode.unknown_topic_or_partition
        message = f"There is no partition {topic}-{index}."
    elif replicas is None:
        code = ErrorCode.no_reassignment_in_progress
    else:
        try:
            checked_assignment(image, replicas, len(partition.replicas), index)
        except Refused as refused:
            code, message = refused.code, refused.message
    return {"partition_index": index, "error_code": code, "error_message": message}


def list_(broker: Broker, request: Request) -> Answer:
    return {"error_code": ErrorCode.none, "topics": []}


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message}
