"""Following: the fetches of one broker from one other, for all partitions which that one leads.

A machine without I/O. `next_fetch` gives the request to send, `answered` and `unanswered` take what
came of it; one request is under way at a time. What the machine cannot do itself it gives out:
partitions whose log is to be made durable (`Answered.sync`), after which `synced` lets them go on,
and those whose leader is to be asked where its log begins and ends (`Answered.ask`), for `offsets`.

A partition whose log parts from its leader's is cut back (KIP-101, KIP-595), and does not fetch on
before the cut is durable: a power loss might bring back what was cut, below what was fetched since.
Where acknowledged writes are to be on disk (`group_commit`) the same holds after every append: a
fetch offset vouches for all below it.

The session (KIP-227) tells a leader only what has changed since the last fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from shoal.log.errors import AppendRefused, CorruptLog, LogOffline
from shoal.protocol.errors import ErrorCode
from shoal.replication.partition import Partition, ReplicaFetch, ReplicaFetched

Key = tuple[UUID, int]
#: A fetch of no session, and the epoch of a session's first.
NO_SESSION, INITIAL_EPOCH = 0, 0
_EPOCH_MAX = 2**31 - 1
#: The first pause after a refusal. A new leader's image and its followers' come moments apart.
BACKOFF_MS = 20
#: replica.fetch.backoff.ms of Kafka.
BACKOFF_MAX_MS = 1_000


class Step(Enum):
    """Of one partition: it fetches, waits for its disk, or asks for its leader's offsets."""

    FETCHING = "fetching"
    SYNCING = "syncing"
    ASKING = "asking"


class FetchRequest(NamedTuple):
    """One fetch: the session, what is new in it, what it no longer has."""

    session_id: int
    session_epoch: int
    partitions: Sequence[tuple[Key, ReplicaFetch]]
    forgotten: Sequence[Key]


class FetchResponse(NamedTuple):
    """Its answer; partitions without news are left out."""

    error_code: ErrorCode
    session_id: int
    partitions: Mapping[Key, ReplicaFetched]


@dataclass
class Answered:
    """What an answer leads to besides the next fetch."""

    sync: list[Partition] = field(default_factory=list)
    ask: list[Partition] = field(default_factory=list)
    #: Partitions whose disk refused, and why.
    failed: list[tuple[Partition, Exception]] = field(default_factory=list)


class _Followed:
    """One partition, and what the leader's session has of it."""

    __slots__ = ("backoff_ms", "not_before_ms", "partition", "step", "sync_to", "told")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.step = Step.FETCHING
        self.told: ReplicaFetch | None = None
        self.not_before_ms = 0
        self.backoff_ms = BACKOFF_MS
        #: The log end that is to be durable before the next fetch.
        self.sync_to = 0


