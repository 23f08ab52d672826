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
from collections.abc import Sequence

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
from shoal.log.appends import Appended as Appended
from shoal.log.appends import Origin as Origin
from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused, LogOffline
from shoal.log.producers import EXPIRATION_MS
from shoal.log.reads import Read as Read
from shoal.log.search import TimestampOffset as TimestampOffset
from shoal.log.segment import DeletedSegment
from shoal.log.state import LogState
from shoal.log.storage import Storage
from shoal.log.syncs import Sync as Sync
from shoal.log.validation import ValidatedBatch
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import Buffer

#: Log between two producer snapshots in a segment that does not roll: it bounds what recovery
#: replays after kill -9.
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
        """Open, or make, the log in `directory`. After a `clean` stop nothing is scanned;
        otherwise what lies past the recovery point is, and a torn tail is cut off.

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
        """What flush.messages counts."""
        return self.log_end_offset - self.recovery_point

    # Appending

    def append(
        self,
        data: Buffer | ValidatedBatch,
        *,
        now_ms: int,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
    ) -> Appended:
        """Validate, place and write what a producer or coordinator sent: one batch from a client,
        validated before or not, one or more from a coordinator. `data` is left as it is.

        Raises `AppendRefused`, and then nothing was appended.
        """
        self._ready()
        if origin is Origin.CLIENT:
            return appends.of_client(self, data, now_ms, leader_epoch)
        assert not isinstance(data, ValidatedBatch)
        return appends.of_coordinator(self, data, now_ms, leader_epoch)

    def append_records(
        self, records: Sequence[tuple[bytes, bytes | None]], *, now_ms: int, leader_epoch: int
    ) -> Appended:
        """Write records of a coordinator, (key, value) pairs, as one batch. It is made in its place
        and the log's form, so there is nothing to check. Raises `AppendRefused`."""
        self._ready()
        return appends.of_records(self, records, now_ms, leader_epoch)

    def append_as_follower(self, data: Buffer, *, now_ms: int = 0) -> Appended:
        """Write batches as a leader sent them: offsets and epochs are theirs, a torn last batch is
        passed over. Raises `AppendRefused`; batches before the refused one stay."""
        self._ready()
        return appends.of_leader(self, data, now_ms)

    def _ready(self) -> None:
        """Put right what a failed append left behind, before anything else is appended."""
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
        """A leader's epoch begins at the log's end, be it before its first record. Raises
        `AppendRefused` when the disk refuses it."""
        self.write_epoch(epoch, self.log_end_offset)

    # Rolling

    def roll_if_due(self, now_ms: int) -> bool:
        """Close an active segment that is older than segment.ms by the broker's clock, so that an
        idle log can be cleaned, too. Whether it did; raises `OSError`."""
        if not rolling.due_by_age(self.config, self.active, now_ms):
            return False
        self.roll(self.log_end_offset, now_ms)
        return True

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True
    ) -> Read:
        """Whole batches from the one that holds `offset` up to `max_bytes`, none of which ends at
        or past `max_offset`; with `min_one` the first one however large it is.

        Raises `OffsetOutOfRange`; `OSError` and `CorruptBatch` when the disk fails or lies.
        """
        return reads.read(self, offset, max_bytes, max_offset, min_one)

    def slice(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True
    ) -> slices.Slice:
        """`read`, but batches of some size are only found, for `sendfile`."""
        return reads.slice(self, offset, max_bytes, max_offset, min_one)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, max_offset: int | None = None
    ) -> TimestampOffset | None:
        """Return the first record whose timestamp is at least `timestamp_ms`."""
        return search.since(self, timestamp_ms, max_offset)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp."""
        largest = max((segment.max_timestamp()[0] for segment in self.segments), default=-1)
        return None if largest < 0 else self.offset_for_timestamp(largest)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers it, (-1, -1) if it cannot be told."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    # Cutting

    def truncate(self, offset: int) -> None:
        """Cut all from `offset` on, as a follower does. Raises `OSError`.

        The recovery point moves back: sync and checkpoint it before new batches are appended,
        or a crash may bring back what was cut.
        """
        truncation.from_offset(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all there is; the log goes on at `offset`. Raises `OSError`."""
        truncation.fully(self, offset)

    # Cleaning

    def tick_retention(self, now_ms: int, *, high_watermark: int) -> list[DeletedSegment]:
        """Take away what retention.ms, retention.bytes and the log start offset no longer keep;
        what is returned is to be removed after file.delete.delay.ms. Raises `OSError`."""
        return retention.tick(self, now_ms, high_watermark)

    def compaction(
        self, now_ms: int, *, high_watermark: int, memory_bytes: int
    ) -> compaction.Compaction | None:
        """A round of compaction, to be advanced step by step, or None when none is due. A `Sync`
        that it yields may be run elsewhere before it goes on. Steps raise `OSError`."""
        return compaction.begin(self, now_ms, high_watermark, memory_bytes)

    # Durability

    def sync_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms ask for a sync, or a closed segment waits for one."""
        config = self.config
        since = self.unsynced_since_ms
        return (
            self.sync_wanted
            or self.unsynced_messages >= config.flush_messages
            or (since is not None and now_ms - since >= config.flush_ms)
        )

    def begin_sync(self) -> Sync | None:
        """What is to be synced now, None when all is durable. Raises `OSError`."""
        if self.offline:
            raise LogOffline(self.directory)
        durable = self.recovery_point >= self.log_end_offset
        if durable and not self.names_changed and not self.sync_wanted:
            return None
        first = max(0, bisect_right(self.bases, self.recovery_point) - 1)
        # What a full disk may refuse comes before any debt is taken over: the sync is tried again.
        for segment in self.segments[first:]:
            segment.flush()
        if self.snapshots.behind_bytes > SNAPSHOT_INTERVAL_BYTES and len(self.producers):
            self.snapshots.write(self.log_end_offset, self.producers, self.bases)
        files = [file for segment in self.segments[first:] for file in segment.unsynced()]
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
        """The sync has run, or failed: then the log is offline, since what the disk holds is not
        known any more (the kernel reports a failed write-back once and drops the pages)."""
        if error is not None:
            self.fault = error
            self.offline = True
        elif sync.generation == self.generation:
            self.recovery_point = max(self.recovery_point, sync.end_offset)

    def sync(self, synced: set[str] | None = None) -> None:
        """Make all of the log durable, here and now, but directories that are `synced`. Raises
        `OSError`."""
        sync = self.begin_sync()
        if sync is not None:
            try:
                sync.run(synced)
            except OSError as error:
                self.finish_sync(sync, error)
                raise
            self.finish_sync(sync)

    def expire_producers(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> int:
        """Forget producers that have long been silent; how many."""
        return self.producers.expire(now_ms, expiration_ms)

    def close(self, synced: set[str] | None = None) -> None:
        """Make all durable and leave a producer snapshot, so that the next `open` may be a clean
        one. Raises `OSError`. Logs that close together share the set of directories `synced`."""
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
        # The records may be durable already, and this entry not.
        self.sync_wanted |= len(self.active.time_index) > entries
        # Its name need not be durable: without it the batches behind an older one tell the state.
        self.snapshots.write(self.log_end_offset, self.producers, self.bases)
        self.sync(synced)
        for segment in self.segments:
            segment.release()
