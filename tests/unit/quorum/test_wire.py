"""The quorum's messages survive encoding in Kafka's schemas."""

from uuid import UUID

import pytest
from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode, WireError
from shoal.quorum import wire
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

ONE, TWO = ReplicaKey(1, UUID(int=11)), ReplicaKey(2, UUID(int=22))
HERE = VoterEndpoint("CONTROLLER", "one.example", 9093)
VOTER = Voter(TWO, (VoterEndpoint("CONTROLLER", "two.example", 9094),))
LEAST = OffsetAndEpoch(7, 3)

REQUESTS: list[tuple[int, Request]] = [
    (1, VoteRequest(TWO, ONE, 5, 10, 4, True)),
    (1, VoteRequest(ReplicaKey(2), ONE, 5, 10, 4, False)),
    (1, BeginQuorumEpochRequest(TWO, 1, 5)),
    (1, EndQuorumEpochRequest(1, 5, (TWO, ReplicaKey(3)))),
    (1, FetchRequest(ONE, 5, 10, 4, 9, 500)),
    (1, FetchSnapshotRequest(ONE, 5, LEAST, 100, 1000)),
    (-1, AddRaftVoterRequest(VOTER)),
    (-1, AddRaftVoterRequest(VOTER, ack_when_committed=False)),
    (-1, RemoveRaftVoterRequest(TWO)),
    (-1, UpdateRaftVoterRequest(5, VOTER)),
]
RESPONSES: list[tuple[Request, Response]] = [
    (REQUESTS[0][1], VoteResponse(5, 1, True)),
    (REQUESTS[0][1], VoteResponse(6, None, False, ErrorCode.fenced_leader_epoch)),
    (REQUESTS[2][1], EpochResponse(5, 1)),
    (REQUESTS[3][1], EpochResponse(5, 1, ErrorCode.invalid_voter_key)),
    (REQUESTS[4][1], FetchResponse(5, 1, 9, records=b"records")),
    (REQUESTS[4][1], FetchResponse(5, 1, 9, diverging_epoch=LEAST)),
    (REQUESTS[4][1], FetchResponse(5, 1, 9, snapshot_id=LEAST)),
    (REQUESTS[4][1], FetchResponse(5, None, error=ErrorCode.not_leader_or_follower)),
    (REQUESTS[5][1], FetchSnapshotResponse(5, 1, LEAST, 300, 100, b"part")),
    (REQUESTS[9][1], RaftVoterResponse(5, 1, ErrorCode.voter_not_found)),
]


@pytest.mark.parametrize(("source", "request_"), REQUESTS, ids=lambda v: type(v).__name__)
def test_requests(source: int, request_: Request) -> None:
    api_key = wire.API_KEYS[type(request_)]
    version = codec.find_known_versions(api_key)[-1]
    fields = wire.build_request_fields(
        request_, cluster_id="c", endpoints=(HERE,), max_bytes=1 << 20
    )
    entity = codec.read_request(
        api_key, version, bytes(codec.write_request(api_key, version, fields))
    )
    assert entity.cluster_id == "c"
    assert wire.read_request(api_key, entity) == (source, request_)
    if isinstance(request_, BeginQuorumEpochRequest | EndQuorumEpochRequest):
        assert wire.read_leader_endpoint(entity) == HERE


@pytest.mark.parametrize(("request_", "response"), RESPONSES, ids=lambda v: type(v).__name__)
def test_responses(request_: Request, response: Response) -> None:
    api_key = wire.API_KEYS[type(request_)]
    version = codec.find_known_versions(api_key)[-1]
    data = codec.write_response(
        api_key, version, wire.build_response_fields(api_key, response, HERE)
    )
    entity = codec.read_response(api_key, version, bytes(data))
    found, error, nodes = wire.read_response(request_, entity)
    assert (found, error) == (response, ErrorCode.none)
    if response.leader_id is not None and not isinstance(response, RaftVoterResponse):
        assert nodes == {1: ("one.example", 9093)}


def test_a_response_that_is_refused_as_a_whole() -> None:
    request = REQUESTS[0][1]
    api_key = wire.API_KEYS[type(request)]
    data = codec.write_response(api_key, 2, {"error_code": ErrorCode.inconsistent_cluster_id})
    found = wire.read_response(request, codec.read_response(api_key, 2, bytes(data)))
    assert found == (None, ErrorCode.inconsistent_cluster_id, {})


def test_a_request_about_another_partition_is_refused() -> None:
    fields = wire.build_request_fields(REQUESTS[0][1], cluster_id="c", endpoints=(), max_bytes=1)
    fields["topics"][0]["partitions"][0]["partition_index"] = 1
    entity = codec.read_request(52, 2, bytes(codec.write_request(52, 2, fields)))
    with pytest.raises(WireError, match="__cluster_metadata-0"):
        wire.read_request(52, entity)
