"""ListPartitionReassignments: the partitions that are being moved (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        lambda rows: {"error_code": ErrorCode.none, "topics": rows},
    )
