"""The fetches of one follower from one leader, for all partitions that the broker leads.

A state machine without I/O. `build_next_fetch` returns the request to send. `complete_fetch` or
`fail_fetch` takes its result. At most one request is in flight. The caller does what the machine
cannot do: it syncs the logs in `FetchOutcome.sync` and then calls `mark_synced`, and it asks the
leader for the start and end offsets of `FetchOutcome.list_offsets` and calls
`complete_list_offsets`.

A partition whose next records are only in the object store (KIP-405) takes leader epochs and
producer states from there, and continues behind them. The caller finds them for the partitions of
`FetchOutcome.rebuild` and of `begin_rebuilds`, and calls `complete_rebuild` or `fail_rebuild`. With
`should_start_at_last_tiered`, an empty partition begins so (KIP-1023).

A partition whose log diverges from its leader's log is truncated (KIP-101, KIP-595). It fetches
again only when the truncation is durable: a power loss could otherwise restore truncated records
below records fetched since. With `group_commit` the same holds after every append, because a fetch
offset acknowledges all records below it.

The fetch session (KIP-227) sends a leader only what changed since the last fetch. Only partitions
that may have changed are examined, so idle partitions cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from shoal.log.errors import AppendRefused, CorruptLog, LogOffline
from shoal.log.producers import CorruptSnapshot
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.log.remote import RebuiltState
    from shoal.replication.partition import Partition, ReplicaFetch, ReplicaFetchResult

Key = tuple[UUID, int]
#: The id of a fetch without a session, and the epoch of the first fetch of a session.
NO_SESSION, INITIAL_EPOCH = 0, 0
_EPOCH_MAX = 2**31 - 1
#: How many partitions one fetch adds to the session or changes, and how many it removes; the next
#: one has more. Leaders admit 25,000 entries, and a partition with its topic is two of them.
PARTITIONS_MAX = 6_000
#: First back-off after an error. Leader and followers get a new image at slightly other times.
BACKOFF_MS = 20
#: Kafka's default of replica.fetch.backoff.ms.
BACKOFF_MAX_MS = 1_000


class FetchStep(Enum):
    """The state of one partition: it fetches, waits for its disk, lists the leader's offsets, or
    looks for its state in the object store."""

    FETCHING = "fetching"
    SYNCING = "syncing"
    LISTING_OFFSETS = "listing offsets"
    REBUILDING = "rebuilding"


#: The steps that end with an answer of the leader or of the object store.
_AT_LEADER = (FetchStep.LISTING_OFFSETS, FetchStep.REBUILDING)


class FetchSessionRequest(NamedTuple):
    """One fetch: its session, the new or changed partitions, and the removed ones."""

    session_id: int
    session_epoch: int
    partitions: Sequence[tuple[Key, ReplicaFetch]]
    forgotten: Sequence[Key]


class FetchSessionResponse(NamedTuple):
    """The response, without partitions that have no news."""

    error_code: ErrorCode
    session_id: int
    partitions: Mapping[Key, ReplicaFetchResult]


@dataclass
class FetchOutcome:
    """What the caller must do after a response, besides the next fetch."""

    sync: list[Partition] = field(default_factory=list)
    list_offsets: list[Partition] = field(default_factory=list)
    rebuild: list[Partition] = field(default_factory=list)
    #: Partitions whose disk failed, with the errors.
    failed: list[tuple[Partition, Exception]] = field(default_factory=list)


class ReplicationThrottle(Protocol):
    """Limits the fetches of partitions that are not in sync (KIP-73)."""

    @property
    def active(self) -> bool:
        """Whether any partition is throttled."""

    def is_throttled(self, partition: Partition) -> bool:
        """Whether this partition is throttled."""

    def get_wait_ms(self, now_ms: int) -> int:
        """Return how long throttled partitions must wait now, in milliseconds."""

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were fetched for a throttled partition."""


