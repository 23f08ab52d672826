"""The state of one log, and the steps that change it: write a batch, roll a segment, advance the
log start offset.

Invariants:

* The offsets of segments ascend and do not overlap.
* log_start_offset <= log_end_offset and recovery_point <= log_end_offset.
* The first segment has the log start offset, except with tiered storage: it may be above then.
* Everything below the recovery point is durable.
* The last segment is the active one, and the only one written to.

Readers never see the rest of a failed write. The sizes in this state bound reads, and the next
append truncates the rest first.

`Log` extends this class. The modules for appends, reads, retention, compaction, truncation and
recovery take a `LogState`, so that none of them imports `Log`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from shoal.log import rolling
from shoal.log.epochs import LeaderEpochs
from shoal.log.errors import AppendRefused, OffsetOutOfRange
from shoal.log.producers import ProducerStateManager
from shoal.log.snapshots import ProducerSnapshots
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.log.config import LogConfig
    from shoal.log.indexes import AbortedTransaction
    from shoal.log.remote import RemoteLogReader
    from shoal.log.segment import DeletedSegment, Segment
    from shoal.log.storage import Storage
    from shoal.record.batch import BatchHeader, Buffer


class LogState:
    """Owns the segments, epochs and producer states of one log.

    The state is public to the modules of this package, and read-only outside of it.
    """

    def __init__(self, storage: Storage, directory: str, config: LogConfig) -> None:
        self.storage = storage
        self.directory = directory
        self.config = config
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        self.epochs = LeaderEpochs(storage, directory)
        self.producers = ProducerStateManager()
        self.snapshots = ProducerSnapshots(storage, directory)
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        #: Start of the dirty part of a compacted log.
        self.cleaned_to = 0
        self.unsynced_since_ms: int | None = None
        #: The disk error of the last failed append; None after the repair.
        self.fault: OSError | None = None
        #: Whether an fsync failed. The content of the disk is then unknown until a restart.
        self.offline = False
        #: Grows when files are truncated or replaced, which voids older syncs and positions.
        self.generation = 0
        #: Segments that compaction replaced, until `tick_retention` returns them.
        self.garbage: list[DeletedSegment] = []
        self.compacting = False
        #: What is only in the object store; None until tiered storage has opened the log.
        self.remote: RemoteLogReader | None = None
        #: Why compaction gave up on this log; empty if it did not.
        self.uncleanable = ""
        #: When compaction may remove the first tombstone that it kept.
        self.next_horizon_ms: int | None = None
        #: Whether the directory has names that are not durable yet.
        self.names_changed = True
        #: Small files and directories that the next sync must include.
        self.owed_paths: list[str] = []
        self.owed_names: list[str] = []
        self.sync_wanted = False
        #: End offsets of reads with their file positions, so that the next read needs no search.
        self.read_ends: dict[int, tuple[Segment, int]] = {}

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def local_start_offset(self) -> int:
        """The first offset on the disk. With tiered storage the log may start below it."""
        return max(self.log_start_offset, self.bases[0])

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def repair(self) -> None:
        """Truncate what a failed append left behind. Raises `OSError`."""
        if self.fault is not None:
            self.active.repair()
            self.fault = None

    def write_epoch(self, epoch: int, start_offset: int) -> None:
        """Start a leader epoch with the next batch. Raises `AppendRefused`."""
        try:
            self.epochs.assign(epoch, start_offset)
        except OSError as error:
            raise self.refuse(error) from None

    def write(
        self,
        buffers: Sequence[Buffer],
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """Write one batch at the end of the log. Raises `AppendRefused`."""
        active = self.segments[-1]
        try:
            if active.size and rolling.should_roll_for(
                self.config,
                active,
                size=size,
                last_offset=last_offset,
                max_timestamp=max_timestamp,
                now_ms=now_ms,
            ):
                active = self.roll(base_offset, now_ms)
            if active.size == 0:
                active.created_ms = now_ms
            active.append(buffers, last_offset, max_timestamp, self.config.index_interval_bytes)
        except OSError as error:
            raise self.refuse(error) from None
        self.log_end_offset = last_offset + 1
        self.snapshots.behind_bytes += size
        if self.unsynced_since_ms is None:
            self.unsynced_since_ms = now_ms

    def refuse(self, error: OSError) -> AppendRefused:
        """Note that the disk refused a write, and return the error for the producer."""
        self.fault = error
        return AppendRefused(
            ErrorCode.kafka_storage_error, f"the disk refused a write: {error.strerror or error}"
        )

    def roll(self, base_offset: int, now_ms: int) -> Segment:
        """Close the active segment and start one at `base_offset`. Raises `OSError`; then the old
        segment stays active."""
        # Recovery would mistake a torn end of a segment for the end of the log.
        self.repair()
        old = self.segments[-1]
        old.seal_times()
        old.flush()
        old.trim()
        self.snapshots.write(base_offset, self.producers, self.bases)
        new = rolling.create_segment(self.storage, self.directory, self.config, base_offset, now_ms)
        self.segments.append(new)
        self.bases.append(base_offset)
        self.names_changed = True
        self.sync_wanted = True
        return new

    def read_batches(self, offset: int, end: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """Iterate over (position in its segment, header, bytes) of the batches in [offset, end)."""
        for segment in list(self.segments[max(0, bisect_right(self.bases, offset) - 1) :]):
            if segment.base_offset >= end:
                return
            first_batch = segment.find(offset)
            if first_batch is None:
                continue
            for position, header, data in segment.read_batches(first_batch[0]):
                if header.base_offset >= end:
                    return
                yield position, header, data

    def find_last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset below which all transactions have ended."""
        first = self.producers.find_first_unstable_offset(high_watermark)
        if first is None or first > high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def find_aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start, end), by their marker's offset."""
        out = []
        if self.remote is not None and start < self.bases[0]:
            out += self.remote.find_aborted_transactions(start, end)
        for segment in self.segments[max(0, bisect_right(self.bases, start) - 1) :]:
            for entry in segment.get_aborted_transactions():
                if entry.last_offset >= start and entry.first_offset < end:
                    out.append(entry)
                if entry.last_stable_offset >= end:
                    return out
        return out

    def advance_log_start(self, offset: int) -> bool:
        """Hide the records below `offset`, which is at most the high watermark. The next
        `tick_retention` removes whole segments. Return whether the start has moved."""
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)
        if offset <= self.log_start_offset:
            return False
        # First what the disk may refuse, so that the caller can repeat it.
        self.epochs.truncate_from_start(offset)
        self.log_start_offset = offset
        self.cleaned_to = max(self.cleaned_to, offset)
        return True

    def forget_positions(self) -> None:
        """Forget file positions, after segments were removed or replaced."""
        self.read_ends.clear()
        self.names_changed = True
