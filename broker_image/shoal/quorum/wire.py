"""The messages of the quorum in Kafka's wire format, for the partition `__cluster_metadata-0`.

Translates between `messages` and the fields of Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch
(54), Fetch (1), FetchSnapshot (59), AddRaftVoter (80), RemoveRaftVoter (81) and UpdateRaftVoter
(82). Requests carry the cluster id of the sender. Responses carry the endpoint of the leader, so
that a client of the wrong node need not search for it (KIP-853). Received messages are kio entities
of any version; fields that an old version lacks are unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, WireError
from shoal.protocol.fetch import get_max_wait_ms
from shoal.quorum.log_index import OffsetAndEpoch
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftVoterResponse,
    RemoveRaftVoterRequest,
    Request,
    Response,
    UpdateRaftVoterRequest,
    VoteRequest,
    VoteResponse,
)
from shoal.quorum.voters import ReplicaKey, Voter, VoterEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.protocol.responses import logs, quorum

    ResponseFields = (
        quorum.VoteResponse
        | quorum.BeginQuorumEpochResponse
        | quorum.EndQuorumEpochResponse
        | logs.FetchResponse
        | quorum.FetchSnapshotResponse
        | quorum.AddRaftVoterResponse
        | quorum.RemoveRaftVoterResponse
        | quorum.UpdateRaftVoterResponse
    )
    #: The leader that a response names, if it does: its id and endpoint.
    _Nodes = Sequence[tuple[int, VoterEndpoint]]

TOPIC = "__cluster_metadata"
#: The topic id that every Kafka cluster gives its metadata topic.
TOPIC_ID = UUID(int=1)
NOBODY = -1
#: The source of a request that no replica sends. The correlation alone identifies its response.
CLIENT = -1

Fields = dict[str, Any]

API_KEYS: Mapping[type, ApiKey] = {
    VoteRequest: ApiKey.VOTE,
    BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
    EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    FetchRequest: ApiKey.FETCH,
    FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
    AddRaftVoterRequest: ApiKey.ADD_RAFT_VOTER,
    RemoveRaftVoterRequest: ApiKey.REMOVE_RAFT_VOTER,
    UpdateRaftVoterRequest: ApiKey.UPDATE_RAFT_VOTER,
}


# Requests that are sent.


def build_request_fields(
    body: Request, *, cluster_id: str, endpoints: Iterable[VoterEndpoint], max_bytes: int
) -> Fields:
    """Return the fields of a request. `endpoints` are the sender's; `max_bytes` limits a fetch."""
    fields = _REQUEST_FIELDS[type(body)](body)
    fields["cluster_id"] = cluster_id
    if isinstance(body, BeginQuorumEpochRequest | EndQuorumEpochRequest):
        fields["leader_endpoints"] = [e._asdict() for e in endpoints]
    if isinstance(body, FetchRequest):
        fields["max_bytes"] = max_bytes
        fields["topics"][0]["partitions"][0]["partition_max_bytes"] = max_bytes
    return fields


def _wrap_partition(partition: Fields) -> list[Fields]:
    return [{"topic_name": TOPIC, "name": TOPIC, "topic_id": TOPIC_ID, "partitions": [partition]}]


def _build_vote(body: VoteRequest) -> Fields:
    partition = {
        "partition_index": 0,
        "replica_epoch": body.replica_epoch,
        "replica_id": body.replica.id,
        "replica_directory_id": body.replica.directory_id,
        "voter_directory_id": body.voter.directory_id,
        "last_offset_epoch": body.last_offset_epoch,
        "last_offset": body.last_offset,
        "pre_vote": body.pre_vote,
    }
    return {"voter_id": body.voter.id, "topics": _wrap_partition(partition)}


def _build_begin(body: BeginQuorumEpochRequest) -> Fields:
    partition = {
        "partition_index": 0,
        "voter_directory_id": body.voter.directory_id,
        "leader_id": body.leader_id,
        "leader_epoch": body.leader_epoch,
    }
    return {"voter_id": body.voter.id, "topics": _wrap_partition(partition)}


