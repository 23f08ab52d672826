"""OffsetDelete: delete offsets of topics without a subscription in the group (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode
from shoal.server.network.responses import mapped

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    if not body.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    known: list[tuple[str, list[int]]] = []
    unknown: list[tuple[str, list[int]]] = []
    for topic in body.topics:
        partitions = [p.partition_index for p in topic.partitions]
        (known if topic.name in broker.image.topics else unknown).append((topic.name, partitions))
    refused = [
        {
            "name": name,
            "partitions": [
                {"partition_index": p, "error_code": ErrorCode.unknown_topic_or_partition}
                for p in partitions
            ],
        }
        for name, partitions in unknown
    ]
    reply = broker.groups.submit(
        body.group_id,
        lambda shard, _now_ms, token: shard.offsets.delete(body.group_id, known, token),
    )
    return mapped(reply, lambda r: {**r, "topics": [*r["topics"], *refused]})
