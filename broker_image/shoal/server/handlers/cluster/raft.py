"""The Raft requests of the metadata quorum, which one replica of the node answers (`shoal.quorum`).

Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot and Fetch of the metadata log (KIP-595,
KIP-630, KIP-996); AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.protocol.fetch import TOPIC_IDS_FROM
from shoal.quorum import wire
from shoal.quorum.messages import AddRaftVoterRequest, Response, VoteRequest
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import authorization
from shoal.server.handlers.records import fetch as partitions
from shoal.server.network.responses import map_reply

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[wire.ResponseFields]:
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
    voters = quorum.raft.voters
    if isinstance(message, VoteRequest) and voters.latest_offset < 0:
        # Without a leader so far, two sets of first voters could elect a leader each.
        if source not in voters.latest.voters and min(voters.latest.ids) >= 0:
            raise ApiError(
                ErrorCode.inconsistent_voter_set,
                f"Node {source} is not among the voters that this node was given.",
            )
    if isinstance(message, AddRaftVoterRequest):
        _check_endpoints(broker, message)
    endpoint = wire.read_leader_endpoint(body)
    if endpoint is not None:
        quorum.learn(source, endpoint)

    def form(response: Response) -> wire.ResponseFields:
        if request.header.api_key == ApiKey.FETCH:
            # It may have waited while the permissions changed.
            authorization.check_at_controllers(broker, request)
        leader_id = response.leader_id
        leader = None if leader_id is None else quorum.find_endpoint(leader_id)
        return wire.build_response_fields(request.header.api_key, response, leader)

    return map_reply(quorum.receive(source, message), form)


def _check_endpoints(broker: Broker, request: AddRaftVoterRequest) -> None:
    """Check that a new voter has an endpoint for controllers, as Kafka does. Raises `ApiError`."""
    listener, names = broker.cluster.listener, {e.name for e in request.voter.endpoints}
    controller_listeners = broker.config["controller.listener.names"]
    if (
        controller_listeners
        and broker.served.get_kind(listener) is Listeners.CONTROLLER
        and listener not in names
    ):
        raise ApiError(
            ErrorCode.invalid_request,
            f"The new voter {request.voter.key.id} names no endpoint of the listener {listener},"
            " which controllers use: set controller.listener.names on it.",
        )


def fetch(broker: Broker, request: Request) -> Answer:
    """Fetch on a listener of controllers: the metadata log, and partitions if brokers share it."""
    topics = request.body.topics
    for_brokers = Listeners.BROKER in broker.served.get_kind(request.peer.listener)
    if not for_brokers:
        authorization.check_at_controllers(broker, request)
    if request.version >= TOPIC_IDS_FROM and len(topics) == 1 and wire.is_metadata(topics[0]):
        if for_brokers:
            authorization.check_at_controllers(broker, request)
        return handle(broker, request)
    if for_brokers:
        return partitions.handle(broker, request)
    return {"error_code": ErrorCode.invalid_request, "responses": ()}
