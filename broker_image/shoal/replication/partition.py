"""One partition on this broker: its log, its leader, and its high watermark.

Records below the high watermark are committed: consumers read below it, and produce requests with
acks=all wait for it. With one replica it follows the log end offset, or the synced offset if an
acknowledged write must be on disk (`group_commit`). With more replicas it is the smallest log end
offset of the ISR. The leader learns those offsets from fetches (`leadership`), and a follower gets
the high watermark in its fetch responses (`replica_fetcher`). It never decreases while the
partition is open.

A partition has no clock and no socket. It runs the calls of `on_advance` when its high watermark,
log start offset or leader has changed, and those of `on_append` when a leader with followers has
appended.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.log.appends import AppendOrigin, LogAppendInfo
from shoal.log.deduplication import Deduplication
from shoal.log.errors import AppendRefused, LogOffline, OffsetOutOfRange
from shoal.log.validation import ValidatedBatch
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import Buffer, CorruptBatch
from shoal.record.compression import Compression
from shoal.record.records import build_batch
from shoal.replication.leadership import (
    LAG_TIME_MAX_MS,
    NOT_ELIGIBLE,
    AlterPartition,
    Leadership,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from shoal.log.log import Log
    from shoal.log.reads import ReadResult
    from shoal.log.remote import RebuiltState

NO_LEADER = -1
#: The leader epoch of a Fetch or ListOffsets request that names none (KIP-320).
NO_EPOCH = -1
#: Uncommitted appends whose sizes are kept separately; later ones are added to the last.
UNCOMMITTED_MAX = 1_000


class Divergence(NamedTuple):
    """Where a follower's log diverges from this one (KIP-595): an epoch and its end offset here."""

    epoch: int
    end_offset: int


class ReplicaFetch(NamedTuple):
    """The fetch position of a follower in one partition."""

    fetch_offset: int
    last_fetched_epoch: int
    current_leader_epoch: int
    log_start_offset: int


