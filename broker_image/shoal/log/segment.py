"""One segment: a run of batches from its base offset on, in a `.log` file with its indexes.

Batches are only appended. The size held here, not the file's size, bounds every read, so a reader
never sees what a failed write left behind. Files are named by the base offset in twenty digits, as
in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shoal.log.indexes import (
    RELATIVE_OFFSET_MAX,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from shoal.record.batch import (
    HEADER_SIZE,
    OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatch,
    iter_headers,
    read_header,
    read_place,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.log.storage import File, Storage

T = TypeVar("T")

LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
)
DELETED, CLEANED, SWAP = ".deleted", ".cleaned", ".swap"
FILES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
#: Bytes that a scan of batches reads at a time.
SCAN_BYTES = 256 * 1024
#: Bytes that a search for a batch reads at a time: some intervals of the index.
_HEADER_BYTES = 16 * 1024


def format_file_name(base_offset: int, kind: str) -> str:
    return f"{base_offset:020d}{kind}"


class Segment:
    """A segment and its files. `suffix` marks files in transit (".cleaned", ".swap")."""

    __slots__ = (
        "_since_entry",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "first_timestamp",
        "largest_at",
        "largest_timestamp",
        "offset_index",
        "preallocated",
        "size",
        "storage",
        "suffix",
        "time_index",
        "txn_index",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        *,
        now_ms: int,
        suffix: str = "",
        fresh: bool = False,
    ) -> None:
        self.storage = storage
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        if fresh:
            self.remove()
        self.file: File = storage.open(self.build_path(LOG), create=fresh)
        self.size = self.file.size()
        self.offset_index = OffsetIndex(storage, self.build_path(INDEX), base_offset, fresh=fresh)
        self.time_index = TimeIndex(storage, self.build_path(TIME_INDEX), base_offset, fresh=fresh)
        self.txn_index = TransactionIndex(
            storage, self.build_path(TXN_INDEX), base_offset, fresh=fresh
        )
        #: Time of the first append, by the broker's clock; after a restart the file's own time.
        self.created_ms = (
            now_ms if fresh else min(now_ms, storage.get_modified_ms(self.build_path(LOG)))
        )
        #: Largest timestamp of the first batch, from which segment.ms counts; None if unknown.
        self.first_timestamp: int | None = None
        #: The largest timestamp and the last offset of its batch; None if only the index has it.
        self.largest_timestamp: int | None = -1 if fresh else None
        self.largest_at = base_offset
        self._since_entry = 0
        #: Whether space behind the records is reserved; unknown after a crash.
        self.preallocated = False

    def build_path(self, kind: str) -> str:
        return f"{self.directory}/{format_file_name(self.base_offset, kind)}{self.suffix}"

    def find_max_timestamp(self) -> tuple[int, int]:
        """Return (largest timestamp, last offset of its first batch); -1 without a timestamp."""
        if self.largest_timestamp is None:
            self.largest_timestamp, self.largest_at = self.time_index.get_last_entry()
        return self.largest_timestamp, self.largest_at

    def find_first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch, -1 without one."""
        if self.first_timestamp is None:
            self.first_timestamp = next((h.max_timestamp for _, h in self.read_headers()), -1)
        return self.first_timestamp

    def find_age_timestamp(self) -> int:
        """Return the time from which retention.ms counts: the largest timestamp or the file's."""
        timestamp, _ = self.find_max_timestamp()
        return timestamp if timestamp >= 0 else self.storage.get_modified_ms(self.build_path(LOG))

    def can_hold_offset(self, last_offset: int) -> bool:
        """Whether the indexes can hold this offset."""
        return last_offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def append(
        self,
        buffers: Sequence[Buffer],
        last_offset: int,
        max_timestamp: int,
        interval_bytes: int,
    ) -> int:
        """Write one or more whole batches, and return their position. After an `OSError`,
        `repair` must succeed before the next append."""
        position = self.size
        size = self.file.write(position, buffers)
        self.size = position + size
        self.note(position, size, last_offset, max_timestamp, interval_bytes)
        return position

    def note(
        self, position: int, size: int, last_offset: int, max_timestamp: int, interval_bytes: int
    ) -> None:
        """Add a batch of the file to the indexes, in file order."""
        if self.largest_timestamp is None:
            self.find_max_timestamp()
        if max_timestamp > self.largest_timestamp:  # type: ignore[operator]
            self.largest_timestamp, self.largest_at = max_timestamp, last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self._since_entry > interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.largest_timestamp, self.largest_at)  # type: ignore[arg-type]
            self._since_entry = 0
        self._since_entry += size

    def repair(self) -> None:
        """Truncate what a failed append left behind. Raises `OSError`."""
        self.file.truncate(self.size)

    def read(self, position: int, size: int) -> bytes:
        return self.file.read(position, min(size, self.size - position))

    def read_batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """Iterate over (position, header, whole batch) from the start of a batch on.

        Stops before a partial tail. Holds one chunk or one batch in memory. Raises `CorruptBatch`.
        """
        while position + HEADER_SIZE <= self.size:
            chunk = self.read(position, SCAN_BYTES)
            chunk_position = 0
            for chunk_position, header in iter_headers(chunk):
                yield (
                    position + chunk_position,
                    header,
                    chunk[chunk_position : chunk_position + header.size],
                )
                chunk_position += header.size
            if chunk_position == 0:
                size = read_header(chunk).size
                if position + size > self.size:
                    return
                chunk = self.read(position, size)
                yield position, read_header(chunk), chunk
                chunk_position = size
            position += chunk_position

    def read_headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over (position, header) from the start of a batch on, skipping large records."""
        for start, header, _, _ in self._walk(position, _read_header_and_end):
            yield start, header

    def _walk(
        self, position: int, read: Callable[[bytes, int], tuple[T, int]]
    ) -> Iterator[tuple[int, T, bytes, int]]:
        """Iterate over (position, what `read` finds, a chunk of the file, position in it) of each
        whole batch. `read` returns what it finds in a header, and the position behind the batch.
        """
        while position + HEADER_SIZE <= self.size:
            chunk, at = self.read(position, _HEADER_BYTES), 0
            while at + HEADER_SIZE <= len(chunk):
                read_fields, end = read(chunk, at)
                if position + end > self.size:
                    return
                yield position + at, read_fields, chunk, at
                at = end
            if not at:
                raise CorruptBatch(f"{self.build_path(LOG)} ends at byte {position + len(chunk)}")
            position += at

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return the first batch whose last offset is at least `offset`."""
        start = self.offset_index.find_position(offset)
        for position, next_offset, chunk, at in self._walk(start, read_place):
            if next_offset > offset:
                return position, read_header(chunk, at)
        return None

    def find_next_offset(self) -> int:
        """Return the offset behind the last batch, or the base offset without a batch."""
        offset = self.base_offset
        for _, header in self.read_headers(self.offset_index.get_last_position()):
            offset = header.next_offset
        return offset

    def truncate(self, offset: int) -> int:
        """Truncate the batches that end at or above `offset`. Return the removed bytes."""
        first_batch = self.find(offset)
        if first_batch is None:
            return 0
        position, _ = first_batch
        removed_bytes = self.size - position
        self.offset_index.truncate(offset)
        self.time_index.truncate(offset)
        self.txn_index.truncate(offset)
        self.file.truncate(position)
        self.size = position
        self.first_timestamp = None
        if position:
            self.find_first_timestamp()
        self.find_times()
        return removed_bytes

    def find_times(self) -> None:
        """Find the largest timestamp if the time index may lack its last entry. The batches behind
        the last entries of the indexes have it."""
        start = self.offset_index.get_last_position()
        self.largest_timestamp, self.largest_at = self.time_index.get_last_entry()
        for _, header in self.read_headers(start):
            if header.max_timestamp > self.largest_timestamp:
                self.largest_timestamp, self.largest_at = header.max_timestamp, header.last_offset
        self._since_entry = self.size - start

    def rebuild(self, *, interval_bytes: int) -> None:
        """Rebuild the offset and time indexes from the batch headers."""
        self.offset_index.truncate(self.base_offset)
        self.time_index.truncate(self.base_offset)
        self.largest_timestamp, self.largest_at = -1, self.base_offset
        self._since_entry = 0
        for position, header in self.read_headers():
            self.note(
                position, header.size, header.last_offset, header.max_timestamp, interval_bytes
            )
        self.seal_times()

    def seal_times(self) -> None:
        """Add the last entry to the time index, before a roll or a close."""
        self.time_index.append(*self.find_max_timestamp())

    def trim(self) -> None:
        """Release reserved space after the last write. Raises `OSError`."""
        if self.preallocated:
            self.file.truncate(self.size)
            self.preallocated = False

    def get_aborted_transactions(self) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are in this segment."""
        return self.txn_index.get_entries()

    def flush(self) -> None:
        """Write the new index entries to the files."""
        self.offset_index.flush()
        self.time_index.flush()
        self.txn_index.flush()

    def take_unsynced(self) -> list[File]:
        """Flush, and return the files that the caller must sync."""
        self.flush()
        owed = (i.take_unsynced() for i in (self.offset_index, self.time_index, self.txn_index))
        return [self.file, *(file for file in owed if file is not None)]

    def rename(self, suffix: str, *, log_last: bool = False) -> None:
        """Rename all files to another suffix, the `.log` file first or last. Raises `OSError`; if
        the first rename failed, nothing has changed."""
        old, before = {kind: self.build_path(kind) for kind in FILES}, self.suffix
        self.suffix = suffix
        for kind in reversed(FILES) if log_last else FILES:
            if kind == LOG or self.storage.exists(old[kind]):
                try:
                    self.storage.rename(old[kind], self.build_path(kind))
                except OSError:
                    self.suffix = before if kind == LOG and not log_last else suffix
                    raise
        self.offset_index.path = self.build_path(INDEX)
        self.time_index.path = self.build_path(TIME_INDEX)
        self.txn_index.path = self.build_path(TXN_INDEX)

    def unload(self) -> None:
        """Free the memory of the indexes of a segment without readers."""
        self.offset_index.unload()
        self.time_index.unload()

    def remove(self) -> None:
        """Remove the files."""
        for kind in FILES:
            self.storage.remove(self.build_path(kind))


def _read_header_and_end(chunk: bytes, at: int) -> tuple[BatchHeader, int]:
    header = read_header(chunk, at)
    return header, at + header.batch_length + OVERHEAD


class DeletedSegment:
    """A segment that was removed from the log. Call `remove` after file.delete.delay.ms."""

    __slots__ = ("_segment", "base_offset", "reason", "size_bytes")

    def __init__(self, segment: Segment, reason: str) -> None:
        self._segment = segment
        self.base_offset = segment.base_offset
        self.size_bytes = segment.size
        self.reason = reason

    def remove(self) -> None:
        """Remove the files. May run in another thread."""
        self._segment.remove()
