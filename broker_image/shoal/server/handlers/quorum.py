"""The quorum's own requests: Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot, Fetch of the
metadata log (KIP-595, KIP-630, KIP-996); AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter (KIP-853).

All are answered by the one replica of the node; what it says is in `shoal.quorum`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.quorum import wire
from shoal.quorum.messages import Response, VoteRequest
from shoal.server.answers import mapped
from shoal.server.api import Answer, Request
from shoal.server.handlers import fetch as partitions

if TYPE_CHECKING:
    from shoal.server.broker import Broker


def handle(broker: Broker, request: Request) -> Answer:
    body, quorum = request.body, broker.quorum
    cluster_id = getattr(body, "cluster_id", None)
    if cluster_id is not None and cluster_id != broker.cluster_id:
        raise ApiError(
            ErrorCode.inconsistent_cluster_id,
            f"This is a node of cluster {broker.cluster_id}, not of {cluster_id}.",
        )
    if quorum.fault is not None:
        raise ApiError(ErrorCode.kafka_storage_error, quorum.fault)
    try:
        source, message = wire.read_request(request.header.api_key, body)
    except WireError as error:
        raise ApiError(ErrorCode.invalid_request, str(error)) from None
    known = quorum.raft.voters
    if isinstance(message, VoteRequest) and known.latest_offset < 0:
        # Nobody has led yet: two sets of first voters could elect a leader each.
        if source not in known.latest.voters and min(known.latest.ids) >= 0:
            raise ApiError(
                ErrorCode.inconsistent_voter_set,
                f"Node {source} is not among the voters that this node was given.",
            )
    endpoint = wire.leader_endpoint(body)
    if endpoint is not None:
        quorum.learn(source, endpoint)

    def form(response: Response) -> dict[str, Any]:
        leader_id = response.leader_id
        leader = None if leader_id is None else quorum.endpoint_of(leader_id)
        return wire.response_fields(response, leader)

    return mapped(quorum.receive(source, message), form)


def fetch(broker: Broker, request: Request) -> Answer:
    topics = request.body.topics
    if len(topics) == 1 and wire.is_metadata(topics[0]):
        return handle(broker, request)
    return partitions.handle(broker, request)