def _build_end(body: EndQuorumEpochRequest) -> Fields:
    partition = {
        "partition_index": 0,
        "leader_id": body.leader_id,
        "leader_epoch": body.leader_epoch,
        "preferred_candidates": [
            {"candidate_id": key.id, "candidate_directory_id": key.directory_id}
            for key in body.preferred_candidates
        ],
    }
    return {"topics": _wrap_partition(partition)}


def _build_fetch(body: FetchRequest) -> Fields:
    partition = {
        "partition": 0,
        "current_leader_epoch": body.current_leader_epoch,
        "fetch_offset": body.fetch_offset,
        "last_fetched_epoch": body.last_fetched_epoch,
        "log_start_offset": -1,
        "replica_directory_id": body.replica.directory_id,
        "high_watermark": body.high_watermark,
    }
    return {
        "replica_state": {"replica_id": body.replica.id, "replica_epoch": -1},
        "max_wait_ms": body.max_wait_ms,
        "min_bytes": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": _wrap_partition(partition),
        "forgotten_topics_data": (),
    }


def _build_fetch_snapshot(body: FetchSnapshotRequest) -> Fields:
    partition = {
        "partition": 0,
        "current_leader_epoch": body.current_leader_epoch,
        "snapshot_id": _build_snapshot_id(body.snapshot_id),
        "position": body.position,
        "replica_directory_id": body.replica.directory_id,
    }
    return {
        "replica_id": body.replica.id,
        "max_bytes": body.max_bytes,
        "topics": _wrap_partition(partition),
    }


def _build_add_voter(body: AddRaftVoterRequest) -> Fields:
    voter = body.voter
    return _build_voter(voter.key) | {
        "timeout_ms": 30_000,
        "listeners": [e._asdict() for e in voter.endpoints],
        "ack_when_committed": body.ack_when_committed,
    }


def _build_remove_voter(body: RemoveRaftVoterRequest) -> Fields:
    return _build_voter(body.voter)


def _build_update_voter(body: UpdateRaftVoterRequest) -> Fields:
    voter = body.voter
    return _build_voter(voter.key) | {
        "current_leader_epoch": body.current_leader_epoch,
        "listeners": [e._asdict() for e in voter.endpoints],
        "k_raft_version_feature": {
            "min_supported_version": voter.min_kraft_version,
            "max_supported_version": voter.max_kraft_version,
        },
    }


def _build_voter(key: ReplicaKey) -> Fields:
    return {"voter_id": key.id, "voter_directory_id": key.directory_id}


def _build_snapshot_id(snapshot_id: OffsetAndEpoch) -> quorum.FetchSnapshotSnapshotId:
    return {"end_offset": snapshot_id.offset, "epoch": snapshot_id.epoch}


_REQUEST_FIELDS: Mapping[type, Callable[[Any], Fields]] = {
    VoteRequest: _build_vote,
    BeginQuorumEpochRequest: _build_begin,
    EndQuorumEpochRequest: _build_end,
    FetchRequest: _build_fetch,
    FetchSnapshotRequest: _build_fetch_snapshot,
    AddRaftVoterRequest: _build_add_voter,
    RemoveRaftVoterRequest: _build_remove_voter,
    UpdateRaftVoterRequest: _build_update_voter,
}


# Requests that are received.


def is_metadata(topic: Any) -> bool:
    """Whether a topic of a Fetch is the metadata log."""
    return getattr(topic, "topic_id", None) == TOPIC_ID or getattr(topic, "topic", "") == TOPIC


def read_request(api_key: int, entity: Any) -> tuple[int, Request]:
    """Return (source, request) of an entity. Raises `WireError` for any other partition than
    `__cluster_metadata-0`."""
    return _READ[api_key](entity)


