"""Leaves records out of a leader's log whose id was appended within the window.

A batch is cut as compaction cuts it: the other records keep their offsets and sequences, so the
answer to the producer and its next batch are right, and its offsets have holes. If all records are
known, nothing is appended, and the answer has the offset of the first. A producer with sequences is
the exception: its batch is appended without records, because a new leader must know the sequences.
docs/adr/0162-cut-known-records-out-of-a-batch.md has the reasons.

`Deduplication` is soft state. It begins with the records of the window that are in the log, found
by the time index, and follows the log from there. `read` and `note` do that in steps: the caller
may run `find_contents` between them in another thread. Until the last step, batches with ids are
sent back. The owner starts again if the log has changed without this state (`is_current`).

Ids that do not fit into memory are in files (`dedup_store`). The owner runs what `find_work`
returns, also while the log is read; files of an earlier time shorten that. If a file is damaged,
the append that needs it is sent back, and the owner starts again without the file (`failure`).

To cut a compressed batch means to expand and to compress it. A batch that is too large for the
event loop is cut in a worker thread before its append: `find_cut` tells what to leave out, and
`cut` does it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from shoal.log import resent
from shoal.log.appends import LogAppendInfo, build_duplicate_info
from shoal.log.cleaner import drop_records, keep_records
from shoal.log.dedup_file import CorruptIdFile
from shoal.log.dedup_index import DedupIndex
from shoal.log.dedup_store import IdStore, Work, has_room
from shoal.log.errors import AppendRefused
from shoal.log.validation import RECORD_ERRORS_MAX, CutBatch, ValidatedBatch, validate
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import (
    COMPRESSION_MASK,
    NO_PRODUCER_ID,
    BatchHeader,
    Buffer,
    CorruptBatch,
    iter_headers,
    read_header,
)
from shoal.record.compression import OutputFull
from shoal.record.control import ControlType, read_marker
from shoal.record.dedup_ids import DedupId, find_ids
from shoal.record.records import decompress_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.log.log import Log

#: Bytes of the log in one step of the start.
STEP_BYTES = 1 << 20
#: Bytes of batches that are not compressed, whose ids are found in a millisecond.
INLINE_BYTES_MAX = 16 << 10
#: Largest expansion of a compressed batch that is cut, in bytes. The worker takes up to a second
#: and three times as much memory for that.
CUT_BYTES_MAX = 32 << 20
#: The fastest level of each codec.
_CUT_LEVEL = 1


class BatchContents(NamedTuple):
    """What the index needs of a batch in the log. `aborts` is None unless it is a marker."""

    header: BatchHeader
    ids: tuple[DedupId, ...]
    aborts: bool | None


def find_contents(data: Buffer) -> list[BatchContents]:
    """Return the contents of whole batches. Batches that expand are expanded one by one. Raises
    `CorruptBatch`."""
    out = []
    for position, header in iter_headers(data):
        if header.is_control:
            marker = read_marker(data, position)
            aborts = None if marker is None else marker.control_type is ControlType.ABORT
            out.append(BatchContents(header, (), aborts))
            continue
        ids: tuple[DedupId, ...] = ()
        if header.record_count:
            ids = find_ids(decompress_records(data, position, header), header.record_count)
        out.append(BatchContents(header, ids, None))
    return out


def is_small(data: Buffer) -> bool:
    """Whether `find_contents` is short enough for an event loop."""
    if len(data) > INLINE_BYTES_MAX:
        return False
    return not any(h.attributes & COMPRESSION_MASK for _, h in iter_headers(data))


class _Found(NamedTuple):
    """What the ids of a batch were found to be, when the log ended at `end`."""

    ids: tuple[DedupId, ...]
    end: int
    known: dict[int, int]
    new: list[DedupId]


class Deduplication:
    """The ids of one partition's leader, and the appends that they decide."""

    def __init__(self, log: Log, now_ms: int) -> None:
        window_ms = log.config.shoal_deduplication_window_ms
        self._log = log
        self._end = self._next_offset = log.log_end_offset
        self._position = _find_start(log, now_ms - window_ms)
        self._begin_ms, self._time_ms = now_ms, now_ms - window_ms
        self.index = DedupIndex(
            window_ms, self._position, log.config.shoal_deduplication_memory_bytes
        )
        self.store = IdStore(log)
        #: Why it has to start again; None if it has not.
        self.failure: CorruptIdFile | None = None
        #: Whether the owner is busy with the log or the files.
        self.is_working = False
        #: Ends of transactions behind the records that the start has still to read.
        self._markers: list[tuple[int, bool]] = []
        #: What `find_cut` has found for the batch that is appended next.
        self._found: _Found | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all records of the window are known."""
        return self._position >= self._end and self.store.is_loaded

    @property
    def is_current(self) -> bool:
        """Whether nobody else has changed the log or the window."""
        log = self._log
        return (
            self._next_offset == log.log_end_offset
            and self.index.window_ms == log.config.shoal_deduplication_window_ms
            and has_room(self.index.base, log.log_end_offset)
        )

    # Work of the owner

    def needs_work(self, now_ms: int) -> bool:
        """Whether the owner is idle and should not be."""
        if self.is_working:
            return False
        if self.failure is not None or not self.is_ready:
            return True
        return self.store.has_work(self.index, now_ms)

    def find_work(self, now_ms: int) -> Work | None:
        """Return the next work on the files; call `finish_work` when it is done."""
        return self.store.find_work(self.index, self._position, now_ms)

    def finish_work(self, work: Work) -> None:
        """Apply work that is done. Raises `OSError`; it is tried again later."""
        was_loaded = self.store.is_loaded
        try:
            work.finish()
        except CorruptIdFile as error:
            self.failure = error
        if not was_loaded and self.index.files:
            self._position = self.index.files[-1].range.end
            self._time_ms = min(self.index.last_time_ms, self._begin_ms)

    # The start

    def read(self) -> Buffer:
        """Return the next whole batches of the start. Raises `OSError`, `CorruptBatch` and
        `OffsetOutOfRange`."""
        offset = max(self._position, self._log.local_start_offset)
        if offset >= self._end:
            return b""
        return self._log.read(offset, STEP_BYTES, max_offset=self._end).data

    def note(self, contents: list[BatchContents]) -> None:
        """Note what `find_contents` has found in the bytes of `read`."""
        for header, ids, aborts in contents:
            # An append is not before the latest timestamp up to it, if clocks agree.
            self._time_ms = min(max(self._time_ms, header.max_timestamp), self._begin_ms)
            if aborts is not None:
                self.index.note_marker(header.producer_id, aborted=aborts)
            elif ids:
                self._note(ids, header, header.base_offset, self._time_ms)
            self._position = header.next_offset
        if not contents:
            self._position = self._end
        if self.is_ready:
            for producer_id, aborted in self._markers:
                self.index.note_marker(producer_id, aborted=aborted)
            self._markers.clear()

    # Appends

    def append(
        self, data: Buffer | ValidatedBatch, *, now_ms: int, leader_epoch: int
    ) -> LogAppendInfo:
        """Append what is new of a client's batch. Raises `AppendRefused`."""
        try:
            return self._append(data, now_ms, leader_epoch)
        except CorruptIdFile as error:
            self.failure = error
            raise AppendRefused(ErrorCode.not_leader_or_follower, f"{error}. Try again.") from None

    def _append(
        self, data: Buffer | ValidatedBatch, now_ms: int, leader_epoch: int
    ) -> LogAppendInfo:
        log = self._log
        batch = data
        if not isinstance(batch, ValidatedBatch):
            batch = validate(batch, log.config, now_ms)
        if batch.ids == ():
            return self._write(batch, (), now_ms, leader_epoch)
        if not self.is_ready or batch.ids is None:
            raise AppendRefused(
                ErrorCode.not_leader_or_follower,
                "The leader reads the ids of its log (shoal.deduplication.window.ms). Try again.",
            )
        header = batch.header
        known, new = self._find_known(batch.ids, now_ms)
        self._found = None
        first = _find_first_offset(known, header.record_count)
        if header.producer_id != NO_PRODUCER_ID:
            resent_batch = resent.check(log, header)
            if resent_batch is not None:
                info = build_duplicate_info(log, resent_batch)
                return info if first is None else info._replace(known_offset=first)
        self._check_room(len(new))
        if not known:
            return self._write(batch, new, now_ms, leader_epoch)
        if len(known) < header.record_count:
            return self._write(_take_cut(batch, known), new, now_ms, leader_epoch)
        if header.producer_id == NO_PRODUCER_ID:
            # Acknowledge it when the last of those records is committed.
            last = max(known.values())
            base = last - header.last_offset_delta
            return LogAppendInfo(base, last, -1, log.log_start_offset, True, 0, known[0])
        empty, _ = drop_records(header)
        bare = ValidatedBatch(read_header(empty), empty)
        appended = self._write(bare, (), now_ms, leader_epoch)
        return appended if first is None else appended._replace(known_offset=first)

    def find_cut(self, batch: ValidatedBatch, now_ms: int) -> dict[int, int]:
        """Return the records that are left out of a compressed batch, as `cut` takes them. None if
        it is not cut."""
        ids, header = batch.ids, batch.header
        if not ids or not self.is_ready or not header.attributes & COMPRESSION_MASK:
            return {}
        try:
            known, _ = self._find_known(ids, now_ms)
        except CorruptIdFile:
            return {}  # The append meets it as well, and starts again.
        return known if len(known) < header.record_count else {}

    def note_coordinator_append(self, data: Buffer) -> None:
        """Note batches that a coordinator has just appended, such as the end of a transaction."""
        for contents in find_contents(data):
            if contents.aborts is None:
                continue
            producer_id = contents.header.producer_id
            if self.is_ready:
                self.index.note_marker(producer_id, aborted=contents.aborts)
            else:
                self._markers.append((producer_id, contents.aborts))
        self._next_offset = self._log.log_end_offset

    def _find_known(
        self, ids: tuple[DedupId, ...], now_ms: int
    ) -> tuple[dict[int, int], list[DedupId]]:
        """Return the offset by offset delta of the records that are in the log, or earlier in the
        batch, and the ids of the others."""
        found = self._found
        if found is not None and found.ids is ids and found.end == self._log.log_end_offset:
            return found.known, found.new
        self.index.expire(now_ms)
        known: dict[int, int] = {}
        new: list[DedupId] = []
        batch_offsets: dict[bytes, int] = {}
        find, end = self.index.find, self._log.log_end_offset
        for entry in ids:
            delta, digest = entry
            offset = batch_offsets.get(digest)
            if offset is None:
                offset = find(digest)
            if offset is not None:
                known[delta] = offset
            else:
                batch_offsets[digest] = end + delta
                new.append(entry)
        self._found = _Found(ids, end, known, new)
        return known, new

    def _check_room(self, count: int) -> None:
        if count and self.index.is_full:
            raise AppendRefused(
                ErrorCode.not_leader_or_follower,
                "Earlier ids are still being written to the disk, and no more fit into memory"
                " (shoal.deduplication.memory.bytes). Try again.",
            )
        limit = self._log.config.shoal_deduplication_ids_max
        if count and len(self.index) + count > limit:
            raise AppendRefused(
                ErrorCode.policy_violation,
                f"The partition already has {len(self.index)} ids within"
                f" {self.index.window_ms} ms. Raise shoal.deduplication.ids.max ({limit}), shorten"
                " shoal.deduplication.window.ms, or add partitions.",
            )

    def _write(
        self,
        batch: ValidatedBatch,
        ids: tuple[DedupId, ...] | list[DedupId],
        now_ms: int,
        leader_epoch: int,
    ) -> LogAppendInfo:
        appended = self._log.append(batch, now_ms=now_ms, leader_epoch=leader_epoch)
        self._next_offset = self._log.log_end_offset
        if ids and not appended.duplicate:
            self._time_ms = max(self._time_ms, now_ms)
            self._note(ids, batch.header, appended.base_offset, self._time_ms)
        return appended

    def _note(
        self,
        ids: tuple[DedupId, ...] | list[DedupId],
        header: BatchHeader,
        base_offset: int,
        time_ms: int,
    ) -> None:
        self.index.note_batch(
            ids,
            base_offset=base_offset,
            last_offset=base_offset + header.last_offset_delta,
            now_ms=time_ms,
            transaction=header.producer_id if header.is_transactional else None,
        )


