"""One partition's log: segments in order, appended at the end, read anywhere, cut at both ends.

Invariants: segments' offsets do not overlap, and grow; log_start_offset <= log_end_offset;
recovery_point <= log_end_offset, and what lies below the recovery point is durable; the last
segment is the active one, and the only one written to. Nothing that a failed write left behind
is ever read: sizes known here bound reads, and the next append cuts the rest off first.

The log is used from one thread. Only `Sync.run` may go elsewhere, so that no fsync stops the
others. Opening is `shoal.log.recovery`, taking away old segments `shoal.log.retention`,
compaction `shoal.log.compaction`. A partition owns its log; the high watermark is the
partition's, and handed in where it matters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from shoal.log import compaction, recovery, retention, rolling, search, slices
from shoal.log.config import LogConfig
from shoal.log.epochs import LeaderEpochs
from shoal.log.errors import AppendRefused, LogOffline, OffsetOutOfRange
from shoal.log.indexes import AbortedTransaction
from shoal.log.producers import EXPIRATION_MS, ProducerStates, WrittenBatch
from shoal.log.segment import SNAPSHOT, Segment, file_name
from shoal.log.storage import Storage
from shoal.log.syncs import Sync as Sync
from shoal.log.validation import client_batch, follower_batch, stored
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import (
    CONTROL_BIT,
    NO_PRODUCER_ID,
    OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    assign,
    headers,
    prefix,
    read_header,
)
from shoal.record.control import EndTransactionMarker, read_marker
from shoal.record.records import build_batch, build_own_batch

#: Log between two producer snapshots in a segment that does not roll: it bounds what recovery
#: replays after kill -9.
SNAPSHOT_INTERVAL_BYTES = 64 << 20
#: Ends of reads whose place in the file is remembered, so that who reads on needs no search.
_HINTS_MAX = 64
#: The first bytes of a batch, which the CRC leaves out and an append replaces.
_PREFIX_SIZE = 16


class Origin(IntEnum):
    """Who appends: it tells how much is checked."""

    CLIENT = 0
    COORDINATOR = 1


class Appended(NamedTuple):
    """Where a batch now stands. append_time_ms is -1 under create time; `duplicate` says that
    it stood there before; `size` is in bytes, what a leader's append has added to the log."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    size: int = 0


