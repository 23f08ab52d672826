"""ElectLeaders: elect the preferred replica, or any replica that is available (KIP-460)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.elections import PREFERRED, UNCLEAN, elect_leaders
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.handlers import deadlines

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from shoal.protocol.responses import topics as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.ElectLeadersResponse]:
    body = request.body
    election_type = getattr(body, "election_type", PREFERRED)
    if election_type not in (PREFERRED, UNCLEAN):
        raise ApiError(ErrorCode.invalid_request, f"Unknown election type {election_type}")
    deadlines.check_timeout(request)
    partitions = None
    if body.topic_partitions is not None:
        partitions = [(t.topic, t.partitions) for t in body.topic_partitions]
    return broker.metadata.submit(
        lambda image: elect_leaders(image, election_type, partitions), _build_response
    )


def _build_response(
    results: Sequence[responses.ElectLeadersReplicaElectionResult],
) -> responses.ElectLeadersResponse:
    return {"error_code": ErrorCode.none, "replica_election_results": results}


def refuse(request: Request, code: int, message: str | None) -> responses.ElectLeadersResponse:
    results: list[responses.ElectLeadersReplicaElectionResult] = [
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
