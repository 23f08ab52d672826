"""One partition's log: segments in order, appended at the end, read anywhere, cut at both ends.

Invariants: segments' offsets do not overlap, and grow; log_start_offset <= log_end_offset;
recovery_point <= log_end_offset, and what lies below the recovery point is durable; the last
segment is the active one, and the only one written to. Nothing that a failed write left behind
is ever read: sizes known here bound reads, and the next append cuts the rest off first.

The log is used from one thread. Only `Sync.run` may go elsewhere, so that no fsync stops the
others. What happens to a batch stands in this package by its name: `appends`, `rolling`, `syncs`,
`reads`, `search`, `retention`, `compaction`, and `truncation`; opening is `recovery`. A partition
owns its log; the high watermark is the partition's, and handed in where it matters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

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
from shoal.log.epochs import LeaderEpochs
from shoal.log.errors import AppendRefused, LogOffline, OffsetOutOfRange
from shoal.log.indexes import AbortedTransaction
from shoal.log.producers import EXPIRATION_MS, ProducerStates
from shoal.log.reads import Read as Read
from shoal.log.segment import Segment
from shoal.log.snapshots import ProducerSnapshots
from shoal.log.storage import Storage
from shoal.log.syncs import Sync as Sync
from shoal.log.validation import ValidatedBatch
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import BatchHeader, Buffer

#: Log between two producer snapshots in a segment that does not roll: it bounds what recovery
#: replays after kill -9.
SNAPSHOT_INTERVAL_BYTES = 64 << 20


class Log:
    """The state is public to the modules of this package, and read-only outside of it."""

    def __init__(self, storage: Storage, directory: str, config: LogConfig) -> None:
        self.storage = storage
        self.directory = directory
        self.config = config
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        self.epochs = LeaderEpochs(storage, directory)
        self.producers = ProducerStates()
        self.snapshots = ProducerSnapshots(storage, directory)
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        #: Where the dirty part of a compacted log begins.
        self.cleaned_to = 0
        self.unsynced_since_ms: int | None = None
        #: The disk's last failure under an append; None once it was put right.
        self.fault: OSError | None = None
        #: An fsync failed: what the disk holds is unknown until the broker starts again.
        self.offline = False
        #: Cut or replaced files make syncs and positions of before void.
        self.generation = 0
        #: What compaction replaced, until `tick_retention` hands it out.
        self.garbage: list[retention.DeletedSegment] = []
        self.compacting = False
        #: Why compaction gave this log up; empty while all is well.
        self.uncleanable = ""
        #: When the first tombstone that compaction met may go.
        self.next_horizon_ms: int | None = None
        #: The directory has names that are not durable yet.
        self.names_changed = True
        #: Small files and directories that the next sync covers, too.
        self.owed_paths: list[str] = []
        self.owed_names: list[str] = []
        self._sync_wanted = False
        #: Ends of reads and their places in the files, so that who reads on needs no search.
        self.read_ends: dict[int, tuple[Segment, int]] = {}

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
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log, -1 without one."""
        return self.epochs.latest

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

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
                self._repair()
            except OSError as error:
                raise self._refuse(error) from None

    def _repair(self) -> None:
        if self.fault is not None:
            self.active.repair()
            self.fault = None

    def begin_epoch(self, epoch: int) -> None:
        """A leader's epoch begins at the log's end, be it before its first record. Raises
        `AppendRefused` when the disk refuses it."""
        self.write_epoch(epoch, self.log_end_offset)

    def write_epoch(self, epoch: int, start_offset: int) -> None:
        """For `appends`: a leader's epoch begins with the batch that comes next."""
        try:
            self.epochs.assign(epoch, start_offset)
        except OSError as error:
            raise self._refuse(error) from None

    def write(
        self,
        buffers: Sequence[Buffer],
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """For `appends`: write one batch at the end of the log. Raises `AppendRefused`."""
        active = self.segments[-1]
        try:
            if active.size and rolling.due_for(
                self, size=size, last_offset=last_offset, max_timestamp=max_timestamp, now_ms=now_ms
            ):
                active = self.roll(base_offset, now_ms)
            if active.size == 0:
                active.created_ms = now_ms
            active.append(buffers, last_offset, max_timestamp, self.config.index_interval_bytes)
        except OSError as error:
            raise self._refuse(error) from None
        self.log_end_offset = last_offset + 1
        self.snapshots.behind_bytes += size
        if self.unsynced_since_ms is None:
            self.unsynced_since_ms = now_ms

    def _refuse(self, error: OSError) -> AppendRefused:
        self.fault = error
        return AppendRefused(
            ErrorCode.kafka_storage_error, f"the disk refused a write: {error.strerror or error}"
        )

    # Rolling

    def roll(self, base_offset: int, now_ms: int) -> Segment:
        """Close the active segment and begin one at `base_offset`. Raises `OSError`, and then the
        old one is active still."""
        # Recovery would take a torn end of a segment for the end of the log.
        self._repair()
        old = self.segments[-1]
        old.seal_times()
        old.flush()
        old.trim()
        self.snapshots.write(base_offset, self.producers, self.bases)
        new = rolling.fresh_segment(self, base_offset, now_ms)
        self.segments.append(new)
        self.bases.append(base_offset)
        self.names_changed = True
        self._sync_wanted = True
        return new

    def roll_if_due(self, now_ms: int) -> bool:
        """Close an active segment that is older than segment.ms by the broker's clock, so that an
        idle log can be cleaned, too. Whether it did; raises `OSError`."""
        if not rolling.due_by_age(self, now_ms):
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

    def batches(self, offset: int, end: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """(position in its segment, header, bytes) of the batches that hold [offset, end)."""
        for segment in list(self.segments[max(0, bisect_right(self.bases, offset) - 1) :]):
            if segment.base_offset >= end:
                return
            found = segment.find(offset)
            if found is None:
                continue
            for position, header, data in segment.batches(found[0]):
                if header.base_offset >= end:
                    return
                yield position, header, data

    def offset_for_timestamp(
        self, timestamp_ms: int, *, max_offset: int | None = None
    ) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record that is at least so young."""
        return search.since(self, timestamp_ms, max_offset)

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the largest timestamp."""
        largest = max((segment.max_timestamp()[0] for segment in self.segments), default=-1)
        return None if largest < 0 else self.offset_for_timestamp(largest)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as OffsetForLeaderEpoch answers it, (-1, -1) if it cannot be told."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Up to where no transaction is undecided."""
        first = self.producers.first_unstable_offset(high_watermark)
        if first is None or first > high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [start, end), by the offset of their marker."""
        out = []
        for segment in self.segments[max(0, bisect_right(self.bases, start) - 1) :]:
            for entry in segment.aborted():
                if entry.last_offset >= start and entry.first_offset < end:
                    out.append(entry)
                if entry.last_stable_offset >= end:
                    return out
        return out

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

    def advance_log_start(self, offset: int, reason: str = "") -> bool:
        """Records before `offset` are gone for readers; whole segments go with the next
        `tick_retention`. `offset` is at most the high watermark; whether it moved."""
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.cleaned_to = max(self.cleaned_to, offset)
        return True

    def forget_positions(self) -> None:
        """Segments were taken away or replaced."""
        self.read_ends.clear()
        self.names_changed = True

    # Cleaning

    def tick_retention(self, now_ms: int, *, high_watermark: int) -> list[retention.DeletedSegment]:
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
            self._sync_wanted
            or self.unsynced_messages >= config.flush_messages
            or (since is not None and now_ms - since >= config.flush_ms)
        )

    def begin_sync(self) -> Sync | None:
        """What is to be synced now, None when all is durable. Raises `OSError`."""
        if self.offline:
            raise LogOffline(self.directory)
        durable = self.recovery_point >= self.log_end_offset
        if durable and not self.names_changed and not self._sync_wanted:
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
        self.names_changed = self._sync_wanted = self.epochs.unsynced = False
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
        self._repair()
        self.active.trim()
        untouched = self.recovery_point == self.snapshots.offset == self.log_end_offset
        if untouched and not self.names_changed:
            return
        entries = len(self.active.time_index)
        self.active.seal_times()
        # The records may be durable already, and this entry not.
        self._sync_wanted |= len(self.active.time_index) > entries
        # Its name need not be durable: without it the batches behind an older one tell the state.
        self.snapshots.write(self.log_end_offset, self.producers, self.bases)
        self.sync(synced)
        for segment in self.segments:
            segment.release()
