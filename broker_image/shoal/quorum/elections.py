"""Votes, and the messages about the beginning and the end of an epoch (KIP-595, KIP-996).

A voter grants its vote once per epoch, to a replica whose log is at least as up to date as its
own. Such a log has a later last epoch, or the same epoch and an end offset that is not lower (Raft
5.4.1). A replica that is an observer by its own log votes too, because the record that makes it a
voter may not have arrived yet (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode
from shoal.quorum.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    RaftMessage,
    VoteRequest,
    VoteResponse,
)
from shoal.quorum.states import Role

if TYPE_CHECKING:
    from shoal.quorum.leader_state import LeaderState
    from shoal.quorum.replica import Replica
    from shoal.quorum.voters import ReplicaKey


def is_for(raft: Replica, voter: ReplicaKey) -> bool:
    """Whether a request for `voter` is for this replica."""
    own_key = raft.local
    return voter.id == own_key.id and voter.directory_id in (None, own_key.directory_id)


# Standing for election.


def ask_for_votes(raft: Replica) -> None:
    """Send Vote to the voters that have not answered."""
    index = raft.index
    for voter in raft.voters.latest.find_others(raft.local):
        if voter.key.id not in raft.votes and raft.can_send(voter.key.id):
            pre_vote = raft.role is Role.PROSPECTIVE
            request = VoteRequest(
                voter.key, raft.local, raft.epoch, index.end_offset, index.last_epoch, pre_vote
            )
            raft.send(voter.key.id, request)


def on_vote_response(
    raft: Replica, source: int, _request: VoteRequest, response: VoteResponse
) -> None:
    if response.error is ErrorCode.none:
        raft.votes[source] = response.vote_granted
        count_votes(raft)
    else:
        raft.back_off(source)


def count_votes(raft: Replica) -> None:
    """Change the role once enough voters have answered."""
    voters = raft.voters.latest
    granted = voters.has_voter(raft.local) + sum(raft.votes.values())
    refused = sum(not vote for vote in raft.votes.values())
    won, lost = granted >= voters.majority, refused > len(voters) - voters.majority
    if raft.role is Role.PROSPECTIVE:
        if won:
            raft.become_candidate()
        elif lost:
            raft.stand_down()
    elif won:
        raft.become_leader()
    elif lost:
        settings = raft.settings
        limit = min(settings.election_backoff_max_ms, settings.retry_backoff_ms << raft.failures)
        raft.failures = min(raft.failures + 1, 30)
        raft.deadline_ms = raft.now_ms + 1 + raft.choose(limit)


# Voting.


def on_vote(raft: Replica, message: RaftMessage, request: VoteRequest) -> None:
    if not is_for(raft, request.voter):
        answer_vote(raft, message, False, ErrorCode.invalid_voter_key)
        return
    if request.replica_epoch < raft.epoch:
        answer_vote(raft, message, False, ErrorCode.fenced_leader_epoch)
        return
    if request.replica_epoch > raft.epoch:
        raft.become_unattached(request.replica_epoch)
    candidate_end = (request.last_offset_epoch, request.last_offset)
    up_to_date = candidate_end >= (raft.index.last_epoch, raft.index.end_offset)
    if request.pre_vote:
        content = raft.role is Role.LEADER or raft.has_fetched
        granted = up_to_date and not content
    elif raft.voted is not None:
        granted = raft.voted == request.replica
    elif raft.leader_id is None:
        granted = up_to_date
        if granted:
            if raft.role is Role.PROSPECTIVE:
                raft.become_unattached(raft.epoch)
            raft.voted = request.replica
            raft.arm()
    else:
        granted = False
    answer_vote(raft, message, granted)


def answer_vote(
    raft: Replica, message: RaftMessage, granted: bool, error: ErrorCode = ErrorCode.none
) -> None:
    response = VoteResponse(raft.epoch, raft.known_leader, granted, error)
    raft.reply(message.source, message.correlation, response)


# The beginning of an epoch.


def build_begin_request(raft: Replica, voter: ReplicaKey) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(voter, raft.local.id, raft.epoch)


def on_begin(raft: Replica, message: RaftMessage, request: BeginQuorumEpochRequest) -> None:
    error = ErrorCode.none
    if not is_for(raft, request.voter):
        error = ErrorCode.invalid_voter_key
    elif request.leader_epoch < raft.epoch:
        error = ErrorCode.fenced_leader_epoch
    else:
        raft.observe(request.leader_epoch, request.leader_id)
        if raft.role is Role.FOLLOWER and not raft.has_fetched:
            raft.arm()
    raft.reply(message.source, message.correlation, _build_epoch_response(raft, error))


def _build_epoch_response(raft: Replica, error: ErrorCode) -> EpochResponse:
    return EpochResponse(raft.epoch, raft.known_leader, error)


def on_epoch_response(
    raft: Replica,
    source: int,
    request: BeginQuorumEpochRequest | EndQuorumEpochRequest,
    response: EpochResponse,
) -> None:
    if response.error is not ErrorCode.none:
        raft.back_off(source)
    elif isinstance(request, EndQuorumEpochRequest):
        raft.unconfirmed.pop(source, None)


# The end of an epoch.


def announce_end(raft: Replica, leader: LeaderState | None = None) -> None:
    """Begin to send EndQuorumEpoch to the voters. `leader` ranks the preferred successors."""
    voters = raft.voters.latest.find_others(raft.local)
    reached = {} if leader is None else leader.get_end_offsets(raft.voters.latest)
    ranked = sorted(voters, key=lambda v: (-reached.get(v.key.id, -1), v.key.id))
    successors = tuple(voter.key for voter in ranked)
    raft.unconfirmed = {voter.key.id: successors for voter in voters}


def send_end(raft: Replica) -> None:
    for to, successors in raft.unconfirmed.items():
        if raft.can_send(to):
            raft.send(to, EndQuorumEpochRequest(raft.local.id, raft.epoch, successors))


def on_end(raft: Replica, message: RaftMessage, request: EndQuorumEpochRequest) -> None:
    """The first preferred candidate starts an election at once, the others later, by rank."""
    if request.leader_epoch < raft.epoch:
        raft.reply(
            message.source,
            message.correlation,
            _build_epoch_response(raft, ErrorCode.fenced_leader_epoch),
        )
        return
    if request.leader_id != raft.local.id:
        raft.observe(request.leader_epoch, request.leader_id)
    if raft.role is Role.FOLLOWER and raft.leader_id == request.leader_id:
        # This replica may grant pre-votes again: there is no leader to disturb.
        raft.has_fetched = False
        if raft.may_stand:
            raft.deadline_ms = raft.now_ms + _compute_turn_ms(raft, request)
    raft.reply(message.source, message.correlation, _build_epoch_response(raft, ErrorCode.none))


def _compute_turn_ms(raft: Replica, request: EndQuorumEpochRequest) -> int:
    own_keys = [key for key in request.preferred_candidates if is_for(raft, key)]
    if not own_keys:
        return raft.settings.election_timeout_ms
    rank = request.preferred_candidates.index(own_keys[0])
    if rank == 0:
        return 0
    limit = raft.settings.retry_backoff_ms << min(rank, 10)
    return min(limit, raft.settings.election_backoff_max_ms) + raft.choose(limit)
