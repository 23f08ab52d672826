"""The state of a leader in its epoch: the progress of each replica, and the delayed requests.

Progress is kept by node id; a replica with another directory id starts again. Voters count for the
high watermark and for check-quorum. Observers are kept for DescribeQuorum, and because only an
observer that has caught up can become a voter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shoal.quorum.messages import Change, FetchRequest, RaftMessage
    from shoal.quorum.voters import ReplicaKey, VoterSet

#: Largest number of observers kept; the one with the oldest fetch is dropped first.
OBSERVERS_MAX = 1000


class ReplicaProgress:
    """The progress of one replica, from its fetches."""

    __slots__ = ("caught_up_ms", "end_offset", "fetched_ms", "key")

    def __init__(self, key: ReplicaKey) -> None:
        self.key = key
        #: The durable end of its log, if it is a voter; -1 before its first fetch of this epoch.
        self.end_offset = -1
        self.fetched_ms = 0
        #: The last time at which it had the whole log of the leader.
        self.caught_up_ms: int | None = None


class DelayedFetch(NamedTuple):
    """A fetch that waits for records or for a higher high watermark."""

    source: int
    correlation: Any
    request: FetchRequest
    deadline_ms: int


class PendingVoters(NamedTuple):
    """A change of the voters that waits for its commit: the offset of its record, and its request
    unless that is answered."""

    offset: int
    message: RaftMessage | None


class LeaderState:
    """State that a leader keeps for one epoch."""

    def __init__(self, epoch: int, start_offset: int, now_ms: int) -> None:
        self.epoch = epoch
        #: The offset of the leader's LeaderChange record. It has to be committed first.
        self.start_offset = start_offset
        self.began_ms = now_ms
        self.replicas: dict[int, ReplicaProgress] = {}
        self.delayed_fetches: dict[int, DelayedFetch] = {}
        self.pending_voters: PendingVoters | None = None
        #: Changes of the voters that wait for the change before them, in order.
        self.waiting_changes: deque[tuple[RaftMessage, Change]] = deque()
        #: By voter, when the next BeginQuorumEpoch is due.
        self.begin_due_ms: dict[int, int] = {}

    def record_fetch(self, key: ReplicaKey, now_ms: int) -> ReplicaProgress:
        """Note a fetch of the replica; return its progress."""
        progress = self.replicas.get(key.id)
        if progress is None or progress.key != key:
            progress = self.replicas[key.id] = ReplicaProgress(key)
        progress.fetched_ms = now_ms
        return progress

    def forget_observers(self, voters: VoterSet) -> None:
        """Drop observers above `OBSERVERS_MAX`."""
        extra = [p for p in self.replicas.values() if not voters.has_voter(p.key)]
        for progress in sorted(extra, key=lambda p: p.fetched_ms)[: -OBSERVERS_MAX or None]:
            del self.replicas[progress.key.id]

    def get_end_offsets(self, voters: VoterSet) -> dict[int, int]:
        """Return the durable log ends of the voters that have fetched, by id."""
        return {p.key.id: p.end_offset for p in self.replicas.values() if voters.has_voter(p.key)}

    def count_fetching(self, voters: VoterSet, local: ReplicaKey, since_ms: int) -> int:
        """Return how many voters have fetched since `since_ms`; the leader counts if it is one."""
        heard = [p for p in self.replicas.values() if p.fetched_ms >= since_ms]
        return voters.has_voter(local) + sum(
            voters.has_voter(p.key) and p.key != local for p in heard
        )

    def find_resign_deadline_ms(
        self, voters: VoterSet, local: ReplicaKey, timeout_ms: int
    ) -> int | None:
        """Return when the leader has to resign unless more voters fetch; None if it needs none.

        The leader counts itself if it is a voter. The time counts from the last fetch of the voter
        that completes a majority.
        """
        needed = voters.majority - voters.has_voter(local)
        if needed <= 0:
            return None
        times = []
        for voter in voters.find_others(local):
            progress = self.replicas.get(voter.key.id)
            heard = progress is not None and voter.is_of(progress.key)
            times.append(progress.fetched_ms if progress is not None and heard else self.began_ms)
        return sorted(times, reverse=True)[needed - 1] + timeout_ms
