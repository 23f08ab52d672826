"""One partition's log: its owner appends, reads, truncates, cleans and syncs it here.

`LogState` holds the state and its invariants. Each operation is a module of this package:
`appends`, `rolling`, `syncs`, `reads`, `search`, `retention`, `compaction`, `truncation`, and
`recovery` for opening. A partition owns its log; the high watermark belongs to the partition and is
an argument where it matters.

A log is used from one thread. Only `Sync.run` may run in another thread, so that an fsync does not
block the other logs.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from shoal.log import (
    appends,
    compaction,
    reads,
    recovery,
    retention,
    rolling,
    search,
    slices,
    truncation,
)
from shoal.log.appends import AppendOrigin, LogAppendInfo
from shoal.log.errors import AppendRefused, LogOffline
from shoal.log.producers import EXPIRATION_MS
from shoal.log.state import LogState
from shoal.log.syncs import Sync as Sync
from shoal.log.validation import ValidatedBatch
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.log.config import LogConfig
    from shoal.log.reads import ReadResult
    from shoal.log.remote import RebuiltState
    from shoal.log.segment import DeletedSegment
    from shoal.log.storage import Storage
    from shoal.record.batch import Buffer

#: Bytes of log between two producer snapshots while a segment does not roll. They bound what
#: recovery replays after kill -9.
SNAPSHOT_INTERVAL_BYTES = 64 << 20


class Log(LogState):
    """One partition's log, for its owner: open, append, read, truncate, clean, sync, close."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        cleaned_to: int = 0,
    ) -> Log:
        """Open the log in `directory`, or create it. After a `clean` shutdown nothing is scanned.
        Otherwise recovery scans the log above the recovery point and truncates a torn tail.

        Raises `OSError`.
        """
        log = cls(storage, directory, config)
        recovery.load(log, now_ms, clean, recovery_point, log_start_offset)
        log.cleaned_to = min(max(cleaned_to, log.log_start_offset), log.log_end_offset)
        return log

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log, -1 without one."""
        return self.epochs.latest

    @property
    def unsynced_messages(self) -> int:
        """The number of unsynced offsets, which flush.messages limits."""
        return self.log_end_offset - self.recovery_point

    # Appending

    def append(
        self,
        data: Buffer | ValidatedBatch,
        *,
        now_ms: int,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> LogAppendInfo:
        """Validate and write one batch of a client, or one or more of a coordinator.

        A client's batch may be validated already. `data` does not change. Raises `AppendRefused`;
        then nothing was appended.
        """
        self._ensure_ready()
        if origin is AppendOrigin.CLIENT:
            return appends.append_client_batch(self, data, now_ms, leader_epoch)
        assert not isinstance(data, ValidatedBatch)
        return appends.append_coordinator_batches(self, data, now_ms, leader_epoch)

    def append_records(
        self, records: Sequence[tuple[bytes, bytes | None]], *, now_ms: int, leader_epoch: int
    ) -> LogAppendInfo:
        """Write (key, value) records of a coordinator as one batch. The batch is built in its
        final form, so it needs no validation. Raises `AppendRefused`."""
        self._ensure_ready()
        return appends.append_coordinator_records(self, records, now_ms, leader_epoch)

    def append_as_follower(self, data: Buffer, *, now_ms: int = 0) -> LogAppendInfo:
        """Write a leader's batches with their offsets and epochs. A partial last batch is ignored.
        Raises `AppendRefused`; the batches before the refused one stay."""
        self._ensure_ready()
        return appends.append_leader_batches(self, data, now_ms)

    def _ensure_ready(self) -> None:
        """Repair what a failed append left behind. Raises `AppendRefused`."""
        if self.offline:
            raise AppendRefused(
                ErrorCode.kafka_storage_error, f"the log in {self.directory} is offline"
            )
        if self.fault is not None:
            try:
                self.repair()
            except OSError as error:
                raise self.refuse(error) from None

    def begin_epoch(self, epoch: int) -> None:
        """Start a leader epoch at the log end offset, before its first record. Raises
        `AppendRefused` if the disk refuses it."""
        self.write_epoch(epoch, self.log_end_offset)

    # Rolling

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll an active segment that is older than segment.ms by the broker's clock, so that an
        idle log can be cleaned. Return whether it did. Raises `OSError`."""
        if not rolling.should_roll_by_age(self.config, self.active, now_ms):
            return False
        self.roll(self.log_end_offset, now_ms)
        return True

    def roll_if_older(self, now_ms: int, age_ms: int) -> bool:
        """Roll an active segment whose first append was more than `age_ms` ago. Return whether it
        did. Raises `OSError`."""
        active = self.active
        if not active.size or now_ms - active.created_ms <= age_ms:
            return False
        self.roll(self.log_end_offset, now_ms)
        return True

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True
    ) -> ReadResult:
        """Read up to `max_bytes` of whole batches below `max_offset`, starting with `offset`.

        With `min_one` the first batch is read whatever its size. Raises `OffsetOutOfRange`;
        `OSError` and `CorruptBatch` if the disk fails or has damaged data.
        """
        return reads.read(self, offset, max_bytes, max_offset, min_one)

    def read_slice(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True
    ) -> slices.LogSlice:
        """Like `read`, but return large results as a range of the file, for `sendfile`."""
        return reads.read_slice(self, offset, max_bytes, max_offset, min_one)

    def search(self, timestamp_ms: int, offset: int, max_offset: int | None) -> search.SearchStep:
        """Do a step of the search for the first record that has reached `timestamp_ms`."""
        return search.step(self, timestamp_ms, offset, max_offset)

    def find_max_timestamp(self) -> int:
        """Return the largest timestamp, -1 without one."""
        return max((segment.find_max_timestamp()[0] for segment in self.segments), default=-1)

    def find_epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) by OffsetForLeaderEpoch's rule, (-1, -1) if unknown."""
        return self.epochs.find_end_offset(epoch, self.log_end_offset)

    # Truncation

    def truncate(self, offset: int) -> None:
        """Remove all records from `offset` on, as a follower does. Raises `OSError`.

        The recovery point moves back. Sync and checkpoint it before new batches are appended, or
        a crash can restore truncated records.
        """
        truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records and continue at `offset`. Raises `OSError`."""
        truncation.truncate_fully(self, offset)

    def rebuild(self, state: RebuiltState, log_start_offset: int) -> None:
        """Remove all records and continue behind those in the object store, with what the store
        knows of them. Raises `OSError`, `CorruptSnapshot`."""
        truncation.rebuild(self, state, log_start_offset)

    # Cleaning

    def tick_retention(self, now_ms: int, *, high_watermark: int) -> list[DeletedSegment]:
        """Remove the segments that retention.ms, retention.bytes and the log start offset no longer
        keep. Delete their files after file.delete.delay.ms. Raises `OSError`."""
        return retention.tick(self, now_ms, high_watermark)

    def begin_compaction(
        self, now_ms: int, *, high_watermark: int, memory_bytes: int
    ) -> compaction.Compaction | None:
        """Start a round of compaction that the caller advances step by step; None if none is due.
        A `Sync` that it yields may run in another thread first. Steps raise `OSError`."""
        return compaction.begin(self, now_ms, high_watermark, memory_bytes)

    # Durability

    def is_sync_due(self, now_ms: int) -> bool:
        """Whether flush.messages, flush.ms or a closed segment require a sync."""
        config = self.config
        unsynced_since_ms = self.unsynced_since_ms
        return (
            self.sync_wanted
            or self.unsynced_messages >= config.flush_messages
            or (unsynced_since_ms is not None and now_ms - unsynced_since_ms >= config.flush_ms)
        )

    def begin_sync(self) -> Sync | None:
        """Return what must be synced now, None if all is durable. Raises `OSError`."""
        if self.offline:
            raise LogOffline(self.directory)
        durable = self.recovery_point >= self.log_end_offset
        if durable and not self.names_changed and not self.sync_wanted:
            return None
        first = max(0, bisect_right(self.bases, self.recovery_point) - 1)
        # A full disk may refuse these writes. They come first, so that the sync can be retried.
        for segment in self.segments[first:]:
            segment.flush()
        if self.snapshots.behind_bytes > SNAPSHOT_INTERVAL_BYTES and len(self.producers):
            self.snapshots.write(self.log_end_offset, self.producers, self.bases)
        files = [file for segment in self.segments[first:] for file in segment.take_unsynced()]
        paths, names = self.owed_paths, self.owed_names
        if self.epochs.unsynced:
            paths.append(self.epochs.path)
            self.names_changed = True
        if self.names_changed:
            names = [*names, self.directory]
        self.owed_paths, self.owed_names = [], []
        self.names_changed = self.sync_wanted = self.epochs.unsynced = False
        self.unsynced_since_ms = None
        return Sync(self.storage, self.log_end_offset, self.generation, files, paths, names)

    def finish_sync(self, sync: Sync, error: OSError | None = None) -> None:
        """Apply the result of a sync. A failure takes the log offline: the kernel reports a failed
        write-back once and drops the pages, so the content of the disk is unknown."""
        if error is not None:
            self.fault = error
            self.offline = True
        elif sync.generation == self.generation:
            self.recovery_point = max(self.recovery_point, sync.end_offset)

    def sync(self, synced: set[str] | None = None) -> None:
        """Sync the log in this thread, except directories in `synced`. Raises `OSError`."""
        sync = self.begin_sync()
        if sync is not None:
            try:
                sync.run(synced)
            except OSError as error:
                self.finish_sync(sync, error)
                raise
            self.finish_sync(sync)

    def expire_producers(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> int:
        """Remove producers that have been silent for `expiration_ms`. Return how many."""
        return self.producers.expire(now_ms, expiration_ms)

    def close(self, synced: set[str] | None = None) -> None:
        """Sync the log and write a producer snapshot, so that the next `open` can be clean. Logs
        that close together share the set of directories `synced`. Raises `OSError`."""
        if self.offline:
            raise LogOffline(self.directory)
        self.generation += 1
        self.repair()
        self.active.trim()
        untouched = self.recovery_point == self.snapshots.offset == self.log_end_offset
        if untouched and not self.names_changed:
            return
        entries = len(self.active.time_index)
        self.active.seal_times()
        # This entry may need a sync even if the records do not.
        self.sync_wanted |= len(self.active.time_index) > entries
        # Its name need not be durable: recovery can use an older snapshot and the batches.
        self.snapshots.write(self.log_end_offset, self.producers, self.bases)
        self.sync(synced)