class Fetcher:
    """Owns the partitions that follow one leader, and the session with it."""

    def __init__(self, leader_id: int, *, backoff_max_ms: int = BACKOFF_MAX_MS) -> None:
        self.leader_id = leader_id
        self._backoff_max_ms = backoff_max_ms
        self._followed: dict[Key, _Followed] = {}
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        #: What the session has at the leader's end.
        self._in_session: dict[Key, None] = {}
        #: What was asked for, by the request under way.
        self._asked: dict[Key, ReplicaFetch] | None = None
        #: Called when a partition that waited for its disk may fetch on.
        self.on_synced: Callable[[], None] = _nobody_waits

    def __len__(self) -> int:
        return len(self._followed)

    def __iter__(self) -> Iterator[Partition]:
        return iter([followed.partition for followed in self._followed.values()])

    def follow(self, partition: Partition) -> None:
        """Fetch this partition from now on, in its leader epoch of now."""
        followed = self._followed.get(partition.key)
        if followed is None or followed.partition is not partition:
            followed = self._followed[partition.key] = _Followed(partition)
            partition.follows = self.synced
        followed.not_before_ms = 0
        followed.backoff_ms = BACKOFF_MS
        if followed.step is Step.ASKING:
            followed.step = Step.FETCHING

    def forget(self, partition: Partition) -> None:
        """Fetch this partition no longer."""
        followed = self._followed.get(partition.key)
        if followed is not None and followed.partition is partition:
            del self._followed[partition.key]
            partition.follows = None

    # Fetching

    def next_fetch(self, now_ms: int) -> FetchRequest | None:
        """The next request; None while one is under way, or nothing may be asked for."""
        if self._asked is not None:
            return None
        ready = {}
        for key, followed in self._followed.items():
            if followed.partition.log.offline:
                continue
            if followed.step is Step.SYNCING:
                # What waits for its disk would miss a fetch that then waits at the leader.
                return None
            if followed.step is Step.FETCHING and followed.not_before_ms <= now_ms:
                ready[key] = followed
        if not ready:
            return None
        new = []
        for key, followed in ready.items():
            position = followed.partition.position()
            if key not in self._in_session or followed.told != position:
                followed.told = position
                new.append((key, position))
        forgotten = [key for key in self._in_session if key not in ready]
        self._in_session = dict.fromkeys(ready)
        self._asked = {key: followed.told for key, followed in ready.items() if followed.told}
        return FetchRequest(self._session_id, self._session_epoch, new, forgotten)

    def next_due_ms(self) -> int | None:
        """When a partition that was refused may fetch again; None where none waits for that."""
        due = [f.not_before_ms for f in self._followed.values() if f.step is Step.FETCHING]
        return min(due, default=None)

    def unanswered(self, now_ms: int) -> None:
        """The request under way came to nothing: the connection is gone, and the session too."""
        self._asked = None
        self._end_session()

    def _end_session(self) -> None:
        self._session_id, self._session_epoch = NO_SESSION, INITIAL_EPOCH
        self._in_session.clear()

    def answered(self, response: FetchResponse, now_ms: int) -> Answered:
        """Append, cut and follow the leader's offsets, as it has answered."""
        asked, self._asked = self._asked, None
        out = Answered()
        if asked is None:
            return out
        if response.error_code:
            self._end_session()
            for key in asked:
                if key in self._followed:
                    self._pause(self._followed[key], now_ms)
            return out
        self._step_session(response.session_id)
        for key, answer in response.partitions.items():
            followed, position = self._followed.get(key), asked.get(key)
            # What was asked in another epoch, or from elsewhere, is of no use any more.
            if followed is None or position is None or followed.step is not Step.FETCHING:
                continue
            if position != followed.partition.position() or followed.partition.is_leader:
                continue
            self._take(followed, answer, now_ms, out)
        return out

    def _step_session(self, session_id: int) -> None:
        if session_id == NO_SESSION:
            self._end_session()
            return
        self._session_id = session_id
        self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1

    def _take(
        self, followed: _Followed, answer: ReplicaFetched, now_ms: int, out: Answered
    ) -> None:
        partition = followed.partition
        try:
            if answer.error_code is ErrorCode.offset_out_of_range:
                followed.step = Step.ASKING
                out.ask.append(partition)
            elif answer.error_code:
                self._pause(followed, now_ms)
            elif answer.diverging is not None:
                partition.truncate(partition.truncation_offset(answer.diverging))
                self._sync(followed, out)
            else:
                partition.append_fetched(answer, now_ms)
                followed.backoff_ms = BACKOFF_MS
                if partition.group_commit and answer.records:
                    self._sync(followed, out)
        except (AppendRefused, OSError, LogOffline, CorruptLog) as error:
            out.failed.append((partition, error))
            self._pause(followed, now_ms)

    def _pause(self, followed: _Followed, now_ms: int) -> None:
        followed.not_before_ms = now_ms + followed.backoff_ms
        followed.backoff_ms = min(2 * followed.backoff_ms, self._backoff_max_ms)

    # The disk, and leaders' offsets

    def _sync(self, followed: _Followed, out: Answered) -> None:
        followed.step = Step.SYNCING
        followed.sync_to = followed.partition.log.log_end_offset
        out.sync.append(followed.partition)

    def synced(self, partition: Partition, offset: int) -> None:
        """The partition's log is durable below `offset`, and so are its cuts."""
        followed = self._followed.get(partition.key)
        if followed is not None and followed.step is Step.SYNCING and offset >= followed.sync_to:
            followed.step = Step.FETCHING
            self.on_synced()

    def offsets(
        self,
        partition: Partition,
        leader_epoch: int,
        code: ErrorCode,
        start_offset: int,
        end_offset: int,
        now_ms: int,
    ) -> Answered:
        """Where the log of the leader begins and ends, as it answered in that epoch: the follower
        stands past its end (after an unclean election), or before its start."""
        out = Answered()
        followed = self._followed.get(partition.key)
        if followed is None or followed.step is not Step.ASKING:
            return out
        followed.step = Step.FETCHING
        if code or leader_epoch != partition.leader_epoch:
            self._pause(followed, now_ms)
            return out
        log = partition.log
        try:
            if end_offset < log.log_end_offset:
                partition.truncate(end_offset)
            elif start_offset > log.log_end_offset:
                partition.start_at(start_offset)
            else:
                self._pause(followed, now_ms)  # It has moved meanwhile: fetch again.
                return out
            self._sync(followed, out)
        except (OSError, LogOffline) as error:
            out.failed.append((partition, error))
            self._pause(followed, now_ms)
        return out


def _nobody_waits() -> None:
    """The loop asks by itself."""
