"""State of one Raft replica, and what all of its rules use: messages, the log, the deadline.

`raft.Raft` extends it by the transitions between roles. The rules are modules of functions
(`elections`, `leading`, `following`, `membership`) that take a `Replica`. They call the
transitions through the abstract methods below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.quorum.control_records import build_control_batch
from shoal.quorum.messages import RaftMessage, Request, Response
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.states import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.quorum.events import SnapshotChunk
    from shoal.quorum.leader_state import LeaderState
    from shoal.quorum.log_index import LogIndex, OffsetAndEpoch
    from shoal.quorum.voters import ReplicaKey, VoterHistory
    from shoal.record.batch import Buffer
    from shoal.record.control import ControlType


class QuorumSettings(NamedTuple):
    """`controller.quorum.*` by Kafka's names and defaults, durations in milliseconds."""

    election_timeout_ms: int = 1_000
    election_backoff_max_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    #: How long a leader delays a fetch without new records.
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
    #: An observer can become a voter if it had the whole log within this time.
    caught_up_max_ms: int = 3_600_000

    @property
    def check_quorum_ms(self) -> int:
        """After this time without fetches of a majority a leader resigns."""
        return self.fetch_timeout_ms * 3 // 2


class CommittedRecordsLost(Exception):
    """The leader's log lacks records that were committed, or that were of this leader, or no voter
    knows an epoch that a voter led. Raft excludes this, so a majority of the voters has lost its
    data. The message is the rest of a sentence on that voter."""

    @classmethod
    def from_offsets(cls, common: int, committed: int) -> CommittedRecordsLost:
        """`common` is the offset up to which the logs agree, `committed` the end of what the leader
        should have."""
        return cls(
            f"its log agrees with this node's up to offset {common}, and this node has it up to"
            f" {committed}"
        )

    @classmethod
    def from_epochs(cls, epoch: int, known: int) -> CommittedRecordsLost:
        """`epoch` is that of the voters, `known` the one that this node has seen a voter lead."""
        return cls(f"it is in epoch {epoch}, and this node has followed it in epoch {known}")


class InFlightRequest(NamedTuple):
    """A request without a response; there is at most one to each peer."""

    correlation: int
    body: Request
    deadline_ms: int