def _find_start(log: Log, time_ms: int) -> int:
    """Return an offset at or before the first record on the disk that has reached a time."""
    start = log.local_start_offset
    for segment in log.segments[max(bisect_right(log.bases, start) - 1, 0) :]:
        if segment.find_max_timestamp()[0] >= time_ms:
            return max(start, segment.time_index.find_offset(time_ms))
    return log.log_end_offset


def _find_first_offset(known: Mapping[int, int], count: int) -> int | None:
    """Return the offset of a batch's first record if all are known and lie side by side."""
    if len(known) < count:
        return None
    first = known[0]
    return first if all(offset == first + delta for delta, offset in known.items()) else None


def _take_cut(batch: ValidatedBatch, known: Mapping[int, int]) -> ValidatedBatch:
    """Return the batch without the known records. Raises `AppendRefused`."""
    made = batch.cut
    if made is None or made.left_out != known.keys():
        if batch.in_worker and batch.header.attributes & COMPRESSION_MASK:
            raise AppendRefused(
                ErrorCode.not_leader_or_follower,
                "The known ids have changed while the batch was cut. Try again.",
            )
        made = cut(batch, known)
    return ValidatedBatch(made.header, made.data)


def cut(batch: ValidatedBatch, known: Mapping[int, int]) -> CutBatch:
    """Return the batch without the records at the `known` offset deltas, where their offsets in the
    log are. Raises `AppendRefused`."""
    header = batch.header
    kept = bytearray(b"\1" * header.record_count)
    for delta in known:
        kept[delta] = 0
    try:
        body = decompress_records(batch.data, 0, header, bytes_max=CUT_BYTES_MAX)
    except OutputFull:
        raise AppendRefused(
            ErrorCode.invalid_record,
            f"{len(known)} of {header.record_count} records have ids that are known, and a batch"
            f" that expands to more than {CUT_BYTES_MAX} bytes is not cut. None was appended. Send"
            " smaller batches.",
            [
                (delta, f"The record's id is known at offset {known[delta]}.")
                for delta in sorted(known)[:RECORD_ERRORS_MAX]
            ],
        ) from None
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.invalid_record, str(error)) from None
    data, _ = keep_records(header, body, kept, level=_CUT_LEVEL)
    return CutBatch(frozenset(known), read_header(data), data)
