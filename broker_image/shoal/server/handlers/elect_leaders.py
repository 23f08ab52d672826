"""ElectLeaders: elect the preferred replica, or any replica that is available (KIP-460)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.elections import PREFERRED, UNCLEAN, elect_leaders
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    election_type = getattr(body, "election_type", PREFERRED)
    if election_type not in (PREFERRED, UNCLEAN):
        raise ApiError(ErrorCode.invalid_request, f"Unknown election type {election_type}")
    asked = None
    if body.topic_partitions is not None:
        asked = [(t.topic, index) for t in body.topic_partitions for index in t.partitions]
    return broker.metadata.submit(
        lambda image: elect_leaders(image, election_type, asked),
        lambda results: {"error_code": ErrorCode.none, "replica_election_results": results},
    )


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    results = [
        {
            "topic": t.topic,
            "partition_result": [
                {"partition_id": index, "error_code": code, "error_message": message}
                for index in t.partitions
            ],
        }
        for t in request.body.topic_partitions or ()
    ]
    return {"error_code": code, "replica_election_results": results}