class Read(NamedTuple):
    """Whole batches, the first of which holds the offset asked for; b"" when there are none yet.

    `next_offset` is behind the last of them: where to read on.
    """

    data: bytes | memoryview
    next_offset: int


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
        self.snapshot_offset = -1
        self._since_snapshot = 0
        self._hints: dict[int, tuple[Segment, int]] = {}

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
        data: Buffer,
        *,
        now_ms: int,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
    ) -> Appended:
        """Validate, place and write what a producer or coordinator sent: one batch from a client,
        one or more from a coordinator. `data` is left as it is.

        Raises `AppendRefused`, and then nothing was appended.
        """
        self._ready()
        if origin is Origin.CLIENT:
            header = client_batch(data, self.config, now_ms)
            if header.producer_id != NO_PRODUCER_ID:
                duplicate = self.producers.check(header, client=True)
                if duplicate is not None:
                    return self._again(duplicate)
            return self._append_one(data, header, now_ms, leader_epoch)
        try:
            batches = [(at, header) for at, header in headers(data)]
        except CorruptBatch as error:
            raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
        if not batches or batches[-1][0] + batches[-1][1].size != len(data):
            raise AppendRefused(ErrorCode.corrupt_message, f"no whole batches in {len(data)} bytes")
        view = memoryview(data)
        last = Appended(-1, -1, -1, self.log_start_offset)
        base_offset = self.log_end_offset
        for at, header in batches:
            if header.producer_id != NO_PRODUCER_ID and not header.is_control:
                self.producers.check(header, client=False)
            one = view[at : at + header.size]
            last = self._append_one(one, header, now_ms, leader_epoch)
        return last._replace(base_offset=base_offset, size=len(data))

    def append_records(
        self, records: Sequence[tuple[bytes, bytes | None]], *, now_ms: int, leader_epoch: int
    ) -> Appended:
        """Write records of a coordinator, (key, value) pairs, as one batch. It is made in its place
        and the log's form, so there is nothing to check. Raises `AppendRefused`."""
        config, base_offset = self.config, self.log_end_offset
        if config.compression_type != "producer" or config.message_timestamp_type != "CreateTime":
            batch = build_batch((now_ms, key, value, ()) for key, value in records)
            return self.append(
                batch, now_ms=now_ms, leader_epoch=leader_epoch, origin=Origin.COORDINATOR
            )
        self._ready()
        if leader_epoch > self.epochs.latest:
            self._write_epoch(leader_epoch, base_offset)
        data = build_own_batch(
            records, timestamp_ms=now_ms, base_offset=base_offset, leader_epoch=leader_epoch
        )
        last_offset = base_offset + len(records) - 1
        self._write((data,), len(data), base_offset, last_offset, now_ms, now_ms)
        return Appended(base_offset, last_offset, -1, self.log_start_offset, False, len(data))

    def _again(self, batch: WrittenBatch) -> Appended:
        append_time = self.config.timestamp_type is TimestampType.LOG_APPEND_TIME
        return Appended(
            batch.base_offset,
            batch.last_offset,
            batch.timestamp if append_time else -1,
            self.log_start_offset,
            True,
        )

    def _append_one(
        self, data: Buffer, header: BatchHeader, now_ms: int, leader_epoch: int
    ) -> Appended:
        config = self.config
        base_offset = self.log_end_offset
        append_time = -1
        if config.compression_type != "producer":
            data, header = stored(data, header, config)
        if config.message_timestamp_type == "LogAppendTime":
            append_time = now_ms
            data = bytearray(data)
            assign(data, 0, base_offset, leader_epoch, now_ms)
            header = read_header(data)
        marker = _marker_of(data, 0, header)
        if marker is not None:
            self.producers.check_marker(header, marker)
        if leader_epoch > self.epochs.latest:
            self._write_epoch(leader_epoch, base_offset)
        head = prefix(data, 0, base_offset, leader_epoch)
        size, last_offset = header.batch_length + OVERHEAD, base_offset + header.last_offset_delta
        self._write(
            [head, memoryview(data)[_PREFIX_SIZE:]],
            size,
            base_offset,
            last_offset,
            header.max_timestamp,
            now_ms,
        )
        if header.producer_id != NO_PRODUCER_ID:
            self.note_producer(header, marker, base_offset, now_ms)
        return Appended(base_offset, last_offset, append_time, self.log_start_offset, False, size)

    def append_as_follower(self, data: Buffer, *, now_ms: int = 0) -> Appended:
        """Write batches as a leader sent them: offsets and epochs are theirs, a torn last batch is
        passed over. Raises `AppendRefused`; batches before the refused one stay."""
        self._ready()
        view, first = memoryview(data), -1
        try:
            for at, header in headers(data):
                follower_batch(data, at, header, self.log_end_offset)
                marker = _marker_of(data, at, header)
                if header.leader_epoch > self.epochs.latest:
                    self._write_epoch(header.leader_epoch, header.base_offset)
                self._write(
                    [view[at : at + header.size]],
                    header.size,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                    now_ms,
                )
                if header.producer_id != NO_PRODUCER_ID:
                    self.note_producer(header, marker, header.base_offset, now_ms)
                first = header.base_offset if first < 0 else first
        except CorruptBatch as error:
            raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
        return Appended(first, self.log_end_offset - 1, -1, self.log_start_offset)

    def note_producer(
        self,
        header: BatchHeader,
        marker: EndTransactionMarker | None,
        base_offset: int,
        now_ms: int,
    ) -> None:
        """A producer's batch stands in the active segment now: for appends and recovery."""
        if not header.attributes & CONTROL_BIT:
            self.producers.note(header, base_offset, now_ms)
        elif marker is not None:
            aborted = self.producers.note_marker(header, marker, base_offset, now_ms)
            if aborted is not None:
                self.active.txn_index.extend([aborted])

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
        self._write_epoch(epoch, self.log_end_offset)

    def _write_epoch(self, epoch: int, start_offset: int) -> None:
        try:
            self.epochs.assign(epoch, start_offset)
        except OSError as error:
            raise self._refuse(error) from None

    def _write(
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
        self._since_snapshot += size
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
        self.write_snapshot(base_offset)
        new = Segment(self.storage, self.directory, base_offset, now_ms=now_ms, fresh=True)
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

    def write_snapshot(self, offset: int) -> None:
        """Keep the producers' state at the log's end; older snapshots between segments go.

        Never synced: its checksum tells a lost one, and the batches behind an older one the rest.
        """
        path = f"{self.directory}/{file_name(offset, SNAPSHOT)}"
        self.storage.replace_file(path, self.producers.snapshot(), sync=False)
        stray = self.snapshot_offset
        if stray >= 0 and stray != offset and stray not in self.bases:
            self.storage.remove(f"{self.directory}/{file_name(stray, SNAPSHOT)}")
        self.snapshot_offset = offset
        self._since_snapshot = 0

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True
    ) -> Read:
        """Whole batches from the one that holds `offset` up to `max_bytes`, none of which ends at
        or past `max_offset`; with `min_one` the first one however large it is.

        Raises `OffsetOutOfRange`; `OSError` and `CorruptBatch` when the disk fails or lies.
        """
        bound = self._bound(offset, max_offset)
        place = self._place(offset, bound)
        if place is None:
            return Read(b"", offset)
        return self._read_at(*place, offset, max_bytes, bound, min_one)

    def slice(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True
    ) -> slices.Slice:
        """`read`, but batches of some size are only found, for `sendfile`."""
        bound = self._bound(offset, max_offset)
        place = self._place(offset, bound)
        if place is None:
            return slices.Slice(b"", offset)
        segment, position = place
        found = slices.find(self, segment, position, max_bytes, bound)
        if found is None:
            return slices.Slice(
                *self._read_at(segment, position, offset, max_bytes, bound, min_one)
            )
        self._remember(found[1], segment, position + len(found[0]))
        return slices.Slice(*found)

    def _bound(self, offset: int, max_offset: int | None) -> int:
        """Where reading from `offset` ends. Raises `OffsetOutOfRange`."""
        end = self.log_end_offset
        if not self.log_start_offset <= offset <= end:
            raise OffsetOutOfRange(offset, self.log_start_offset, end)
        return end if max_offset is None or max_offset > end else max_offset

    def _place(self, offset: int, bound: int) -> tuple[Segment, int] | None:
        """The segment and the position in it of the batch that holds `offset`, if that is below
        `bound`."""
        if offset >= bound:
            return None
        hint = self._hints.pop(offset, None)
        at = bisect_right(self.bases, offset) - 1
        while at < len(self.segments):
            segment = self.segments[at]
            if hint is not None and hint[0] is segment:
                position: int | None = hint[1]
            else:
                found = segment.find(offset)
                position = None if found is None else found[0]
            if position is not None and position < segment.size:
                return segment, position
            at += 1
        return None

    def _read_at(
        self,
        segment: Segment,
        position: int,
        offset: int,
        max_bytes: int,
        bound: int,
        min_one: bool,
    ) -> Read:
        data: bytes | memoryview = segment.read(position, max(max_bytes, 0))
        stop = position + len(data)
        # Begin the search for the last whole batch at one that the index knows to be whole.
        start = segment.offset_index.whole_before(stop)
        if bound < self.log_end_offset:
            start = min(start, segment.offset_index.position_of(bound - 1))
        next_offset, last = self._whole(data, max(0, start - position), bound)
        if next_offset == 0:
            header = read_header(segment.read(position, _HEAD_BYTES))
            if not min_one or header.next_offset > bound:
                return Read(b"", offset)
            data = segment.read(position, header.size)
            next_offset, last = header.next_offset, header.size
        if last < len(data):
            # A copy costs 60 µs a megabyte; a view would keep a large buffer for a small part.
            data = memoryview(data)[:last] if last > len(data) // 2 else data[:last]
        self._remember(next_offset, segment, position + last)
        return Read(data, next_offset)

    @staticmethod
    def _whole(data: Buffer, at: int, bound: int) -> tuple[int, int]:
        """(next offset, end) of the whole batches in `data` from `at` on that end before `bound`;
        a next offset of 0 says that there is none."""
        next_offset = 0
        for start, header in headers(data, at):
            if header.next_offset > bound:
                break
            next_offset = header.next_offset
            at = start + header.batch_length + OVERHEAD
        return next_offset, at

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        hints = self._hints
        hints[offset] = (segment, position)
        if len(hints) > _HINTS_MAX:
            del hints[next(iter(hints))]

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
        if offset >= self.log_end_offset:
            # Who led for a moment has noted an epoch that begins here and has no record.
            self.epochs.truncate_from_end(self.log_end_offset)
            return
        self._void()
        if offset < self.log_start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
            self._drop(self.segments.pop())
            self.bases.pop()
        self.active.truncate(offset)
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_to = min(self.cleaned_to, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.epochs.truncate_from_end(offset)
        recovery.rebuild_producers(self, self.active.created_ms)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all there is; the log goes on at `offset`. Raises `OSError`."""
        self._void()
        now_ms = self.active.created_ms
        while self.segments:
            self._drop(self.segments.pop())
        self.bases.clear()
        self.drop_snapshots(-1)
        self.producers.clear()
        self.epochs.clear()
        fresh = Segment(self.storage, self.directory, offset, now_ms=now_ms, fresh=True)
        self.segments.append(fresh)
        self.bases.append(offset)
        self.log_start_offset = self.log_end_offset = offset
        self.recovery_point = self.cleaned_to = offset
        self.unsynced_since_ms = None

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

    def _void(self) -> None:
        """Positions and syncs of before mean nothing any more."""
        self.generation += 1
        self.forget_positions()

    def forget_positions(self) -> None:
        """Segments were taken away or replaced."""
        self._hints.clear()
        self.names_changed = True

    def _drop(self, segment: Segment) -> None:
        """Remove a segment that no reader may see again, at once."""
        segment.remove()
        segment.release()
        if segment.base_offset:
            path = f"{self.directory}/{file_name(segment.base_offset, SNAPSHOT)}"
            self.storage.remove(path)

    def drop_snapshots(self, offset: int) -> None:
        """Remove producer snapshots of offsets past `offset`."""
        for name in self.storage.names(self.directory):
            stem, dot, kind = name.partition(".")
            if dot + kind == SNAPSHOT and stem.isdigit() and int(stem) > offset:
                self.storage.remove(f"{self.directory}/{name}")
        if self.snapshot_offset > offset:
            self.snapshot_offset = -1

    # Cleaning

    def tick_retention(self, now_ms: int, *, high_watermark: int) -> list[retention.DeletedSegment]:
        """Take away what retention.ms, retention.bytes and the log start offset no longer keep;
        what is returned is to be removed after file.delete.delay.ms. Raises `OSError`."""
        return retention.tick(self, now_ms, high_watermark)

    def compaction(
        self, now_ms: int, *, high_watermark: int, memory_bytes: int
    ) -> Iterator[compaction.Step] | None:
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
        if self._since_snapshot > SNAPSHOT_INTERVAL_BYTES and len(self.producers):
            self.write_snapshot(self.log_end_offset)
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
        untouched = self.recovery_point == self.snapshot_offset == self.log_end_offset
        if untouched and not self.names_changed:
            return
        entries = len(self.active.time_index)
        self.active.seal_times()
        # The records may be durable already, and this entry not.
        self._sync_wanted |= len(self.active.time_index) > entries
        # Its name need not be durable: without it the batches behind an older one tell the state.
        self.write_snapshot(self.log_end_offset)
        self.sync(synced)
        for segment in self.segments:
            segment.release()


#: More than a header, so that one read tells a batch's size.
_HEAD_BYTES = 64


def _marker_of(data: Buffer, at: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The transaction marker in a control batch. Raises `AppendRefused`."""
    if not header.attributes & CONTROL_BIT or header.producer_id == NO_PRODUCER_ID:
        return None
    try:
        return read_marker(data, at)
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