class Replica(ABC):
    """Owns the epoch, the role in it, the index of the log and its voters."""

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
        self.local = local
        self.settings = settings
        self.choose = choose
        self.now_ms = now_ms
        self.index = index
        self.voters = voters
        self.high_watermark = (index.snapshot or index.base).offset
        self.synced_offset = index.end_offset
        self.role = Role.UNATTACHED
        if index.last_epoch > state.leader_epoch:
            state = QuorumState(index.last_epoch)
        self.epoch = state.leader_epoch
        self.leader_id = state.leader_id
        self.voted = state.voted
        #: When the role ends; None if it has no deadline.
        self.deadline_ms: int | None = None
        self.votes: dict[int, bool] = {}
        #: Lost elections since the last leader. The back-off doubles with each.
        self.failures = 0
        #: Whether the leader of this follower has answered a fetch. Then it refuses pre-votes.
        self.has_fetched = False
        #: Whether this epoch's leader leads no more. A follower stands again soon then: the voter
        #: that refused its pre-vote may not have noticed yet, and may have a shorter log.
        self.leader_gone = False
        #: The snapshot that is being fetched, and the bytes of it so far.
        self.download: tuple[OffsetAndEpoch, int] | None = None
        self.leader_state: LeaderState | None = None
        #: Voters that have not confirmed the end of this replica's leadership.
        self.unconfirmed: dict[int, tuple[ReplicaKey, ...]] = {}
        #: Voters in an epoch before the last one of this log, with that epoch (observers only).
        self.voters_behind: dict[int, int] = {}
        self.in_flight: dict[int, InFlightRequest] = {}
        self.retry_ms: dict[int, int] = {}
        self._correlation = 0
        self._written = state
        self._syncing = False
        #: The log was truncated, and no sync that covers the truncation has begun, or ended.
        self._cut_owed = self._cut_syncing = False
        self.begin_effects()

    def begin_effects(self) -> None:
        """Begin to collect the effects of an event."""
        self.truncate_to: int | None = None
        self.appends: list[Buffer] = []
        self.chunk: SnapshotChunk | None = None
        self.install: OffsetAndEpoch | None = None
        self.trim_to: OffsetAndEpoch | None = None
        self.messages: list[RaftMessage] = []
        self.proposed: int | None = None

    # State.

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def known_leader(self) -> int | None:
        """The leader to name in responses; None after this replica has resigned."""
        return None if self.role is Role.RESIGNED else self.leader_id

    @property
    def is_voter(self) -> bool:
        return self.voters.latest.has_voter(self.local)

    @property
    def may_stand(self) -> bool:
        """Whether this replica may become leader: a set that may be committed contains it.

        An uncommitted record may remove it. Its log may still be the only one that is up to date
        enough to win, and then it leads until the removal is committed (Ongaro's thesis, 4.2.2).
        The known high watermark is only a lower bound, in particular after a restart.
        """
        return any(
            voters.has_voter(self.local)
            for voters in self.voters.find_sets_since(self.high_watermark)
        )

    @property
    def sync_pending(self) -> bool:
        """Whether part of the log may not be durable."""
        return self._cut_syncing or self._sync_due

    @property
    def _sync_due(self) -> bool:
        return self._cut_owed or self.synced_offset < self.index.end_offset

    def arm(self) -> None:
        """Set the deadline of the role."""
        settings = self.settings
        if self.role is Role.LEADER or (self.role is Role.UNATTACHED and not self.may_stand):
            self.deadline_ms = None
        elif self.role is Role.FOLLOWER and not self.leader_gone:
            self.deadline_ms = self.now_ms + settings.fetch_timeout_ms
        elif self.is_voter and len(self.voters.latest) == 1:
            self.deadline_ms = self.now_ms
        else:
            spread_ms = self.choose(settings.election_timeout_ms)
            self.deadline_ms = self.now_ms + settings.election_timeout_ms + spread_ms

    # Messages.

    def can_send(self, to: int) -> bool:
        return to not in self.in_flight and to not in self.retry_ms

    def send(self, to: int, body: Request, *, wait_ms: int = 0) -> None:
        """Send a request that may take the peer `wait_ms` to answer."""
        self._correlation += 1
        deadline_ms = self.now_ms + self.settings.request_timeout_ms + wait_ms
        self.in_flight[to] = InFlightRequest(self._correlation, body, deadline_ms)
        self.messages.append(RaftMessage(self.local.id, to, self._correlation, body))

    def reply(self, to: int, correlation: Any, body: Response) -> None:
        self.messages.append(RaftMessage(self.local.id, to, correlation, body))

    def back_off(self, to: int) -> None:
        """Send nothing to the peer until its retry back-off has passed."""
        self.retry_ms[to] = self.now_ms + self.settings.retry_backoff_ms

    # The log.

    def append(self, data: Buffer, epoch: int, base_offset: int, next_offset: int) -> None:
        """Append a batch to the log."""
        self.index.append(epoch, base_offset, next_offset)
        self.appends.append(data)

    def append_control(self, records: list[tuple[ControlType, dict[str, Any]]]) -> None:
        """Append a batch of control records."""
        base_offset = self.index.end_offset
        batch = build_control_batch(
            records, base_offset=base_offset, leader_epoch=self.epoch, timestamp_ms=self.now_ms
        )
        self.append(batch, self.epoch, base_offset, base_offset + len(records))

    def truncate(self, offset: int) -> None:
        """Remove the records from `offset` on. Raises `CommittedRecordsLost`."""
        self.require_committed(offset)
        self.index.truncate(offset)
        self.voters.truncate(offset)
        self.truncate_to = offset
        self.synced_offset = min(self.synced_offset, offset)
        # No fetch is sent before the truncation is durable. New records may go to another file,
        # and a crash that undid only the truncation would join old and new records.
        self._cut_owed = True

    def require_committed(self, offset: int) -> None:
        """Raise `CommittedRecordsLost` if a leader's log continues ours only up to `offset`, and
        committed records are behind it."""
        if offset < self.high_watermark:
            raise CommittedRecordsLost.from_offsets(offset, self.high_watermark)

    def commit(self, offset: int) -> bool:
        """Advance the high watermark to `offset`; return whether it moved."""
        offset = min(offset, self.index.end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    # Transitions.

    @abstractmethod
    def become_unattached(self, epoch: int) -> None: ...

    @abstractmethod
    def become_candidate(self) -> None: ...

    @abstractmethod
    def become_leader(self) -> None: ...

    @abstractmethod
    def stand_down(self) -> None: ...

    @abstractmethod
    def resign(self) -> None: ...

    @abstractmethod
    def lose_leader(self) -> None: ...

    @abstractmethod
    def observe(self, epoch: int, leader_id: int | None) -> bool: ...
