"""What a leader keeps of its epoch: how far each replica is, and who waits for an answer.

Progress is by node id; a replica that comes back with another directory starts from nothing.
Voters count for the high watermark and for check-quorum, observers are kept to be told about and
to be let in as voters.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from shoal.quorum.messages import Change, FetchRequest, Message
from shoal.quorum.voters import ReplicaKey, VoterSet

#: Observers are remembered up to so many; the one unheard of for longest goes first.
OBSERVERS_MAX = 1000


class Progress:
    """One replica, as its fetches tell."""

    __slots__ = ("caught_up_ms", "end_offset", "fetched_ms", "key")

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        #: Durable there, if it is a voter; -1 before its first fetch of this epoch.
        self.end_offset = -1
        self.fetched_ms = 0
        #: When it last had all that the leader had.
        self.caught_up_ms: int | None = None


class DelayedFetch(NamedTuple):
    """A fetch that waits for something to answer with."""

    source: int
    correlation: Any
    request: FetchRequest
    deadline_ms: int


class PendingVoters(NamedTuple):
    """A change of the voter set that waits for its commit: its record, and who asked for it."""

    offset: int
    asked: Message


class LeaderState:
    """The leader's state; it ends with its epoch."""

    def __init__(self, epoch: int, start_offset: int, now_ms: int) -> None:
        self.epoch = epoch
        #: Where the leader's own LeaderChange stands. Nothing is committed before that one is.
        self.start_offset = start_offset
        self.began_ms = now_ms
        self.replicas: dict[int, Progress] = {}
        self.delayed_fetches: dict[int, DelayedFetch] = {}
        self.pending_voters: PendingVoters | None = None
        #: Changes of the voters that wait for the one before them, in their order.
        self.waiting_changes: deque[tuple[Message, Change]] = deque()
        #: When each voter is told again that this epoch has begun.
        self.begin_due_ms: dict[int, int] = {}

    def fetched(self, key: ReplicaKey, now_ms: int) -> Progress:
        """The replica has fetched; its progress."""
        progress = self.replicas.get(key.id)
        if progress is None or progress.key != key:
            progress = self.replicas[key.id] = Progress(key)
        progress.fetched_ms = now_ms
        return progress

    def forget_observers(self, voters: VoterSet) -> None:
        """Keep the table bounded."""
        extra = [p for p in self.replicas.values() if not voters.holds(p.key)]
        for progress in sorted(extra, key=lambda p: p.fetched_ms)[: -OBSERVERS_MAX or None]:
            del self.replicas[progress.key.id]

    def offsets(self, voters: VoterSet) -> dict[int, int]:
        """Voter id -> the offset up to which it has the log, for those that have fetched."""
        return {p.key.id: p.end_offset for p in self.replicas.values() if voters.holds(p.key)}

    def fetching(self, voters: VoterSet, local: ReplicaKey, since_ms: int) -> int:
        """How many of the voters have fetched since then; the leader counts if it is one."""
        heard = [p for p in self.replicas.values() if p.fetched_ms >= since_ms]
        return voters.holds(local) + sum(voters.holds(p.key) and p.key != local for p in heard)

    def check_quorum_ms(self, voters: VoterSet, local: ReplicaKey, timeout_ms: int) -> int | None:
        """When the leader has to give up unless more voters fetch; None when it needs none.

        The leader counts itself if it is a voter, so it needs the last fetch of the voter that
        completes a majority to be young enough.
        """
        needed = voters.majority - voters.holds(local)
        if needed <= 0:
            return None
        times = []
        for voter in voters.others(local):
            found = self.replicas.get(voter.key.id)
            heard = found is not None and voter.is_of(found.key)
            times.append(found.fetched_ms if found is not None and heard else self.began_ms)
        return sorted(times, reverse=True)[needed - 1] + timeout_ms
