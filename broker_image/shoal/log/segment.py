"""One segment: a run of batches from its base offset on, in a `.log` file with its indexes.

Batches are only ever appended, and a failed append leaves the file as long as it was. The size
known here, not the file's, bounds every read, so what a failed write left behind is never
seen. Files are named by the base offset in twenty digits, as Kafka names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.log.indexes import (
    RELATIVE_OFFSET_MAX,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from shoal.log.storage import File, Storage
from shoal.record.batch import (
    HEADER_SIZE,
    OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatch,
    headers,
    read_header,
)

LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
)
DELETED, CLEANED, SWAP = ".deleted", ".cleaned", ".swap"
FILES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
#: What a walk over batches reads at a time.
SCAN_BYTES = 256 * 1024


def file_name(base_offset: int, kind: str) -> str:
    return f"{base_offset:020d}{kind}"


class Segment:
    """A segment and its files. `suffix` is that of files in transit (".cleaned", ".swap")."""

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
        self.file: File = storage.open(self.path(LOG), create=fresh)
        self.size = self.file.size()
        self.offset_index = OffsetIndex(storage, self.path(INDEX), base_offset, fresh=fresh)
        self.time_index = TimeIndex(storage, self.path(TIME_INDEX), base_offset, fresh=fresh)
        self.txn_index = TransactionIndex(storage, self.path(TXN_INDEX), base_offset, fresh=fresh)
        #: When the first batch came in, by the broker's clock; the file's age after a restart.
        self.created_ms = now_ms if fresh else min(now_ms, storage.modified_ms(self.path(LOG)))
        #: The first batch's largest timestamp, which segment.ms counts from; None when unknown.
        self.first_timestamp: int | None = None
        #: The largest timestamp and the last offset of the batch that has it; None: in the index.
        self.largest_timestamp: int | None = -1 if fresh else None
        self.largest_at = base_offset
        self._since_entry = 0
        #: Whether space behind the records is reserved; not known of one that a crash left.
        self.preallocated = False

    def path(self, kind: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, kind)}{self.suffix}"

    def max_timestamp(self) -> tuple[int, int]:
        """(largest timestamp, last offset of the first batch that has it); (-1, …) without."""
        if self.largest_timestamp is None:
            self.largest_timestamp, self.largest_at = self.time_index.last()
        return self.largest_timestamp, self.largest_at

    def first_batch_timestamp(self) -> int:
        """The first batch's largest timestamp, -1 without one."""
        if self.first_timestamp is None:
            self.first_timestamp = next((h.max_timestamp for _, h in self.heads()), -1)
        return self.first_timestamp

    def age_timestamp(self) -> int:
        """What retention.ms counts from: the youngest record, or the file's last change."""
        timestamp, _ = self.max_timestamp()
        return timestamp if timestamp >= 0 else self.storage.modified_ms(self.path(LOG))

    def fits(self, last_offset: int) -> bool:
        """Whether the indexes can express an offset as large as this."""
        return last_offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def append(
        self,
        buffers: Sequence[Buffer],
        last_offset: int,
        max_timestamp: int,
        interval_bytes: int,
    ) -> int:
        """Write one or more whole batches; gives their position. Raises `OSError`, after which
        `repair` must succeed before the next append."""
        position = self.size
        size = self.file.write(position, buffers)
        self.size = position + size
        self.note(position, size, last_offset, max_timestamp, interval_bytes)
        return position

    def note(
        self, position: int, size: int, last_offset: int, max_timestamp: int, interval_bytes: int
    ) -> None:
        """Index batches that stand in the file, in the order they stand there."""
        if self.largest_timestamp is None:
            self.max_timestamp()
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
        """Cut off what a failed append left behind. Raises `OSError`."""
        self.file.truncate(self.size)

    def read(self, position: int, size: int) -> bytes:
        return self.file.read(position, min(size, self.size - position))

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """(position, header, whole batch) from a batch's start on, within the known size.

        Raises `CorruptBatch`; stops before a partial tail. Memory: one chunk or one batch.
        """
        while position + HEADER_SIZE <= self.size:
            chunk = self.read(position, SCAN_BYTES)
            at = 0
            for at, header in headers(chunk):
                yield position + at, header, chunk[at : at + header.size]
                at += header.size
            if at == 0:
                size = read_header(chunk).size
                if position + size > self.size:
                    return
                chunk = self.read(position, size)
                yield position, read_header(chunk), chunk
                at = size
            position += at

    def heads(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) from a batch's start on; reads past the records of large batches."""
        while position + HEADER_SIZE <= self.size:
            chunk = self.read(position, 16 * 1024)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = read_header(chunk, at)
                if position + at + header.size > self.size:
                    return
                yield position + at, header
                at += header.batch_length + OVERHEAD
            if not at:
                raise CorruptBatch(f"{self.path(LOG)} ends at byte {position + len(chunk)}")
            position += at

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch whose last offset is at least `offset`."""
        for position, header in self.heads(self.offset_index.position_of(offset)):
            if header.last_offset >= offset:
                return position, header
        return None

    def next_offset(self) -> int:
        """The offset behind the last batch; the base offset when there is none."""
        found = self.base_offset
        for _, header in self.heads(self.offset_index.last_position()):
            found = header.next_offset
        return found

    def truncate(self, offset: int) -> int:
        """Cut the batches that end at or past `offset`; gives how many bytes went."""
        found = self.find(offset)
        if found is None:
            return 0
        position, _ = found
        gone = self.size - position
        self.offset_index.truncate(offset)
        self.time_index.truncate(offset)
        self.txn_index.truncate(offset)
        self.file.truncate(position)
        self.size = position
        self.first_timestamp = None
        if position:
            self.first_batch_timestamp()
        self.find_times()
        return gone

    def find_times(self) -> None:
        """Find the largest timestamp where the time index may lack its last entry: the indexes grow
        together, so the batches behind their last entry tell it."""
        start = self.offset_index.last_position()
        self.largest_timestamp, self.largest_at = self.time_index.last()
        for _, header in self.heads(start):
            if header.max_timestamp > self.largest_timestamp:
                self.largest_timestamp, self.largest_at = header.max_timestamp, header.last_offset
        self._since_entry = self.size - start

    def rebuild(self, *, interval_bytes: int) -> None:
        """Make offset and time index anew from the batches' headers."""
        self.offset_index.truncate(self.base_offset)
        self.time_index.truncate(self.base_offset)
        self.largest_timestamp, self.largest_at = -1, self.base_offset
        self._since_entry = 0
        for position, header in self.heads():
            self.note(
                position, header.size, header.last_offset, header.max_timestamp, interval_bytes
            )
        self.seal_times()

    def seal_times(self) -> None:
        """Give the time index its last entry, as on a roll and a close."""
        self.time_index.append(*self.max_timestamp())

    def trim(self) -> None:
        """Give back reserved space: nothing more is written here. Raises `OSError`."""
        if self.preallocated:
            self.file.truncate(self.size)
            self.preallocated = False

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers are here."""
        return self.txn_index.entries()

    def flush(self) -> None:
        """Hand what the indexes hold back to the operating system."""
        self.offset_index.flush()
        self.time_index.flush()
        self.txn_index.flush()

    def unsynced(self) -> list[File]:
        """Flush, and give the files that a sync is owed; asking takes the debt over."""
        self.flush()
        owed = (i.unsynced() for i in (self.offset_index, self.time_index, self.txn_index))
        return [self.file, *(file for file in owed if file is not None)]

    def rename(self, suffix: str, *, log_last: bool = False) -> None:
        """Rename all files to another suffix, the `.log` first or last of them. Raises `OSError`,
        and nothing has changed when that was the first."""
        old, before = {kind: self.path(kind) for kind in FILES}, self.suffix
        self.suffix = suffix
        for kind in reversed(FILES) if log_last else FILES:
            if kind == LOG or self.storage.exists(old[kind]):
                try:
                    self.storage.rename(old[kind], self.path(kind))
                except OSError:
                    self.suffix = before if kind == LOG and not log_last else suffix
                    raise
        self.offset_index.path = self.path(INDEX)
        self.time_index.path = self.path(TIME_INDEX)
        self.txn_index.path = self.path(TXN_INDEX)

    def release(self) -> None:
        """Drop the descriptors, which close with their last user."""
        for index in (self.offset_index, self.time_index, self.txn_index):
            index.release()

    def unload(self) -> None:
        """Give back the memory of the indexes of a segment that is not being read."""
        self.offset_index.unload()
        self.time_index.unload()

    def remove(self) -> None:
        """Remove the files."""
        for kind in FILES:
            self.storage.remove(self.path(kind))


class DeletedSegment:
    """A segment that is out of the log; `remove` is due after file.delete.delay.ms."""

    __slots__ = ("_segment", "base_offset", "reason", "size_bytes")

    def __init__(self, segment: Segment, reason: str) -> None:
        self._segment = segment
        self.base_offset = segment.base_offset
        self.size_bytes = segment.size
        self.reason = reason

    def remove(self) -> None:
        """Remove the files. May run in another thread."""
        self._segment.remove()
