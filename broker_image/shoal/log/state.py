"""The state of one log, and the steps that change it: write a batch, roll a segment, advance the
log start offset.

Invariants: the offsets of segments ascend and do not overlap; log_start_offset <= log_end_offset;
recovery_point <= log_end_offset, and all below the recovery point is durable; the last segment is
the active one, and the only one written to. Readers never see what a failed write left behind:
the sizes held here bound reads, and the next append first truncates the rest.

`Log` extends this class. The modules for appends, reads, retention, compaction, truncation and
recovery take a `LogState`, so that none of them imports `Log`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from shoal.log import rolling
from shoal.log.config import LogConfig
from shoal.log.epochs import LeaderEpochs
from shoal.log.errors import AppendRefused, OffsetOutOfRange
from shoal.log.indexes import AbortedTransaction
from shoal.log.producers import ProducerStates
from shoal.log.segment import DeletedSegment, Segment
from shoal.log.snapshots import ProducerSnapshots
from shoal.log.storage import Storage
from shoal.protocol.errors import ErrorCode
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
        self.garbage: list[DeletedSegment] = []
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
        self.sync_wanted = False
        #: Ends of reads and their places in the files, so that who reads on needs no search.
        self.read_ends: dict[int, tuple[Segment, int]] = {}

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def unsynced_messages(self) -> int:
        """What flush.messages counts."""
        return self.log_end_offset - self.recovery_point

    def repair(self) -> None:
        """Truncate what a failed append left behind. Raises `OSError`."""
        if self.fault is not None:
            self.active.repair()
            self.fault = None

    def write_epoch(self, epoch: int, start_offset: int) -> None:
        """For `appends`: a leader's epoch begins with the batch that comes next."""
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
        """For `appends`: write one batch at the end of the log. Raises `AppendRefused`."""
        active = self.segments[-1]
        try:
            if active.size and rolling.due_for(
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
        """Close the active segment and begin one at `base_offset`. Raises `OSError`, and then the
        old one is active still."""
        # Recovery would take a torn end of a segment for the end of the log.
        self.repair()
        old = self.segments[-1]
        old.seal_times()
        old.flush()
        old.trim()
        self.snapshots.write(base_offset, self.producers, self.bases)
        new = rolling.fresh_segment(self.storage, self.directory, self.config, base_offset, now_ms)
        self.segments.append(new)
        self.bases.append(base_offset)
        self.names_changed = True
        self.sync_wanted = True
        return new

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