class FollowerPosition(Protocol):
    """The fetch position of a follower, as a leader reads it (`ReplicaFetch` or a cursor)."""

    @property
    def fetch_offset(self) -> int: ...
    @property
    def last_fetched_epoch(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...


class PartitionFetcher(Protocol):
    """Fetches for a follower (`replica_fetcher.ReplicaFetcher`)."""

    def mark_synced(self, partition: Partition, offset: int) -> None:
        """Note that the log is on disk below `offset`."""

    def notify_changed(self, partition: Partition) -> None:
        """Note that the log may have changed without a fetch."""


class ReplicaFetchResult(NamedTuple):
    """The leader's result: records from the fetch offset on, a divergence, or an error."""

    error_code: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: Divergence | None = None
    records: Buffer = b""


class PartitionRegistration(Protocol):
    """A partition in the metadata image (`metadata.image.PartitionImage`)."""

    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...


class Partition:
    """Owns the commit state of one replica; the log owns the records."""

    __slots__ = (
        "_advance_calls",
        "_append_calls",
        "_uncommitted",
        "alter_isr",
        "broker_epoch_of",
        "bytes_appended",
        "bytes_committed",
        "deduplication",
        "fetcher",
        "flush_messages",
        "group_commit",
        "high_watermark",
        "id_work_requested",
        "index",
        "is_removed",
        "isr",
        "key",
        "lag_time_max_ms",
        "leader_epoch",
        "leader_id",
        "leadership",
        "log",
        "min_isr",
        "node_id",
        "partition_epoch",
        "quiet_fetches",
        "replicas",
        "sync_requested",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        log: Log,
        *,
        node_id: int,
        leader_id: int,
        leader_epoch: int,
        isr: tuple[int, ...],
        replicas: tuple[int, ...],
        partition_epoch: int = 0,
        high_watermark: int = 0,
        now_ms: int = 0,
        sync_requested: Callable[[Partition], None] | None = None,
        alter_isr: Callable[[Partition, AlterPartition], None] | None = None,
        broker_epoch_of: Callable[[int], int] | None = None,
        id_work_requested: Callable[[Partition], None] | None = None,
    ) -> None:
        """`high_watermark` is the last known one of a replicated partition.

        `sync_requested` asks the disk to sync the log soon. `alter_isr` asks the controller for
        another ISR; `complete_isr_change` or `fail_isr_change` takes the result.
        `broker_epoch_of` returns the epoch of a broker that may be in sync, or `NOT_ELIGIBLE`.
        `id_work_requested` asks for the work of `deduplication`: to read the ids of the log, and to
        keep those in files that do not fit into memory.
        """
        self.topic, self.topic_id, self.index = topic, topic_id, index
        #: Key of the requests that wait for this partition.
        self.key = (topic_id, index)
        self.log = log
        self.is_removed = False  # From then on its files may be gone.
        self.node_id = node_id
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.replicas = replicas
        self.partition_epoch = partition_epoch
        self.min_isr = 1
        self.lag_time_max_ms = LAG_TIME_MAX_MS
        self.group_commit = False
        #: Unsynced records that trigger a sync (flush.messages).
        self.flush_messages = 1 << 63
        self.high_watermark = log.log_end_offset
        #: Committed bytes since the partition was opened. A waiting fetch takes the difference as
        #: the bytes that have become available.
        self.bytes_committed = 0
        self.bytes_appended = 0
        #: (end offset, bytes) of the uncommitted appends of a replicated partition.
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._advance_calls: list[Callable[[Partition], None]] = []
        self._append_calls: list[Callable[[Partition], None]] = []
        self.sync_requested = sync_requested or _fail_without_disk
        self.alter_isr = alter_isr or _fail_without_controller
        self.broker_epoch_of = broker_epoch_of or _reject_broker
        self.id_work_requested = id_work_requested or _fail_without_id_work
        #: The ids of the log's records, while this replica leads and its topic has a window.
        self.deduplication: Deduplication | None = None
        #: The state of the followers, while this replica leads and has any.
        self.leadership: Leadership | None = None
        #: By follower: called once at the next change that its fetches must see.
        self.quiet_fetches: dict[int, Callable[[], None]] = {}
        #: Fetches for this replica while it follows.
        self.fetcher: PartitionFetcher | None = None
        if len(replicas) > 1:
            watermark = min(high_watermark, log.log_end_offset)
            self.high_watermark = max(watermark, log.log_start_offset)
            if self.is_leader:
                self._become_leader(now_ms)

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.node_id

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, limited to the number of replicas."""
        return min(self.min_isr, len(self.replicas))

    def has_lost_leadership_since(self, leader_epoch: int) -> bool:
        """Whether this replica has not led without interruption since that epoch.

        If so, its appends of that epoch may be lost, and others' records may have their offsets.
        """
        return self.leader_epoch != leader_epoch or not self.is_leader

    @property
    def is_behind(self) -> bool:
        """Whether a new leader does not yet know the committed end of its log (KIP-207)."""
        return self.leadership is not None and self.high_watermark < self.leadership.start_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions have ended; at most the high watermark."""
        return self.log.find_last_stable_offset(self.high_watermark)

    def find_epoch_error(self, current_leader_epoch: int) -> ErrorCode | None:
        """Return the error for a request with that leader epoch (KIP-320), or None."""
        error = self.find_known_epoch_error(current_leader_epoch)
        if error is None and not self.is_leader:
            return ErrorCode.not_leader_or_follower
        return error

    def find_known_epoch_error(self, current_leader_epoch: int) -> ErrorCode | None:
        """`find_epoch_error` for a replica that may also be a follower."""
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return None
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    # Leadership

    def register(self, registration: PartitionRegistration, now_ms: int) -> None:
        """Become leader or follower as the controller has decided. A registration that is not
        newer than the current one changes nothing."""
        if registration.partition_epoch <= self.partition_epoch:
            # The current registration may come again. A proposed ISR stays proposed.
            return
        self._wake_quiet_fetches()
        changed = registration.leader_epoch != self.leader_epoch
        self.leader_id = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.isr = registration.isr
        self.replicas = registration.replicas
        if not self.is_leader:
            self.leadership = self.deduplication = None
        elif changed or (self.leadership is None) != (len(self.replicas) == 1):
            self._become_leader(now_ms)
        elif self.leadership is not None:
            self.leadership.apply_registration(now_ms)
            self._advance_high_watermark()

    def _become_leader(self, now_ms: int) -> None:
        """Start to lead in a new epoch."""
        self.leadership = None
        if len(self.replicas) > 1:
            self.leadership = Leadership(self, now_ms)
            try:
                self.log.begin_epoch(self.leader_epoch)
            except AppendRefused:
                pass  # The next fetch of a follower tries again, and fails until then.
        self._advance_high_watermark()
        self.sync_tail()

    def sync_tail(self) -> None:
        """Request a sync if a leader under group commit has records that are not on disk.

        Its high watermark waits for the disk. After a restart or an election no append may come
        that requests the sync.
        """
        unsynced = self.log.recovery_point < self.log.log_end_offset
        if unsynced and self.group_commit and self.is_leader:
            self.sync_requested(self)

    def complete_isr_change(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        """The controller accepted the proposed ISR."""
        if self.leadership is None or partition_epoch <= self.partition_epoch:
            return
        self._wake_quiet_fetches()
        self.isr, self.partition_epoch = isr, partition_epoch
        self.leadership.apply_registration(0)
        self._advance_high_watermark()

    def fail_isr_change(
        self, change: AlterPartition, code: ErrorCode, now_ms: int, retry_ms: int
    ) -> None:
        """The controller refused the proposed ISR, or did not answer."""
        if self.leadership is not None:
            self.leadership.fail_isr_change(change, code, now_ms, retry_ms)
            self._advance_high_watermark()

    def tick(self, now_ms: int) -> None:
        """Check for followers that lag. Called periodically on leaders."""
        if self.leadership is not None:
            self.leadership.tick(now_ms)
            self._advance_high_watermark()

    # Appending

    def append(
        self,
        data: Buffer | ValidatedBatch,
        *,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> LogAppendInfo:
        """Append whole batches as leader, without changing `data`.

        Raises `AppendRefused`; then nothing was appended.
        """
        if self.log.config.deduplicates:
            appended = self._append_once(data, now_ms, origin)
        else:
            appended = self.log.append(
                data, now_ms=now_ms, leader_epoch=self.leader_epoch, origin=origin
            )
        if not appended.duplicate:
            self._on_appended(appended.size)
        return appended

    def _append_once(
        self, data: Buffer | ValidatedBatch, now_ms: int, origin: AppendOrigin
    ) -> LogAppendInfo:
        """Append the records whose ids are not known (`log.deduplication`)."""
        deduplication = self.deduplication
        if deduplication is None or not deduplication.is_current:
            deduplication = self.deduplication = Deduplication(self.log, now_ms)
            self.id_work_requested(self)
        if origin is AppendOrigin.CLIENT:
            try:
                return deduplication.append(data, now_ms=now_ms, leader_epoch=self.leader_epoch)
            finally:
                if deduplication.needs_work(now_ms):
                    self.id_work_requested(self)
        appended = self.log.append(
            data, now_ms=now_ms, leader_epoch=self.leader_epoch, origin=origin
        )
        assert not isinstance(data, ValidatedBatch)
        deduplication.note_coordinator_append(data)
        return appended

    def find_cut(self, batch: ValidatedBatch, now_ms: int) -> dict[int, int]:
        """Return the offsets by offset delta of the records that the append of a compressed batch
        leaves out."""
        deduplication = self.deduplication
        if not self.is_leader or deduplication is None or not deduplication.is_current:
            return {}
        return deduplication.find_cut(batch, now_ms)

    def append_records(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        now_ms: int,
        producer: tuple[int, int] | None = None,
        codec: Compression = Compression.NONE,
    ) -> LogAppendInfo:
        """Append (key, value) records of an internal topic as one batch, inside the open
        transaction of `producer` (id, epoch) if there is one."""
        if producer is not None or codec:
            producer_id, producer_epoch = producer or (-1, -1)
            batch = build_batch(
                ((now_ms, key, value, ()) for key, value in records),
                compression=codec.name.lower(),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer is not None,
            )
            return self.append(batch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
        appended = self.log.append_records(records, now_ms=now_ms, leader_epoch=self.leader_epoch)
        self._on_appended(appended.size)
        return appended

    def _on_appended(self, size: int) -> None:
        if self.leadership is not None:
            self._on_appended_for_followers(size)
            return
        self.bytes_committed += size
        if self.group_commit:
            self.sync_requested(self)
        else:
            self._set_high_watermark(self.log.log_end_offset)
            if self.log.unsynced_messages >= self.flush_messages:
                self.sync_requested(self)

    def _on_appended_for_followers(self, size: int) -> None:
        self._wake_quiet_fetches()
        self.bytes_appended += size
        self._note_uncommitted(size)
        for call in self._append_calls:
            call(self)
        if self.group_commit or self.log.unsynced_messages >= self.flush_messages:
            self.sync_requested(self)
        if len(self.isr) == 1:
            self._advance_high_watermark()

    def _note_uncommitted(self, size: int) -> None:
        uncommitted = self._uncommitted
        if len(uncommitted) >= UNCOMMITTED_MAX:
            size += uncommitted.pop()[1]
        uncommitted.append((self.log.log_end_offset, size))

    def _advance_high_watermark(self) -> None:
        """Advance a leader's high watermark to the smallest end offset of its ISR."""
        if self.leadership is None:
            end = self.log.recovery_point if self.group_commit else self.log.log_end_offset
            if end > self.high_watermark:
                self._commit(end)
            return
        own = self.log.recovery_point if self.group_commit else self.log.log_end_offset
        least = self.leadership.compute_high_watermark(own)
        if least > self.high_watermark:
            self._commit(least)

    def _commit(self, offset: int) -> None:
        """Commit the records of a replicated partition below `offset`."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= offset:
            self.bytes_committed += uncommitted.popleft()[1]
        self._set_high_watermark(offset)

    def mark_synced(self, offset: int) -> None:
        """Note that the records below `offset` are on disk."""
        if self.fetcher is not None:
            self.fetcher.mark_synced(self, offset)
        if not self.group_commit or not self.is_leader:
            return
        if self.leadership is not None:
            self._advance_high_watermark()
        elif offset > self.high_watermark:
            self._set_high_watermark(offset)

    # Followers

    def fetch_for_follower(
        self,
        replica_id: int,
        broker_epoch: int,
        fetch: FollowerPosition,
        *,
        max_bytes: int,
        min_one: bool,
        now_ms: int,
        is_new: bool = True,
    ) -> ReplicaFetchResult:
        """Return the result of a follower's fetch. Note its fetch offset if the fetch `is_new`: one
        that has waited for records was noted when it came."""
        code = self.find_epoch_error(fetch.current_leader_epoch)
        if code is not None:
            return ReplicaFetchResult(code)
        leadership, log = self.leadership, self.log
        if leadership is None or replica_id not in leadership.followers:
            # The image that makes it a replica has not arrived yet.
            return ReplicaFetchResult(ErrorCode.unknown_topic_or_partition)
        try:
            if log.latest_epoch < self.leader_epoch:
                log.begin_epoch(self.leader_epoch)
            divergence = self.find_divergence(
                fetch_offset=fetch.fetch_offset, last_fetched_epoch=fetch.last_fetched_epoch
            )
            if divergence is not None:
                return ReplicaFetchResult(
                    ErrorCode.none, self.high_watermark, log.log_start_offset, divergence
                )
            if log.log_start_offset <= fetch.fetch_offset < log.local_start_offset:
                # The follower takes from the object store what is not on this disk (KIP-405).
                return ReplicaFetchResult(
                    ErrorCode.offset_moved_to_tiered_storage,
                    self.high_watermark,
                    log.log_start_offset,
                )
            data: Buffer = b""
            if fetch.fetch_offset != log.log_end_offset:
                data = log.read(fetch.fetch_offset, max_bytes, min_one=min_one).data
        except OffsetOutOfRange:
            return ReplicaFetchResult(ErrorCode.offset_out_of_range)
        except (AppendRefused, OSError, LogOffline, CorruptBatch):
            return ReplicaFetchResult(ErrorCode.kafka_storage_error)
        if is_new:
            leadership.update_follower(
                replica_id, broker_epoch, fetch.fetch_offset, fetch.log_start_offset, now_ms
            )
            self._advance_high_watermark()
        return ReplicaFetchResult(
            ErrorCode.none, self.high_watermark, log.log_start_offset, None, data
        )

    def get_fetch_position(self) -> ReplicaFetch:
        """Return the next fetch position of this follower."""
        log = self.log
        return ReplicaFetch(
            log.log_end_offset, log.latest_epoch, self.leader_epoch, log.log_start_offset
        )

    def append_fetched(self, result: ReplicaFetchResult, now_ms: int) -> None:
        """Append the leader's records, and adopt its high watermark and log start offset.

        Raises `AppendRefused`, `OSError`; batches before the refused one stay.
        """
        log = self.log
        size, end = len(result.records), log.log_end_offset
        if size:
            try:
                log.append_as_follower(result.records, now_ms=now_ms)
            finally:
                if log.log_end_offset > end:
                    self._note_uncommitted(size)
        if log.unsynced_messages >= self.flush_messages or self.group_commit:
            self.sync_requested(self)
        offset = min(result.high_watermark, log.log_end_offset)
        if offset > self.high_watermark:
            self._commit(offset)
        if log.log_start_offset < result.log_start_offset <= self.high_watermark:
            log.advance_log_start(result.log_start_offset)
            self.notify_changed()

    def find_truncation_offset(self, divergence: Divergence) -> int:
        """Return the offset to which a follower truncates a diverging log (KIP-101)."""
        log = self.log
        epoch, end_offset = log.find_epoch_end_offset(divergence.epoch)
        if epoch < 0:
            return min(divergence.end_offset, log.log_end_offset)
        if epoch != divergence.epoch:
            return min(end_offset, log.log_end_offset)
        return min(end_offset, divergence.end_offset, log.log_end_offset)

    def truncate(self, offset: int) -> None:
        """Truncate a follower's log. Raises `OSError`."""
        self.log.truncate(offset)
        self._uncommitted.clear()
        # Only an unclean election removes committed records.
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)

    def start_at(self, offset: int) -> None:
        """Replace a follower's log that ends before the leader's log starts. Raises `OSError`."""
        self.log.truncate_fully_and_start_at(offset)
        self._uncommitted.clear()
        self.high_watermark = offset
        self.notify_changed()

    def rebuild(self, state: RebuiltState, log_start_offset: int) -> None:
        """Replace a follower's log by an empty one that continues behind the records in the object
        store. Raises `OSError`, `CorruptSnapshot`."""
        try:
            self.log.rebuild(state, log_start_offset)
        finally:
            self._uncommitted.clear()
            # Only committed records are copied.
            self.high_watermark = self.log.log_end_offset
        self.notify_changed()

    # Reading

    def is_committed(self, offset: int) -> bool:
        """Whether all records below `offset` may be acknowledged as committed."""
        return self.high_watermark >= offset

    def read(self, offset: int, max_bytes: int, *, committed: bool, min_one: bool) -> ReadResult:
        """Whole batches from `offset` on, below the high watermark, or below the last stable
        offset for `committed` readers. Raises `OffsetOutOfRange`."""
        limit = self.last_stable_offset if committed else self.high_watermark
        return self.log.read(offset, max_bytes, max_offset=limit, min_one=min_one)

    def find_epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) by OffsetForLeaderEpoch's rule, (-1, -1) if unknown. The epoch
        of a leader begins at the end of its log, also before its first record."""
        latest = self.log.epochs.latest
        is_above = latest == NO_EPOCH or epoch > latest
        if not self.is_leader or not is_above or epoch == NO_EPOCH or epoch > self.leader_epoch:
            return self.log.find_epoch_end_offset(epoch)
        is_own = latest == NO_EPOCH or epoch == self.leader_epoch
        return (epoch if is_own else latest), self.log.log_end_offset

    def find_divergence(self, *, fetch_offset: int, last_fetched_epoch: int) -> Divergence | None:
        """Return where the log of a follower at that position diverges from this one, or None. A
        fetcher without an epoch has -1.

        Raises `OffsetOutOfRange` when the epoch is newer or older than all in this log.
        """
        log = self.log
        if last_fetched_epoch < 0:
            return None
        if last_fetched_epoch == log.epochs.latest and fetch_offset <= log.log_end_offset:
            return None  # The usual case: the newest epoch ends where the log does.
        epoch, end_offset = self.find_epoch_end_offset(last_fetched_epoch)
        if epoch < 0:
            raise OffsetOutOfRange(fetch_offset, log.log_start_offset, log.log_end_offset)
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return Divergence(epoch, end_offset)
        return None

    def delete_records(self, offset: int) -> int:
        """Advance the log start offset to `offset`, and return it. Raises `OffsetOutOfRange` for
        an offset above the high watermark."""
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset, self.log.log_start_offset, self.high_watermark)
        self.log.advance_log_start(offset)
        self.notify_changed()
        return self.log.log_start_offset

    def _wake_quiet_fetches(self) -> None:
        while self.quiet_fetches:
            self.quiet_fetches.popitem()[1]()

    def on_advance(self, call: Callable[[Partition], None]) -> None:
        """Call `call` with this partition when its high watermark or log start offset changes."""
        self._advance_calls.append(call)

    def on_append(self, call: Callable[[Partition], None]) -> None:
        """Call `call` with this partition when its followers can fetch more."""
        self._append_calls.append(call)

    def forget(self, call: Callable[[Partition], None]) -> None:
        """Drop a call of `on_advance`, if there is one."""
        if call in self._advance_calls:
            self._advance_calls.remove(call)

    def notify_changed(self) -> None:
        """Wake the requests that wait for a change of this partition."""
        self._wake_quiet_fetches()
        if self.fetcher is not None:
            self.fetcher.notify_changed(self)
        self._notify_advance()

    def _set_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset
        self._notify_advance()

    def _notify_advance(self) -> None:
        # Iterate over a copy, because a callback may remove itself.
        for call in tuple(self._advance_calls):
            call(self)


def _fail_without_controller(partition: Partition, _change: AlterPartition) -> None:
    raise AssertionError(f"{partition.topic}-{partition.index} has no controller to ask")


def _reject_broker(_broker_id: int) -> int:
    return NOT_ELIGIBLE


def _fail_without_disk(partition: Partition) -> None:
    raise AssertionError(f"{partition.topic}-{partition.index} has no disk to sync it")


def _fail_without_id_work(partition: Partition) -> None:
    raise AssertionError(f"{partition.topic}-{partition.index} has nobody to work on its ids")