def read_leader_endpoint(entity: Any) -> VoterEndpoint | None:
    """Return the endpoint of the leader that sends a BeginQuorumEpoch or EndQuorumEpoch."""
    endpoints = getattr(entity, "leader_endpoints", ())
    return (
        VoterEndpoint(endpoints[0].name, endpoints[0].host, endpoints[0].port)
        if endpoints
        else None
    )


def _get_partition(entity: Any) -> Any:
    topics = entity.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        topic, partition = topics[0], topics[0].partitions[0]
        name = getattr(topic, "topic_name", None) or getattr(topic, "name", None)
        index = getattr(partition, "partition_index", getattr(partition, "partition", 0))
        if index == 0 and (name in (None, TOPIC)):
            return partition
    raise WireError(f"a quorum request that is not about {TOPIC}-0 alone")


def _read_vote(entity: Any) -> tuple[int, Request]:
    p = _get_partition(entity)
    voter = ReplicaKey(getattr(entity, "voter_id", NOBODY), getattr(p, "voter_directory_id", None))
    replica = ReplicaKey(p.replica_id, getattr(p, "replica_directory_id", None))
    body = VoteRequest(
        voter,
        replica,
        p.replica_epoch,
        p.last_offset,
        p.last_offset_epoch,
        getattr(p, "pre_vote", False),
    )
    return replica.id, body


def _read_begin(entity: Any) -> tuple[int, Request]:
    p = _get_partition(entity)
    voter = ReplicaKey(getattr(entity, "voter_id", NOBODY), getattr(p, "voter_directory_id", None))
    return p.leader_id, BeginQuorumEpochRequest(voter, p.leader_id, p.leader_epoch)


def _read_end(entity: Any) -> tuple[int, Request]:
    p = _get_partition(entity)
    preferred = getattr(p, "preferred_candidates", None)
    if preferred is None:
        candidates = tuple(ReplicaKey(id) for id in p.preferred_successors)
    else:
        candidates = tuple(ReplicaKey(c.candidate_id, c.candidate_directory_id) for c in preferred)
    return p.leader_id, EndQuorumEpochRequest(p.leader_id, p.leader_epoch, candidates)


def _read_fetch(entity: Any) -> tuple[int, Request]:
    p = _get_partition(entity)
    state = getattr(entity, "replica_state", None)
    id = entity.replica_id if state is None else state.replica_id
    body = FetchRequest(
        ReplicaKey(id, getattr(p, "replica_directory_id", None)),
        getattr(p, "current_leader_epoch", -1),
        p.fetch_offset,
        getattr(p, "last_fetched_epoch", -1),
        getattr(p, "high_watermark", (1 << 63) - 1),
        get_max_wait_ms(entity),
    )
    return id, body


def _read_fetch_snapshot(entity: Any) -> tuple[int, Request]:
    p = _get_partition(entity)
    snapshot_id = OffsetAndEpoch(p.snapshot_id.end_offset, p.snapshot_id.epoch)
    key = ReplicaKey(entity.replica_id, getattr(p, "replica_directory_id", None))
    body = FetchSnapshotRequest(
        key, p.current_leader_epoch, snapshot_id, p.position, entity.max_bytes
    )
    return key.id, body


def _read_add(entity: Any) -> tuple[int, Request]:
    voter = Voter(_read_key(entity), _read_endpoints(entity))
    # Version 0 lacks the field.
    return CLIENT, AddRaftVoterRequest(voter, getattr(entity, "ack_when_committed", True))


def _read_remove(entity: Any) -> tuple[int, Request]:
    return CLIENT, RemoveRaftVoterRequest(_read_key(entity))


def _read_update(entity: Any) -> tuple[int, Request]:
    levels = entity.k_raft_version_feature
    voter = Voter(
        _read_key(entity),
        _read_endpoints(entity),
        levels.min_supported_version,
        levels.max_supported_version,
    )
    return CLIENT, UpdateRaftVoterRequest(entity.current_leader_epoch, voter)


def _read_key(entity: Any) -> ReplicaKey:
    return ReplicaKey(entity.voter_id, entity.voter_directory_id)


