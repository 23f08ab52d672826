"""Changes of the voter set, one at a time (KIP-853).

A change begins once a record of the leader's own epoch and the previous change are committed.
Otherwise two sets without a common majority could be in force. Until then the request waits, as
long as the leader leads; Kafka refuses it. A new voter must have caught up, so that it does not
delay commits. A change is refused if the majority of the new set does not fetch at present: the
set could not commit itself. The response waits for the commit, unless a client that adds a voter
asks for it as soon as the leader has the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode
from shoal.quorum.leader_state import LeaderState, PendingVoters
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    Change,
    RaftMessage,
    RaftVoterResponse,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
)
from shoal.record.control import ControlType

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.quorum.replica import Replica
    from shoal.quorum.voters import ReplicaKey, VoterSet


class _ChangeRefused(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def change_voters(
    raft: Replica, leader: LeaderState | None, message: RaftMessage, request: Change
) -> bool:
    """Begin the change, refuse it, or keep it until the change before it is committed.

    Returns whether a new voter set is in force.
    """
    try:
        if leader is None:
            raise _ChangeRefused(
                ErrorCode.not_leader_or_follower, "This node does not lead the quorum."
            )
        if not _may_change(raft, leader):
            leader.waiting_changes.append((message, request))
            return False
        voters = _CHANGE_BY_REQUEST[type(request)](raft, leader, request)
        if voters == raft.voters.latest:
            _answer(raft, message)
            return False
        _check_majority(raft, leader, voters)
    except _ChangeRefused as refused:
        _answer(raft, message, refused.error, refused.message)
        return False
    offset = append_voters(raft, leader, voters)
    may_wait = not isinstance(request, AddRaftVoterRequest) or request.ack_when_committed
    leader.pending_voters = PendingVoters(offset, message if may_wait else None)
    if not may_wait:
        _answer(raft, message)
    return True


def append_voters(raft: Replica, leader: LeaderState, voters: VoterSet) -> int:
    """Put a new voter set in force; return the offset of its record."""
    offset = raft.index.end_offset
    raft.append_control([(ControlType.KRAFT_VOTERS, voters.to_fields())])
    raft.voters.append(offset, voters)
    for voter in voters.find_others(raft.local):
        leader.begin_due_ms.setdefault(voter.key.id, raft.now_ms)
    return offset


def _may_change(raft: Replica, leader: LeaderState) -> bool:
    """Whether a record of this epoch and the previous change are committed."""
    uncommitted = max(leader.start_offset, raft.voters.latest_offset)
    return raft.high_watermark > uncommitted


# The requested sets. Each function raises `_ChangeRefused`.


def _add_voter(raft: Replica, leader: LeaderState, request: AddRaftVoterRequest) -> VoterSet:
    voter, voters = request.voter, raft.voters.latest
    id = voter.key.id
    if id in voters.voters:
        text = f"Node {id} is a voter already; remove it first if its directory has changed."
        raise _ChangeRefused(ErrorCode.duplicate_voter, text)
    progress = leader.replicas.get(id)
    since_ms = raft.now_ms - raft.settings.caught_up_max_ms
    if (
        progress is None
        or progress.key != voter.key
        or progress.caught_up_ms is None
        or progress.caught_up_ms < since_ms
    ):
        text = f"Node {id} has not caught up with the leader yet; let it run as an observer."
        raise _ChangeRefused(ErrorCode.request_timed_out, text)
    return voters.with_voter(voter)


def _remove_voter(raft: Replica, _leader: LeaderState, request: RemoveRaftVoterRequest) -> VoterSet:
    voters, key = raft.voters.latest, request.voter
    voter = voters.voters.get(key.id)
    if voter is None or voter.key.directory_id not in (None, key.directory_id):
        raise _build_not_voter_error(key)
    if len(voters) == 1:
        text = f"Node {key.id} is the only voter: add another one first."
        raise _ChangeRefused(ErrorCode.invalid_request, text)
    return voters.without_voter(key)


def _update_voter(raft: Replica, _leader: LeaderState, request: UpdateRaftVoterRequest) -> VoterSet:
    """Set the endpoints of a voter, or the directory id that the set does not have yet."""
    if request.current_leader_epoch != raft.epoch:
        text = f"Epoch {request.current_leader_epoch} is not the leader's, {raft.epoch}."
        raise _ChangeRefused(ErrorCode.fenced_leader_epoch, text)
    voters, voter = raft.voters.latest, request.voter
    present = voters.voters.get(voter.key.id)
    if present is None or not present.is_of(voter.key):
        raise _build_not_voter_error(voter.key)
    return voters.with_updated_voter(voter)


def _build_not_voter_error(key: ReplicaKey) -> _ChangeRefused:
    text = f"Node {key.id} with directory {key.directory_id} is not a voter."
    return _ChangeRefused(ErrorCode.voter_not_found, text)


_CHANGE_BY_REQUEST: dict[type[Change], Callable[[Replica, LeaderState, Any], VoterSet]] = {
    AddRaftVoterRequest: _add_voter,
    RemoveRaftVoterRequest: _remove_voter,
    UpdateRaftVoterRequest: _update_voter,
}


# Commit.


def _check_majority(raft: Replica, leader: LeaderState, voters: VoterSet) -> None:
    """Raise `_ChangeRefused` unless a majority of `voters` fetches now."""
    since_ms = raft.now_ms - raft.settings.check_quorum_ms
    if leader.count_fetching(voters, raft.local, since_ms) < voters.majority:
        text = (
            f"Of the voters {', '.join(map(str, voters.ids))} fewer than {voters.majority} fetch"
            " now, so the quorum would stop: start the others first."
        )
        raise _ChangeRefused(ErrorCode.request_timed_out, text)


def finish_committed_change(raft: Replica, leader: LeaderState) -> bool:
    """Answer the committed change, resign if this replica was removed, and begin the next change.

    Called when the high watermark has moved. Returns whether a new voter set is in force.
    """
    pending = leader.pending_voters
    if pending is not None and pending.offset < raft.high_watermark:
        leader.pending_voters = None
        if pending.message is not None:
            _answer(raft, pending.message)
    if raft.voters.latest_offset < raft.high_watermark and not raft.is_voter:
        raft.resign()
    while leader is raft.leader_state and leader.waiting_changes and _may_change(raft, leader):
        if change_voters(raft, leader, *leader.waiting_changes.popleft()):
            return True
    return False


def fail_waiting(raft: Replica, leader: LeaderState) -> None:
    """Refuse the changes that wait: the epoch is over."""
    waiting = [message for message, _ in leader.waiting_changes]
    if leader.pending_voters is not None and leader.pending_voters.message is not None:
        waiting.insert(0, leader.pending_voters.message)
    text = "The leader changed before the new voters were committed."
    for message in waiting:
        _answer(raft, message, ErrorCode.not_leader_or_follower, text)


def _answer(
    raft: Replica, message: RaftMessage, error: ErrorCode = ErrorCode.none, text: str | None = None
) -> None:
    response = RaftVoterResponse(raft.epoch, raft.known_leader, error, text)
    raft.reply(message.source, message.correlation, response)
