"""The leader: it opens its epoch, answers fetches, advances the high watermark, and resigns when no
majority fetches (check-quorum)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode
from shoal.quorum import elections, membership
from shoal.quorum.leader_state import DelayedFetch, LeaderState
from shoal.quorum.log_index import FetchValidation
from shoal.quorum.messages import (
    Change,
    DeferredRead,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftMessage,
)
from shoal.quorum.states import Role
from shoal.quorum.voters import KRAFT_VERSION
from shoal.record.batch import Buffer, assign, read_header
from shoal.record.control import ControlType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.quorum.replica import Replica


def open_epoch(raft: Replica, leader: LeaderState, granting: Sequence[int]) -> None:
    """Append the first record of the epoch. No commit of the epoch excludes it.

    A log without a voter set gets the configured one.
    """
    voters = raft.voters.latest
    first = {
        "leader_id": raft.local.id,
        "voters": [{"voter_id": id} for id in voters.ids],
        "granting_voters": [{"voter_id": id} for id in voters.ids if id in granting],
    }
    records = [(ControlType.LEADER_CHANGE, first)]
    if raft.voters.latest_offset < 0:
        own_voter = voters.voters[raft.local.id]._replace(key=raft.local)
        voters = voters.with_updated_voter(own_voter)
        records.append((ControlType.KRAFT_VERSION, {"kraft_version": KRAFT_VERSION}))
        records.append((ControlType.KRAFT_VOTERS, voters.to_fields()))
    raft.append_control(records)
    if len(records) > 1:
        raft.voters.append(raft.index.end_offset - 1, voters)
    for voter in voters.find_others(raft.local):
        leader.begin_due_ms[voter.key.id] = raft.now_ms


def propose(raft: Replica, batch: Buffer) -> None:
    """Append a batch if this replica leads. Otherwise `Effects.proposed` stays None."""
    if raft.role is not Role.LEADER:
        return
    data, base_offset = bytearray(batch), raft.index.end_offset
    assign(data, 0, base_offset, raft.epoch)
    next_offset = read_header(data).next_offset
    raft.append(data, raft.epoch, base_offset, next_offset)
    raft.proposed = next_offset - 1


# The high watermark.


def advance(raft: Replica, leader: LeaderState) -> None:
    """Commit what a majority of the voters has.

    The leader counts only if it is a voter. A commit may let the next change of the voters begin,
    and its record may be committed at once.
    """
    while _commit(raft, leader) and membership.finish_committed_change(raft, leader):
        pass


def _commit(raft: Replica, leader: LeaderState) -> bool:
    """Advance the high watermark; return whether it moved."""
    voters = raft.voters.latest
    reached = leader.get_end_offsets(voters)
    if voters.has_voter(raft.local):
        reached[raft.local.id] = raft.synced_offset
    offset = voters.find_committed_offset(reached)
    return offset > leader.start_offset and raft.commit(offset)


def on_change(raft: Replica, message: RaftMessage, request: Change) -> None:
    """Handle AddRaftVoter, RemoveRaftVoter or UpdateRaftVoter."""
    leader = raft.leader_state
    if membership.change_voters(raft, leader, message, request) and leader is not None:
        advance(raft, leader)


# Fetches.


def on_fetch(raft: Replica, message: RaftMessage, request: FetchRequest) -> None:
    leader = raft.leader_state
    error = _find_refusal(raft, request.current_leader_epoch)
    if min(request.fetch_offset, request.last_fetched_epoch, request.current_leader_epoch) < 0:
        error = ErrorCode.invalid_request  # of a consumer, for example
    if leader is None or error is not ErrorCode.none:
        response = FetchResponse(raft.epoch, raft.known_leader, error=error)
        raft.reply(message.source, message.correlation, response)
        return
    progress = leader.record_fetch(request.replica, raft.now_ms)
    leader.forget_observers(raft.voters.latest)
    verdict, epoch_end = raft.index.check(request.fetch_offset, request.last_fetched_epoch)
    if verdict is not FetchValidation.VALID:
        diverging = epoch_end if verdict is FetchValidation.DIVERGING else None
        snapshot_id = epoch_end if verdict is FetchValidation.SNAPSHOT else None
        response = FetchResponse(
            raft.epoch, raft.local.id, raft.high_watermark, diverging, snapshot_id
        )
        raft.reply(message.source, message.correlation, response)
        return
    if request.fetch_offset >= raft.index.end_offset:
        progress.caught_up_ms = raft.now_ms
    # An older request may arrive after a newer one.
    progress.end_offset = max(progress.end_offset, request.fetch_offset)
    before = leader.delayed_fetches.pop(request.replica.id, None)
    if before is not None:
        _answer(raft, before)
    deadline_ms = raft.now_ms + request.max_wait_ms
    leader.delayed_fetches[request.replica.id] = DelayedFetch(
        message.source, message.correlation, request, deadline_ms
    )
    advance(raft, leader)


def _find_refusal(raft: Replica, current_leader_epoch: int) -> ErrorCode:
    if raft.role is not Role.LEADER:
        return ErrorCode.not_leader_or_follower
    if current_leader_epoch < raft.epoch:
        return ErrorCode.fenced_leader_epoch
    if current_leader_epoch > raft.epoch:
        return ErrorCode.unknown_leader_epoch
    return ErrorCode.none


def _answer(raft: Replica, fetch: DelayedFetch) -> None:
    offset, end = fetch.request.fetch_offset, raft.index.end_offset
    records = DeferredRead(offset, end, raft.settings.fetch_max_bytes) if offset < end else b""
    response = FetchResponse(
        raft.epoch, raft.local.id, high_watermark=raft.high_watermark, records=records
    )
    raft.reply(fetch.source, fetch.correlation, response)


def on_fetch_snapshot(raft: Replica, message: RaftMessage, request: FetchSnapshotRequest) -> None:
    error = _find_refusal(raft, request.current_leader_epoch)
    index, snapshot_id = raft.index, request.snapshot_id
    if error is ErrorCode.none and snapshot_id not in (*index.snapshots, index.base):
        error = ErrorCode.snapshot_not_found
    if raft.leader_state is None or error is not ErrorCode.none:
        refused = FetchSnapshotResponse(raft.epoch, raft.known_leader, snapshot_id, error=error)
        raft.reply(message.source, message.correlation, refused)
        return
    raft.leader_state.record_fetch(request.replica, raft.now_ms)
    limit = min(request.max_bytes, raft.settings.fetch_snapshot_max_bytes)
    response = FetchSnapshotResponse(
        raft.epoch,
        raft.local.id,
        snapshot_id,
        position=request.position,
        unaligned_records=DeferredRead(request.position, -1, limit),
    )
    raft.reply(message.source, message.correlation, response)


def fail_waiting(raft: Replica, leader: LeaderState) -> None:
    """End the epoch: answer the delayed fetches and changes, with the new leader if known."""
    for fetch in leader.delayed_fetches.values():
        response = FetchResponse(
            raft.epoch, raft.known_leader, error=ErrorCode.not_leader_or_follower
        )
        raft.reply(fetch.source, fetch.correlation, response)
    membership.fail_waiting(raft, leader)


# Time.


def drive(raft: Replica) -> None:
    """Answer delayed fetches that are due, and send BeginQuorumEpoch to silent voters."""
    leader = raft.leader_state
    assert leader is not None
    for id in list(leader.delayed_fetches):
        fetch = leader.delayed_fetches[id]
        has_news = (
            fetch.request.fetch_offset < raft.index.end_offset
            or fetch.request.high_watermark < raft.high_watermark
        )
        if has_news or fetch.deadline_ms <= raft.now_ms:
            del leader.delayed_fetches[id]
            _answer(raft, fetch)
    interval_ms = raft.settings.fetch_timeout_ms // 2
    for voter in raft.voters.latest.find_others(raft.local):
        to = voter.key.id
        progress = leader.replicas.get(to)
        if progress is not None and voter.is_of(progress.key):
            leader.begin_due_ms[to] = max(
                leader.begin_due_ms[to], progress.fetched_ms + interval_ms
            )
        if leader.begin_due_ms[to] <= raft.now_ms and raft.can_send(to):
            leader.begin_due_ms[to] = raft.now_ms + interval_ms
            raft.send(to, elections.build_begin_request(raft, voter.key))


def collect_deadlines(raft: Replica, leader: LeaderState) -> list[int]:
    due = [fetch.deadline_ms for fetch in leader.delayed_fetches.values()]
    due += [
        leader.begin_due_ms[voter.key.id] for voter in raft.voters.latest.find_others(raft.local)
    ]
    lost_ms = _find_quorum_lost_ms(raft, leader)
    return due if lost_ms is None else [*due, lost_ms]


def _find_quorum_lost_ms(raft: Replica, leader: LeaderState) -> int | None:
    timeout_ms = raft.settings.check_quorum_ms
    return leader.find_resign_deadline_ms(raft.voters.latest, raft.local, timeout_ms)


def resign_if_quorum_lost(raft: Replica) -> bool:
    """Resign if no majority fetches: another replica may lead already (check-quorum)."""
    leader = raft.leader_state
    assert leader is not None
    lost_ms = _find_quorum_lost_ms(raft, leader)
    if lost_ms is None or lost_ms > raft.now_ms:
        return False
    raft.resign()
    return True