class _FollowedPartition:
    """One partition, and its fetch position in the leader's session."""

    __slots__ = (
        "backoff_ms",
        "is_new",
        "not_before_ms",
        "partition",
        "session_position",
        "step",
        "sync_to",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.step = FetchStep.FETCHING
        self.session_position: ReplicaFetch | None = None
        self.not_before_ms = 0
        self.backoff_ms = BACKOFF_MS
        #: The log end offset that must be durable before the next fetch.
        self.sync_to = 0
        #: Whether nothing was fetched or rebuilt since this partition is followed.
        self.is_new = True


class ReplicaFetcher:
    """Owns the partitions that follow one leader, and the fetch session with it."""

    def __init__(
        self,
        leader_id: int,
        *,
        backoff_max_ms: int = BACKOFF_MAX_MS,
        throttle: ReplicationThrottle | None = None,
        on_synced: Callable[[], None] | None = None,
        starts_at_last_tiered: Callable[[Partition], bool] | None = None,
    ) -> None:
        """`on_synced` is called when a partition that waited for its disk may fetch again.
        `starts_at_last_tiered` returns whether a partition begins behind the object store."""
        self.leader_id = leader_id
        self._backoff_max_ms = backoff_max_ms
        self._throttle = throttle
        self._followed: dict[Key, _FollowedPartition] = {}
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        #: The partitions that the leader has in the session.
        self._in_session: dict[Key, None] = {}
        self._under_way = False
        #: Partitions whose fetch position may differ from the one in the session. All others are
        #: fetched as before.
        self._changed: dict[Key, None] = {}
        #: Partitions in back-off, and partitions that wait for their disk.
        self._pausing: dict[Key, None] = {}
        self._syncing: dict[Key, None] = {}
        self._on_synced = on_synced
        self._starts_at_last_tiered = starts_at_last_tiered
        self._to_rebuild: list[Partition] = []

    def __len__(self) -> int:
        return len(self._followed)

    def __iter__(self) -> Iterator[Partition]:
        return iter([followed.partition for followed in self._followed.values()])

    def follow(self, partition: Partition) -> None:
        """Fetch this partition from now on, in its current leader epoch."""
        followed = self._followed.get(partition.key)
        if followed is None or followed.partition is not partition:
            self._drop(partition.key)
            followed = self._followed[partition.key] = _FollowedPartition(partition)
            partition.fetcher = self
        followed.not_before_ms = 0
        followed.backoff_ms = BACKOFF_MS
        if followed.step in _AT_LEADER:
            followed.step = FetchStep.FETCHING
        self.notify_changed(partition)

    def forget(self, partition: Partition) -> None:
        """Stop to fetch this partition."""
        followed = self._followed.get(partition.key)
        if followed is not None and followed.partition is partition:
            self._drop(partition.key)
            self.notify_changed(partition)
            partition.fetcher = None

    def hand_over(self, partition: Partition, to: ReplicaFetcher) -> None:
        """Move this partition to another fetcher of the same leader.

        A partition that waits for its disk continues to wait there. One that waits for the leader
        or the object store fetches again, and gets the same error again.
        """
        followed = self._followed.get(partition.key)
        if followed is None or followed.partition is not partition:
            return
        self._drop(partition.key)
        self.notify_changed(partition)
        followed.session_position = None
        if followed.step in _AT_LEADER:
            followed.step = FetchStep.FETCHING
        to._take_over(followed)

    def _take_over(self, followed: _FollowedPartition) -> None:
        partition = followed.partition
        self._drop(partition.key)
        self._followed[partition.key] = followed
        if followed.step is FetchStep.SYNCING:
            self._syncing[partition.key] = None
        partition.fetcher = self
        self.notify_changed(partition)

    def _drop(self, key: Key) -> None:
        for keys in (self._followed, self._syncing, self._pausing):
            keys.pop(key, None)

    def notify_changed(self, partition: Partition) -> None:
        """Note that the partition's fetch position may differ from the one in the session."""
        self._changed[partition.key] = None

    # Fetching

    def build_next_fetch(self, now_ms: int) -> FetchSessionRequest | None:
        """Return the next request; None while one is in flight or nothing can be fetched."""
        if self._under_way or self._is_waiting_for_disk():
            return None
        self._wake(now_ms)
        looked_at, new, forgotten = self._find_news(now_ms)
        joining = sum(key not in self._in_session for key, _ in new)
        if not len(self._in_session) - len(forgotten) + joining:
            return None
        if len(forgotten) > PARTITIONS_MAX:
            # A new session needs to forget none.
            self._end_session()
            return self.build_next_fetch(now_ms)
        for key in forgotten:
            del self._in_session[key]
        for key, position in new:
            self._in_session[key] = None
            self._followed[key].session_position = position
        for key in looked_at:
            del self._changed[key]
        self._under_way = True
        return FetchSessionRequest(self._session_id, self._session_epoch, new, forgotten)

    def _find_news(
        self, now_ms: int
    ) -> tuple[list[Key], list[tuple[Key, ReplicaFetch]], list[Key]]:
        """Return the changed partitions that were looked at, those of them whose positions the
        leader does not have, and those that leave the session."""
        looked_at: list[Key] = []
        new: list[tuple[Key, ReplicaFetch]] = []
        forgotten: list[Key] = []
        for key in self._changed:
            if len(new) >= PARTITIONS_MAX:
                break
            looked_at.append(key)
            followed = self._followed.get(key)
            in_session = key in self._in_session
            if followed is None or not self._is_fetchable(followed, now_ms):
                if in_session:
                    forgotten.append(key)
                continue
            position = followed.partition.get_fetch_position()
            if not in_session or followed.session_position != position:
                new.append((key, position))
        return looked_at, new, forgotten

    def _is_waiting_for_disk(self) -> bool:
        """Whether a partition waits for its disk. A fetch without it could wait at the leader."""
        return any(not self._followed[key].partition.log.offline for key in self._syncing)

    def _wake(self, now_ms: int) -> None:
        """Check the partitions whose back-off is over, and all while any are throttled."""
        if self._throttle is not None and self._throttle.active:
            self._changed.update(dict.fromkeys(self._followed))
        for key in list(self._pausing):
            if self._followed[key].not_before_ms <= now_ms:
                del self._pausing[key]
                self._changed[key] = None

    def _is_fetchable(self, followed: _FollowedPartition, now_ms: int) -> bool:
        """Whether the next fetch includes the partition."""
        partition = followed.partition
        if followed.step is not FetchStep.FETCHING or partition.log.offline:
            return False
        if followed.not_before_ms <= now_ms:
            followed.not_before_ms = now_ms + self._find_throttle_ms(partition, now_ms)
        if followed.not_before_ms <= now_ms:
            if not followed.is_new or not self._should_begin_behind_store(partition):
                return True
            followed.step = FetchStep.REBUILDING
            self._to_rebuild.append(partition)
            return False
        self._pausing[partition.key] = None
        return False

    def _should_begin_behind_store(self, partition: Partition) -> bool:
        starts = self._starts_at_last_tiered
        return starts is not None and not partition.log.log_end_offset and starts(partition)

    def begin_rebuilds(self) -> list[Partition]:
        """Return the partitions that the last `build_next_fetch` left out to begin behind the
        object store."""
        partitions, self._to_rebuild = self._to_rebuild, []
        return partitions

    def _find_throttle_ms(self, partition: Partition, now_ms: int) -> int:
        throttle = self._throttle
        if throttle is None or partition.node_id in partition.isr:
            return 0
        return throttle.get_wait_ms(now_ms) if throttle.is_throttled(partition) else 0

    def find_next_due_ms(self) -> int | None:
        """Return when the first back-off ends; None without one. Return 0 while a partition waits
        for its disk, which calls `mark_synced`."""
        if self._syncing:
            return 0
        return min((self._followed[key].not_before_ms for key in self._pausing), default=None)

    def fail_fetch(self) -> None:
        """Handle a failed request: the connection and the session are gone."""
        self._under_way = False
        self._end_session()

    def _end_session(self) -> None:
        self._session_id, self._session_epoch = NO_SESSION, INITIAL_EPOCH
        self._in_session.clear()
        self._changed = dict.fromkeys(self._followed)

    def complete_fetch(self, response: FetchSessionResponse, now_ms: int) -> FetchOutcome:
        """Apply a response: append, truncate, and adopt the leader's offsets."""
        out = FetchOutcome()
        if not self._under_way:
            return out
        self._under_way = False
        if response.error_code:
            session_keys = list(self._in_session)
            self._end_session()
            for key in session_keys:
                if key in self._followed:
                    self._pause(self._followed[key], now_ms)
            return out
        for key, result in response.partitions.items():
            followed = self._followed.get(key)
            # A result for another epoch or another position is stale.
            if (
                followed is None
                or followed.session_position is None
                or followed.step is not FetchStep.FETCHING
            ):
                continue
            partition = followed.partition
            if key not in self._in_session or partition.is_leader:
                continue
            if followed.session_position == partition.get_fetch_position():
                self._apply(followed, result, now_ms, out)
            self.notify_changed(partition)
        self._step_session(response.session_id)
        return out

    def _step_session(self, session_id: int) -> None:
        if session_id == NO_SESSION:
            self._end_session()
            return
        self._session_id = session_id
        self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1

    def _apply(
        self,
        followed: _FollowedPartition,
        result: ReplicaFetchResult,
        now_ms: int,
        out: FetchOutcome,
    ) -> None:
        partition = followed.partition
        try:
            if result.error_code is ErrorCode.offset_out_of_range:
                followed.step = FetchStep.LISTING_OFFSETS
                out.list_offsets.append(partition)
            elif result.error_code is ErrorCode.offset_moved_to_tiered_storage:
                followed.step = FetchStep.REBUILDING
                out.rebuild.append(partition)
            elif result.error_code:
                self._pause(followed, now_ms)
            elif result.diverging is not None:
                partition.truncate(partition.find_truncation_offset(result.diverging))
                self._sync(followed, out)
            else:
                if self._throttle is not None and self._throttle.is_throttled(partition):
                    self._throttle.record(len(result.records), now_ms)
                partition.append_fetched(result, now_ms)
                followed.backoff_ms = BACKOFF_MS
                followed.is_new = False
                if partition.group_commit and result.records:
                    self._sync(followed, out)
        except (AppendRefused, OSError, LogOffline, CorruptLog) as error:
            out.failed.append((partition, error))
            self._pause(followed, now_ms)

    def _pause(self, followed: _FollowedPartition, now_ms: int) -> None:
        followed.not_before_ms = now_ms + followed.backoff_ms
        followed.backoff_ms = min(2 * followed.backoff_ms, self._backoff_max_ms)

    # The disk, and leaders' offsets

    def _sync(self, followed: _FollowedPartition, out: FetchOutcome) -> None:
        followed.step = FetchStep.SYNCING
        followed.sync_to = followed.partition.log.log_end_offset
        self._syncing[followed.partition.key] = None
        out.sync.append(followed.partition)

    def mark_synced(self, partition: Partition, offset: int) -> None:
        """Note that the log and its truncations are durable below `offset`."""
        followed = self._followed.get(partition.key)
        if (
            followed is not None
            and followed.step is FetchStep.SYNCING
            and offset >= followed.sync_to
        ):
            followed.step = FetchStep.FETCHING
            del self._syncing[partition.key]
            self.notify_changed(partition)
            if self._on_synced is not None:
                self._on_synced()

    def complete_list_offsets(
        self,
        partition: Partition,
        leader_epoch: int,
        code: ErrorCode,
        start_offset: int,
        end_offset: int,
        now_ms: int,
    ) -> FetchOutcome:
        """Apply the start and end offsets of the leader's log, as of that epoch. The follower is
        past the end (after an unclean election), or before the start."""
        out = FetchOutcome()
        followed = self._followed.get(partition.key)
        if followed is None or followed.step is not FetchStep.LISTING_OFFSETS:
            return out
        followed.step = FetchStep.FETCHING
        self.notify_changed(partition)
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
                self._pause(
                    followed, now_ms
                )  # The leader's log has changed meanwhile: fetch again.
                return out
            self._sync(followed, out)
        except (OSError, LogOffline) as error:
            out.failed.append((partition, error))
            self._pause(followed, now_ms)
        return out

    def complete_rebuild(
        self,
        partition: Partition,
        leader_epoch: int,
        state: RebuiltState | None,
        log_start_offset: int,
        now_ms: int,
    ) -> FetchOutcome:
        """Continue with what the object store knows, as was found in that leader epoch. Without
        `state` the leader has all records on its disk, and the partition fetches them."""
        out = FetchOutcome()
        followed = self._end_rebuilding(partition)
        if followed is None:
            return out
        if leader_epoch != partition.leader_epoch or partition.is_leader:
            self._pause(followed, now_ms)
            return out
        followed.is_new = False
        try:
            if state is not None:
                partition.rebuild(state, log_start_offset)
                self._sync(followed, out)
        except (OSError, LogOffline, CorruptSnapshot) as error:
            out.failed.append((partition, error))
            self._pause(followed, now_ms)
        return out

    def fail_rebuild(self, partition: Partition, now_ms: int) -> None:
        """Try again after a pause."""
        followed = self._end_rebuilding(partition)
        if followed is not None:
            self._pause(followed, now_ms)

    def _end_rebuilding(self, partition: Partition) -> _FollowedPartition | None:
        """End the step of a partition that looks for its state in the object store."""
        followed = self._followed.get(partition.key)
        if followed is None or followed.step is not FetchStep.REBUILDING:
            return None
        followed.step = FetchStep.FETCHING
        self.notify_changed(partition)
        return followed
