"""The requests and responses of the metadata quorum, with the field names of Kafka.

Each request has one response type. `quorum.wire` adds the cluster id, the topic and the endpoints,
and translates them to Kafka's APIs: Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), Fetch
(1), FetchSnapshot (59), AddRaftVoter (80), RemoveRaftVoter (81) and UpdateRaftVoter (82).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.quorum.log_index import OffsetAndEpoch
    from shoal.quorum.voters import ReplicaKey, Voter
    from shoal.record.batch import Buffer

NONE = ErrorCode.none


class DeferredRead(NamedTuple):
    """Bytes that the store reads from the log or from a snapshot when the message is sent.

    From the log: at least one whole batch, from `offset` up to `end_offset`. From the file of a
    snapshot: bytes from position `offset` on. The store also sets the size in that response.
    """

    offset: int
    end_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """`replica` asks `voter` for its vote. A pre-vote is not binding (KIP-996)."""

    voter: ReplicaKey
    replica: ReplicaKey
    replica_epoch: int
    last_offset: int
    last_offset_epoch: int
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class VoteResponse:
    leader_epoch: int
    leader_id: int | None
    vote_granted: bool
    error: ErrorCode = NONE


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequest:
    """A leader notifies a voter of its epoch."""

    voter: ReplicaKey
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequest:
    """A leader resigns. The first preferred candidate may start an election at once."""

    leader_id: int
    leader_epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class EpochResponse:
    """Answers BeginQuorumEpoch and EndQuorumEpoch."""

    leader_epoch: int
    leader_id: int | None
    error: ErrorCode = NONE


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """The `fetch_offset` of a voter asserts that its log is durable up to there.

    A leader whose high watermark is above `high_watermark` answers at once (KIP-1166).
    """

    replica: ReplicaKey
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int
    max_wait_ms: int


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """At most one of `diverging_epoch`, `snapshot_id` and records."""

    leader_epoch: int
    leader_id: int | None
    high_watermark: int = -1
    diverging_epoch: OffsetAndEpoch | None = None
    snapshot_id: OffsetAndEpoch | None = None
    records: Buffer | DeferredRead = b""
    error: ErrorCode = NONE


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    replica: ReplicaKey
    current_leader_epoch: int
    snapshot_id: OffsetAndEpoch
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    """`size` is the size of the whole snapshot in bytes."""

    leader_epoch: int
    leader_id: int | None
    snapshot_id: OffsetAndEpoch
    size: int = -1
    position: int = 0
    unaligned_records: Buffer | DeferredRead = b""
    error: ErrorCode = NONE


@dataclass(frozen=True, slots=True)
class AddRaftVoterRequest:
    """The answer waits for the commit if `ack_when_committed`, else only for the leader's log."""

    voter: Voter
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True)
class RemoveRaftVoterRequest:
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class UpdateRaftVoterRequest:
    """A voter reports its directory id, endpoints and levels to the leader."""

    current_leader_epoch: int
    voter: Voter


@dataclass(frozen=True, slots=True)
class RaftVoterResponse:
    """Answers AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter."""

    leader_epoch: int
    leader_id: int | None
    error: ErrorCode = NONE
    error_message: str | None = None


#: A change of the voters.
Change = AddRaftVoterRequest | RemoveRaftVoterRequest | UpdateRaftVoterRequest
Request = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | Change
)
Response = VoteResponse | EpochResponse | FetchResponse | FetchSnapshotResponse | RaftVoterResponse


class RaftMessage(NamedTuple):
    """A request or response under way. A response has its request's `correlation`, which only the
    sender of the request reads."""

    source: int
    to: int
    correlation: Any
    body: Request | Response
