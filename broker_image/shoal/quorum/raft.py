"""One replica of the metadata log: KRaft's Raft, one event in, one `Effects` out.

Followers and observers fetch from the leader. The fetch offset of a voter asserts that its log is
durable up to there. The high watermark is the offset that a majority of the voters
has reached, once it includes a record of the leader's own epoch. Raft 5.4.2 counts copies of such
records only, and commits earlier records with them.

The same events, times and numbers from `choose` lead to the same `Effects`. `now_ms` is the time of
a monotonic clock. `choose(n)` returns a number in [0, n), which spreads elections.

The rules are in `elections` (votes, begin and end of epochs), `leading`, `following` and
`membership`. Their functions use the public fields of `replica.Replica`. This module has the
transitions, the timers and the entry point `step`. `server.cluster.quorum` and the simulation call
it. Source: KIP-595, KIP-630, KIP-853, KIP-996, KIP-1166; Ongaro and Ousterhout, "In Search
of an Understandable Consensus Algorithm".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.quorum import elections, following, leading
from shoal.quorum.events import (
    Effects,
    Event,
    LogSynced,
    MessageReceived,
    PeerDown,
    Propose,
    RequestFailed,
    Resign,
    SnapshotInstalled,
    SnapshotTaken,
    Tick,
    Trim,
)
from shoal.quorum.leader_state import LeaderState
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftMessage,
    RemoveRaftVoterRequest,
    Response,
    UpdateRaftVoterRequest,
    VoteRequest,
    VoteResponse,
)
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.replica import QuorumSettings, Replica
from shoal.quorum.states import Role, check_move

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.quorum.log_index import LogIndex, OffsetAndEpoch
    from shoal.quorum.voters import ReplicaKey, VoterHistory

#: Transitions that one event can cause. A sole voter becomes leader in three.
_MOVES_MAX = 8
#: Elections after a leader is lost are spread over this multiple of the retry back-off.
_LOST_LEADER_SPREAD = 5


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
        """Set the role after a restart, by the quorum-state (KIP-595)."""
        if self.leader_id == self.local.id:
            # A leader that restarts has lost what it sent before it was durable. It must not
            # lead the same epoch again.
            self.role = Role.RESIGNED
            elections.announce_end(self)
        elif self.leader_id is not None:
            self.role = Role.FOLLOWER
        self.arm()

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time for the next `Tick`."""
        due = [flight.deadline_ms for flight in self.in_flight.values()]
        due += self.retry_ms.values()
        if self.deadline_ms is not None:
            due.append(self.deadline_ms)
        if self.leader_state is not None:
            due += leading.collect_deadlines(self, self.leader_state)
        return min((deadline for deadline in due if deadline > self.now_ms), default=None)

    # The entry point.

    def step(self, event: Event, now_ms: int) -> Effects:
        """Handle one event; return its effects, which the caller carries out."""
        self.begin_effects()
        self.now_ms = max(self.now_ms, now_ms)
        match event:
            case Tick():
                pass
            case MessageReceived() | RequestFailed() | PeerDown():
                self._on_network_event(event)
            case LogSynced() | SnapshotTaken() | SnapshotInstalled() | Trim():
                self._on_log_event(event)
            case Propose(batch):
                leading.propose(self, batch)
            case Resign():
                if self.role is Role.LEADER:
                    self.resign()
        self._drive()
        return self._collect_effects()

    def _on_network_event(self, event: MessageReceived | RequestFailed | PeerDown) -> None:
        match event:
            case MessageReceived(message):
                self._receive(message)
            case RequestFailed(to, correlation):
                if (flight := self.in_flight.get(to)) and flight.correlation == correlation:
                    self._give_up(to)
            case PeerDown(id):
                self._on_peer_down(id)

    def _on_log_event(self, event: LogSynced | SnapshotTaken | SnapshotInstalled | Trim) -> None:
        match event:
            case LogSynced(end_offset):
                self._on_synced(end_offset)
            case SnapshotTaken(snapshot_id):
                self._on_snapshot_taken(snapshot_id)
            case SnapshotInstalled(snapshot_id, voters):
                following.complete_install(self, snapshot_id, voters)
            case Trim(base):
                self._trim(base)

    def _receive(self, message: RaftMessage) -> None:
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
        """Handle expired timers, and send the messages of the role."""
        for to in [
            to for to, flight in self.in_flight.items() if flight.deadline_ms <= self.now_ms
        ]:
            self._give_up(to)
        for to in [to for to, due_ms in self.retry_ms.items() if due_ms <= self.now_ms]:
            del self.retry_ms[to]
        for _ in range(_MOVES_MAX):
            if not self._run_timer():
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

    def _run_timer(self) -> bool:
        """Change the role if its deadline has passed; return whether it did."""
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
                # Its own epoch is over.
                self.become_unattached(self.epoch + 1)
        return True

    def _collect_effects(self) -> Effects:
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

    # Transitions.

    def _move(self, role: Role, epoch: int, leader_id: int | None) -> None:
        check_move(self.role, self.epoch, role, epoch)
        leader, self.leader_state = self.leader_state, None
        if epoch > self.epoch:
            self.voted, self.leader_gone = None, False
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
        """Wait for a leader, which is unknown."""
        self._move(Role.UNATTACHED, epoch, None)

    def become_follower(self, epoch: int, leader_id: int) -> None:
        assert leader_id != self.local.id
        self._move(Role.FOLLOWER, epoch, leader_id)

    def become_prospective(self) -> None:
        """Begin the pre-vote: ask whether an election would succeed."""
        self._move(Role.PROSPECTIVE, self.epoch, self.leader_id)
        elections.count_votes(self)

    def become_candidate(self) -> None:
        self._move(Role.CANDIDATE, self.epoch + 1, None)
        self.voted = self.local
        elections.count_votes(self)

    def become_leader(self) -> None:
        granting = [self.local.id, *(id for id, granted in sorted(self.votes.items()) if granted)]
        self._move(Role.LEADER, self.epoch, self.local.id)
        self.failures = 0
        self.leader_state = LeaderState(self.epoch, self.index.end_offset, self.now_ms)
        leading.open_epoch(self, self.leader_state, granting)

    def stand_down(self) -> None:
        """End a lost pre-vote: follow the known leader, or wait for one."""
        if self.leader_id is not None:
            self.become_follower(self.epoch, self.leader_id)
        else:
            self.become_unattached(self.epoch)

    def resign(self) -> None:
        """Stop leading. EndQuorumEpoch names the voter with the longest log first."""
        leader = self.leader_state
        assert leader is not None
        elections.announce_end(self, leader)
        unconfirmed = dict(self.unconfirmed)
        self._move(Role.RESIGNED, self.epoch, self.local.id)
        self.unconfirmed = unconfirmed

    def observe(self, epoch: int, leader_id: int | None) -> bool:
        """Adopt a higher epoch, or its leader, from a message; return whether the role changed."""
        if leader_id == self.local.id:
            # No message changes whether this replica leads.
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

    def _on_peer_down(self, id: int) -> None:
        """Stop waiting for a leader or a voter whose process has ended.

        A candidate counts a voter that is down as refused, so a split vote ends at once.
        """
        if self.role is Role.CANDIDATE and id in self.voters.latest.ids:
            self.votes.setdefault(id, False)
            elections.count_votes(self)
            return
        if id == self.leader_id:
            self.lose_leader()

    def lose_leader(self) -> None:
        """Look for another leader soon: this one's process has ended, or says that it does not
        lead. A random delay keeps two followers from splitting the vote."""
        if self.role is not Role.FOLLOWER or self.leader_gone:
            return
        if not self.may_stand:
            self.become_unattached(self.epoch)
            return
        self.has_fetched, self.leader_gone = False, True
        soon_ms = self.now_ms + self.choose(_LOST_LEADER_SPREAD * self.settings.retry_backoff_ms)
        self.deadline_ms = min(self.deadline_ms or soon_ms, soon_ms)

    def _on_synced(self, end_offset: int) -> None:
        self._syncing = self._cut_syncing = False
        if not self._cut_owed:
            self.synced_offset = max(self.synced_offset, min(end_offset, self.index.end_offset))
        if self.leader_state is not None:
            leading.advance(self, self.leader_state)

    def _on_snapshot_taken(self, snapshot_id: OffsetAndEpoch) -> None:
        """Note a snapshot. The log before it stays until `Trim`, for followers that lag."""
        index, before = self.index, self.index.snapshot
        assert (before or index.base).offset < snapshot_id.offset <= self.high_watermark
        assert index.find_epoch(snapshot_id.offset) == snapshot_id.epoch, snapshot_id
        index.snapshots.append(snapshot_id)

    def _trim(self, base: OffsetAndEpoch) -> None:
        """Begin the log at a snapshot, unless an installed one has replaced it meanwhile."""
        index = self.index
        if base in index.snapshots and base.offset > index.start_offset:
            index.trim(base)
            self.voters.trim(base.offset)
            self.trim_to = base


_REQUESTS: dict[type, Callable[[Raft, RaftMessage, Any], None]] = {
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