def _read_endpoints(entity: Any) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(e.name, e.host, e.port) for e in entity.listeners)


_READ: Mapping[int, Callable[[Any], tuple[int, Request]]] = {
    ApiKey.VOTE: _read_vote,
    ApiKey.BEGIN_QUORUM_EPOCH: _read_begin,
    ApiKey.END_QUORUM_EPOCH: _read_end,
    ApiKey.FETCH: _read_fetch,
    ApiKey.FETCH_SNAPSHOT: _read_fetch_snapshot,
    ApiKey.ADD_RAFT_VOTER: _read_add,
    ApiKey.REMOVE_RAFT_VOTER: _read_remove,
    ApiKey.UPDATE_RAFT_VOTER: _read_update,
}


# Responses that are sent.


def build_response_fields(
    api_key: int, body: Response, leader: VoterEndpoint | None
) -> ResponseFields:
    """Return the fields of a response. `leader` is the endpoint of the leader that it names."""
    leader_id = NOBODY if body.leader_id is None else body.leader_id
    nodes = [(leader_id, leader)] if leader is not None and leader_id != NOBODY else []
    if isinstance(body, RaftVoterResponse):
        return _build_voter_response(api_key, body, leader_id, leader)
    if isinstance(body, VoteResponse):
        return _build_vote_response(body, leader_id, nodes)
    if isinstance(body, EpochResponse):
        return _build_epoch_response(body, leader_id, nodes)
    if isinstance(body, FetchResponse):
        return _build_fetch_response(body, leader_id, nodes)
    return _build_snapshot_response(body, leader_id, nodes)


def _build_voter_response(
    api_key: int, body: RaftVoterResponse, leader_id: int, leader: VoterEndpoint | None
) -> quorum.AddRaftVoterResponse | quorum.UpdateRaftVoterResponse:
    if api_key != ApiKey.UPDATE_RAFT_VOTER:
        return {"error_code": body.error, "error_message": body.error_message}
    current: quorum.UpdateRaftVoterCurrentLeader = {
        "leader_id": leader_id,
        "leader_epoch": body.leader_epoch,
    }
    if leader is not None:
        current |= {"host": leader.host, "port": leader.port}
    return {"error_code": body.error, "current_leader": current}


def _build_vote_response(body: VoteResponse, leader_id: int, nodes: _Nodes) -> quorum.VoteResponse:
    partition: quorum.VotePartitionData = {
        "partition_index": 0,
        "error_code": body.error,
        "leader_id": leader_id,
        "leader_epoch": body.leader_epoch,
        "vote_granted": body.vote_granted,
    }
    return {
        "error_code": ErrorCode.none,
        "topics": [{"topic_name": TOPIC, "partitions": [partition]}],
        "node_endpoints": _list_endpoints(nodes),
    }


def _build_epoch_response(
    body: EpochResponse, leader_id: int, nodes: _Nodes
) -> quorum.BeginQuorumEpochResponse:
    """The response of BeginQuorumEpoch, whose fields are those of EndQuorumEpoch's."""
    partition: quorum.BeginQuorumEpochPartitionData = {
        "partition_index": 0,
        "error_code": body.error,
        "leader_id": leader_id,
        "leader_epoch": body.leader_epoch,
    }
    return {
        "error_code": ErrorCode.none,
        "topics": [{"topic_name": TOPIC, "partitions": [partition]}],
        "node_endpoints": _list_endpoints(nodes),
    }


def _build_fetch_response(body: FetchResponse, leader_id: int, nodes: _Nodes) -> logs.FetchResponse:
    partition: logs.FetchPartitionData = {
        "partition_index": 0,
        "error_code": body.error,
        "current_leader": {"leader_id": leader_id, "leader_epoch": body.leader_epoch},
        "high_watermark": body.high_watermark,
        "log_start_offset": 0,
        "aborted_transactions": (),
        "records": body.records,
    }
    if body.diverging_epoch is not None:
        end = body.diverging_epoch
        partition["diverging_epoch"] = {"epoch": end.epoch, "end_offset": end.offset}
    if body.snapshot_id is not None:
        partition["snapshot_id"] = _build_snapshot_id(body.snapshot_id)
    return {
        "error_code": ErrorCode.none,
        "responses": [{"topic_id": TOPIC_ID, "partitions": [partition]}],
        "node_endpoints": [
            {"node_id": id, "host": node.host, "port": node.port} for id, node in nodes
        ],
    }


