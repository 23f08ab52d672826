"""Copies of records for their dead letters (`dead_letters`).

The records come from clients, and a few kilobytes of a compressed batch may expand to many
megabytes. So one call reads a bounded number of bytes, and later calls continue. What is compressed
or large is left to a thread.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.dead_letters import HEADERS_MAX, estimate_size_bytes
from shoal.log.errors import OffsetOutOfRange
from shoal.log.remote import RemoteUnavailable
from shoal.record.batch import CorruptBatch, iter_headers
from shoal.record.records import Record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.log.reads import ReadResult
    from shoal.record.batch import Buffer
    from shoal.replication.partition import Partition

READ_BYTES = 1 << 20
#: Bytes that one call reads: some milliseconds.
STEP_BYTES_MAX = 4 << 20
#: A batch of more bytes or records takes too long for the event loop.
BATCH_BYTES_MAX, BATCH_RECORDS_MAX = 256 * 1024, 2000


class RecordCopies(NamedTuple):
    """Records by their offsets, and the first wanted offset that was not read, if there is one."""

    records: Mapping[int, Record]
    end: int | None


class LargeCopy:
    """Copies the records of one read that take too long for the event loop. `run` runs in a thread,
    and sets `copies`."""

    __slots__ = ("_bytes_max", "_data", "copies", "offsets")

    def __init__(self, data: bytes, offsets: Sequence[int], bytes_max: int) -> None:
        self._data, self.offsets, self._bytes_max = data, offsets, bytes_max
        self.copies = RecordCopies({}, None)

    def run(self) -> None:
        """Copy the records."""
        self.copies = _copy(self._data, self.offsets, self._bytes_max)


def copy_records(
    source: Partition, offsets: Sequence[int], bytes_max: int
) -> RecordCopies | LargeCopy:
    """Copy the records of rising offsets, as far as the log has them and can decode them.

    It stops when they exceed `bytes_max` together, after at least one, or when the call has done
    its share. If the first read takes too long, its copy is returned for a thread. Raises
    `OSError`, also if records have yet to be downloaded.
    """
    records: dict[int, Record] = {}
    size = cost = 0
    remaining: Sequence[int] = offsets
    while remaining and cost < STEP_BYTES_MAX:
        try:
            data, next_offset = _read(source, max(remaining[0], source.log.log_start_offset))
        except (OffsetOutOfRange, CorruptBatch):
            return RecordCopies(records, None)
        if not data:
            return RecordCopies(records, None)
        cost += len(data)
        past = bisect_left(remaining, next_offset)
        if _is_slow_to_copy(data, remaining[:past]):
            # The thread does one read, with nothing before it.
            return (
                RecordCopies(records, remaining[0])
                if records
                else LargeCopy(bytes(data), remaining, bytes_max)
            )
        copies = _copy(data, remaining[:past], bytes_max - size)
        records |= copies.records
        size += sum(map(estimate_size_bytes, copies.records.values()))
        if copies.end is not None:
            return RecordCopies(records, copies.end)
        remaining = remaining[past:]
    return RecordCopies(records, remaining[0] if remaining else None)


def _is_slow_to_copy(data: Buffer, offsets: Sequence[int]) -> bool:
    """Whether a batch with a wanted record is compressed or large."""
    return any(
        header.compression
        or header.size > BATCH_BYTES_MAX
        or header.record_count > BATCH_RECORDS_MAX
        for _, header in iter_headers(data)
        if bisect_left(offsets, header.base_offset) < bisect_left(offsets, header.next_offset)
    )


def _copy(data: Buffer, offsets: Sequence[int], bytes_max: int) -> RecordCopies:
    """Copy the records at rising offsets of one read."""
    records: dict[int, Record] = {}
    size = index = 0
    for position, header in iter_headers(data):
        index = bisect_left(offsets, header.base_offset, index)
        past = bisect_left(offsets, header.next_offset, index)
        for record in _iterate_records(data, position, offsets[index:past]):
            size += estimate_size_bytes(record)
            if size > bytes_max and records:
                return RecordCopies(records, record.offset)
            records[record.offset] = record
        index = past
    return RecordCopies(records, offsets[index] if index < len(offsets) else None)


def _iterate_records(data: Buffer, at: int, offsets: Sequence[int]) -> Iterator[Record]:
    """Yield the records of a batch at these offsets; none if it is damaged. A record with too many
    headers is left out."""
    if not offsets:
        return
    try:
        records = list(read_records(data, at, offsets=frozenset(offsets)))
    except CorruptBatch:
        return
    yield from (record for record in records if len(record.headers) <= HEADERS_MAX)


def _read(source: Partition, offset: int) -> ReadResult:
    """Read on from an offset. Raises `OSError`, also if that has yet to be downloaded: a letter
    without its record would lose it."""
    chunk = source.log.read(offset, READ_BYTES, max_offset=source.high_watermark)
    if not chunk.data and offset < source.log.local_start_offset:
        raise RemoteUnavailable(f"offset {offset} is being read from the object store")
    return chunk
