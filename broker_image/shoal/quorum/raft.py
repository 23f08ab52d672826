"""One replica of the metadata log: KRaft's Raft, one event in, one `Effects` out.

Replication is by fetching: followers and observers ask the leader for what lies behind their log's
end, and the offset that a voter asks for says what is durable with it. The high watermark is what a
majority of voters has said so of, once that includes a record of the leader's own epoch (Raft
5.4.2: only those are committed by counting; what lies before them is, along with them).

Same events, same times and same numbers from `choose`: the same `Effects`. `now_ms` is a monotonic
clock's. `choose(n)` gives a number in [0, n) and spreads elections out. The log is `LogIndex` here;
what `Effects` asks for must be done before the next event.

The replica's fields are public to the modules of this package, among which its rules are divided:
`elections` (votes, begin and end of epochs), `leading`, `following`, `membership`. This module has
the roles' moves, the timers, and requests under way. Called by the broker's shell and by the
simulation. Source: KIP-595, KIP-630, KIP-853, KIP-996, KIP-1166; Ongaro and Ousterhout, "In Search
of an Understandable Consensus Algorithm".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.quorum import elections, following, leading
from shoal.quorum.events import (
    Effects,
    Event,
    PeerDown,
    Propose,
    Received,
    RequestFailed,
    Resign,
    SnapshotInstalled,
    SnapshotTaken,
    Synced,
    Tick,
    Trim,
)
from shoal.quorum.leader_state import LeaderState
from shoal.quorum.log_index import LogIndex, OffsetAndEpoch
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Message,
    RemoveRaftVoterRequest,
    Response,
    UpdateRaftVoterRequest,
    VoteRequest,
    VoteResponse,
)
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.replica import QuorumSettings, Replica
from shoal.quorum.states import Role, check_move
from shoal.quorum.voters import ReplicaKey, VoterHistory

#: Moves that one event can cause: an only voter goes from unattached to leader in three.
_MOVES_MAX = 8
#: Over how many times retry.backoff.ms elections are spread when the leader's process has ended.
_PEER_DOWN_SPREAD = 5


class Raft(Replica):
    """A replica with its transitions between roles, and its timers."""

    def __init__(
        self,
        local: ReplicaKey,
        settings: QuorumSettings,
        *,
        state: QuorumState,
        index: LogIndex,
        voters: VoterHistory,
        choose: Callable[[int], int],
        now_ms: int,
    ) -> None:
        """`state`, `index` and `voters` are what is durable on disk."""
        super().__init__(
            local, settings, state=state, index=index, voters=voters, choose=choose, now_ms=now_ms
        )
        self._start()

    def _start(self) -> None:
        """The role after a restart, by what the quorum-state says (KIP-595)."""
        if self.leader_id == self.local.id:
            # What was said as a leader and did not reach the disk is forgotten, so the epoch is
            # not led on.
            self.role = Role.RESIGNED
            elections.announce_end(self)
        elif self.leader_id is not None:
            self.role = Role.FOLLOWER
        self.arm()

    @property
    def next_deadline_ms(self) -> int | None:
        """When a `Tick` is due at the latest."""
        due = [flight.deadline_ms for flight in self.in_flight.values()]
        due += self.retry_ms.values()
        if self.deadline_ms is not None:
            due.append(self.deadline_ms)
        if self.leader_state is not None:
            due += leading.deadlines(self, self.leader_state)
        return min((at for at in due if at > self.now_ms), default=None)

    # The one entry point.

    def step(self, event: Event, now_ms: int) -> Effects:
        """Take in one event; what it asks of the caller comes back."""
        self.begin_effects()
        self.now_ms = max(self.now_ms, now_ms)
        match event:
            case Tick():
                pass
            case Received(message):
                self._receive(message)
            case RequestFailed(to, correlation):
                if (flight := self.in_flight.get(to)) and flight.correlation == correlation:
                    self._give_up(to)
            case PeerDown(id):
                self._peer_down(id)
            case Synced(end_offset):
                self._synced(end_offset)
            case Propose(batch):
                leading.propose(self, batch)
            case Resign():
                if self.role is Role.LEADER:
                    self.resign()
            case SnapshotTaken(snapshot_id):
                self._snapshot_taken(snapshot_id)
            case Trim(base):
                self._trim(base)
            case SnapshotInstalled(snapshot_id, voters):
                following.installed(self, snapshot_id, voters)
        self._drive()
        return self._effects()

    def _receive(self, message: Message) -> None:
        body = message.body
        if isinstance(body, Response):
            flight = self.in_flight.get(message.source)
            if flight is None or flight.correlation != message.correlation:
                return
            del self.in_flight[message.source]
            if not self.observe(body.leader_epoch, body.leader_id):
                _RESPONSES[type(body)](self, message.source, flight.body, body)
            return
        _REQUESTS[type(body)](self, message, body)

    def _drive(self) -> None:
        """Do what is due, and send what the role has to say."""
        for to in [
            to for to, flight in self.in_flight.items() if flight.deadline_ms <= self.now_ms
        ]:
            self._give_up(to)
        for to in [to for to, at in self.retry_ms.items() if at <= self.now_ms]:
            del self.retry_ms[to]
        for _ in range(_MOVES_MAX):
            if not self._timer():
                break
        match self.role:
            case Role.PROSPECTIVE | Role.CANDIDATE:
                elections.ask_for_votes(self)
            case Role.LEADER:
                leading.drive(self)
            case Role.FOLLOWER | Role.UNATTACHED:
                following.drive(self)
            case Role.RESIGNED:
                elections.send_end(self)

    def _timer(self) -> bool:
        """Whether the role's time was up, and the replica moved."""
        if self.role is Role.LEADER:
            return leading.resign_if_quorum_lost(self)
        if self.deadline_ms is None or self.deadline_ms > self.now_ms:
            return False
        match self.role:
            case Role.UNATTACHED if not self.may_stand:
                self.deadline_ms = None
            case Role.UNATTACHED | Role.CANDIDATE:
                self.become_prospective()
            case Role.PROSPECTIVE:
                self.stand_down()
            case Role.FOLLOWER if self.may_stand:
                self.become_prospective()
            case Role.FOLLOWER:
                self.become_unattached(self.epoch)
            case Role.RESIGNED:
                # The epoch that this replica led is over for it.
                self.become_unattached(self.epoch + 1)
        return True

    def _effects(self) -> Effects:
        state = QuorumState(self.epoch, self.leader_id, self.voted)
        changed = state != self._written
        self._written = state
        sync = self._sync_due and not self._syncing
        if sync:
            self._syncing, self._cut_syncing, self._cut_owed = True, self._cut_owed, False
        return Effects(
            state if changed else None,
            self.truncate_to,
            tuple(self.appends),
            self.chunk,
            self.install,
            self.trim_to,
            tuple(self.messages),
            sync,
            self.high_watermark,
            self.proposed,
        )

    # Moves.

    def _move(self, role: Role, epoch: int, leader_id: int | None) -> None:
        check_move(self.role, self.epoch, role, epoch)
        leader, self.leader_state = self.leader_state, None
        if epoch > self.epoch:
            self.voted = None
        self.role, self.epoch, self.leader_id = role, epoch, leader_id
        self.votes.clear()
        self.in_flight.clear()
        self.retry_ms.clear()
        self.unconfirmed.clear()
        self.download = None
        self.has_fetched = False
        if leader is not None:
            leading.fail_waiting(self, leader)
        self.arm()

    def become_unattached(self, epoch: int) -> None:
        """There is no leader that this replica knows of."""
        self._move(Role.UNATTACHED, epoch, None)

    def become_follower(self, epoch: int, leader_id: int) -> None:
        assert leader_id != self.local.id
        self._move(Role.FOLLOWER, epoch, leader_id)

    def become_prospective(self) -> None:
        """Ask whether an election would be won."""
        self._move(Role.PROSPECTIVE, self.epoch, self.leader_id)
        elections.count(self)

    def become_candidate(self) -> None:
        self._move(Role.CANDIDATE, self.epoch + 1, None)
        self.voted = self.local
        elections.count(self)

    def become_leader(self) -> None:
        granting = [self.local.id, *(id for id, granted in sorted(self.votes.items()) if granted)]
        self._move(Role.LEADER, self.epoch, self.local.id)
        self.failures = 0
        self.leader_state = LeaderState(self.epoch, self.index.end_offset, self.now_ms)
        leading.open_epoch(self, self.leader_state, granting)

    def stand_down(self) -> None:
        """Nobody would have this replica as a leader now: follow on, or wait for another."""
        if self.leader_id is not None:
            self.become_follower(self.epoch, self.leader_id)
        else:
            self.become_unattached(self.epoch)

    def resign(self) -> None:
        """Stop leading; the voters are told, the one with the longest log first."""
        leader = self.leader_state
        assert leader is not None
        elections.announce_end(self, leader)
        unconfirmed = dict(self.unconfirmed)
        self._move(Role.RESIGNED, self.epoch, self.local.id)
        self.unconfirmed = unconfirmed

    def observe(self, epoch: int, leader_id: int | None) -> bool:
        """Another replica's view of who leads; whether it moved this one."""
        if leader_id == self.local.id:
            # What this replica is, it knows better itself.
            leader_id = None
        if epoch > self.epoch:
            if leader_id is None:
                self.become_unattached(epoch)
            else:
                self.become_follower(epoch, leader_id)
            return True
        if epoch < self.epoch or leader_id is None or self.leader_id is not None:
            assert epoch < self.epoch or leader_id in (None, self.leader_id), (
                f"nodes {leader_id} and {self.leader_id} both lead epoch {epoch}"
            )
            return False
        self.become_follower(epoch, leader_id)
        return True

    def _give_up(self, to: int) -> None:
        del self.in_flight[to]
        self.back_off(to)

    def _peer_down(self, id: int) -> None:
        """Do not wait for a leader that is gone. Who stands is left to chance, so that two do not
        get in each other's way. Nor for the vote of a voter that is gone: two who did get in each
        other's way know at once that nobody won."""
        if self.role is Role.CANDIDATE and id in self.voters.latest.ids:
            self.votes.setdefault(id, False)
            elections.count(self)
            return
        if self.role is not Role.FOLLOWER or self.leader_id != id:
            return
        if not self.may_stand:
            self.become_unattached(self.epoch)
            return
        self.has_fetched = False
        soon_ms = self.now_ms + self.choose(_PEER_DOWN_SPREAD * self.settings.retry_backoff_ms)
        self.deadline_ms = min(self.deadline_ms or soon_ms, soon_ms)

    def _synced(self, end_offset: int) -> None:
        self._syncing = self._cut_syncing = False
        if not self._cut_owed:
            self.synced_offset = max(self.synced_offset, min(end_offset, self.index.end_offset))
        if self.leader_state is not None:
            leading.advance(self, self.leader_state)

    def _snapshot_taken(self, snapshot_id: OffsetAndEpoch) -> None:
        """The log before the snapshot stays until `Trim`, for followers that are behind."""
        index, before = self.index, self.index.snapshot
        assert (before or index.base).offset < snapshot_id.offset <= self.high_watermark
        assert index.epoch_at(snapshot_id.offset) == snapshot_id.epoch, snapshot_id
        index.snapshots.append(snapshot_id)

    def _trim(self, base: OffsetAndEpoch) -> None:
        """Begin the log at a snapshot; an installed one may have replaced it meanwhile."""
        index = self.index
        if base in index.snapshots and base.offset > index.start_offset:
            index.trim(base)
            self.voters.trim(base.offset)
            self.trim_to = base


_REQUESTS: dict[type, Callable[[Raft, Message, Any], None]] = {
    VoteRequest: elections.on_vote,
    BeginQuorumEpochRequest: elections.on_begin,
    EndQuorumEpochRequest: elections.on_end,
    FetchRequest: leading.on_fetch,
    FetchSnapshotRequest: leading.on_fetch_snapshot,
    AddRaftVoterRequest: leading.on_change,
    RemoveRaftVoterRequest: leading.on_change,
    UpdateRaftVoterRequest: leading.on_change,
}
_RESPONSES: dict[type, Callable[[Raft, int, Any, Any], None]] = {
    VoteResponse: elections.on_vote_response,
    EpochResponse: elections.on_epoch_response,
    FetchResponse: following.on_fetch_response,
    FetchSnapshotResponse: following.on_fetch_snapshot_response,
}