def _build_snapshot_response(
    body: FetchSnapshotResponse, leader_id: int, nodes: _Nodes
) -> quorum.FetchSnapshotResponse:
    partition: quorum.FetchSnapshotPartitionSnapshot = {
        "index": 0,
        "error_code": body.error,
        "current_leader": {"leader_id": leader_id, "leader_epoch": body.leader_epoch},
        "snapshot_id": _build_snapshot_id(body.snapshot_id),
        "size": body.size,
        "position": body.position,
        "unaligned_records": body.unaligned_records,
    }
    return {
        "error_code": ErrorCode.none,
        "topics": [{"name": TOPIC, "partitions": [partition]}],
        "node_endpoints": _list_endpoints(nodes),
    }


def _list_endpoints(nodes: _Nodes) -> list[quorum.VoteNodeEndpoint]:
    return [{"node_id": id, "host": node.host, "port": node.port} for id, node in nodes]


# Responses that are received.


def read_response(
    request: Request, entity: Any
) -> tuple[Response | None, ErrorCode, dict[int, tuple[str, int]]]:
    """Return (response, error, addresses of nodes) of an entity that answers `request`.

    The response is None if the request was refused as a whole; then the error is the reason.
    """
    error = ErrorCode(int(getattr(entity, "error_code", 0)))
    nodes = {n.node_id: (n.host, n.port) for n in getattr(entity, "node_endpoints", ())}
    if isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
        text = entity.error_message
        return RaftVoterResponse(-1, None, error, text), ErrorCode.none, nodes
    if isinstance(request, UpdateRaftVoterRequest):
        leader = entity.current_leader
        response = RaftVoterResponse(leader.leader_epoch, _to_leader_id(leader.leader_id), error)
        return response, ErrorCode.none, nodes
    if error is not ErrorCode.none:
        return None, error, nodes
    topics = entity.responses if isinstance(request, FetchRequest) else entity.topics
    if not topics or not topics[0].partitions:
        return None, ErrorCode.unknown_topic_or_partition, nodes
    return _read_partition(request, topics[0].partitions[0]), ErrorCode.none, nodes


def _read_partition(request: Request, p: Any) -> Response:
    error = ErrorCode(int(p.error_code))
    if isinstance(request, VoteRequest):
        return VoteResponse(p.leader_epoch, _to_leader_id(p.leader_id), p.vote_granted, error)
    if isinstance(request, BeginQuorumEpochRequest | EndQuorumEpochRequest):
        return EpochResponse(p.leader_epoch, _to_leader_id(p.leader_id), error)
    epoch, leader_id = p.current_leader.leader_epoch, _to_leader_id(p.current_leader.leader_id)
    if isinstance(request, FetchRequest):
        diverging, snapshot = p.diverging_epoch, p.snapshot_id
        return FetchResponse(
            epoch,
            leader_id,
            p.high_watermark,
            OffsetAndEpoch(diverging.end_offset, diverging.epoch) if diverging.epoch >= 0 else None,
            OffsetAndEpoch(snapshot.end_offset, snapshot.epoch) if snapshot.epoch >= 0 else None,
            p.records or b"",
            error,
        )
    return FetchSnapshotResponse(
        epoch,
        leader_id,
        OffsetAndEpoch(p.snapshot_id.end_offset, p.snapshot_id.epoch),
        p.size,
        p.position,
        p.unaligned_records or b"",
        error,
    )


def _to_leader_id(id: int) -> int | None:
    return None if id == NOBODY else id
