"""Copies of records for their dead letters (`dead_letters`).

The records come from clients, and a few kilobytes of a compressed batch may expand to many
megabytes. So one call reads a bounded number of bytes, and later calls continue. What is compressed
or large is left to a thread.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.dead_letters import HEADERS_MAX, size_bytes
from shoal.log.errors import OffsetOutOfRange
from shoal.log.remote import RemoteUnavailable
from shoal.record.batch import CorruptBatch, headers
from shoal.record.records import Record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.log.reads import Read
    from shoal.record.batch import Buffer
    from shoal.replication.partition import Partition

READ_BYTES = 1 << 20
#: Bytes that one call reads: some milliseconds.
STEP_BYTES_MAX = 4 << 20
#: A batch of more bytes or records takes too long for the event loop.
BATCH_BYTES_MAX, BATCH_RECORDS_MAX = 256 * 1024, 2000


class Copies(NamedTuple):
    """Records by their offsets, and the first wanted offset that was not read, if there is one."""

    found: Mapping[int, Record]
    end: int | None


class LargeCopy:
    """Copies the records of one read that take too long for the event loop. `run` runs in a thread,
    and sets `copies`."""

    __slots__ = ("_bytes_max", "_data", "copies", "wanted")

    def __init__(self, data: bytes, wanted: Sequence[int], bytes_max: int) -> None:
        self._data, self.wanted, self._bytes_max = data, wanted, bytes_max
        self.copies = Copies({}, None)

    def run(self) -> None:
        """Copy the records."""
        self.copies = _copy(self._data, self.wanted, self._bytes_max)


def copy_records(source: Partition, wanted: Sequence[int], bytes_max: int) -> Copies | LargeCopy:
    """Copy the records of rising offsets, as far as the log has them and can decode them.

    It stops when they exceed `bytes_max` together, after at least one, or when the call has done
    its share. If the first read takes too long, its copy is returned for a thread. Raises
    `OSError`, also if records have yet to be downloaded.
    """
    found: dict[int, Record] = {}
    size = cost = 0
    rest: Sequence[int] = wanted
    while rest and cost < STEP_BYTES_MAX:
        try:
            data, next_offset = _read(source, max(rest[0], source.log.log_start_offset))
        except (OffsetOutOfRange, CorruptBatch):
            return Copies(found, None)
        if not data:
            return Copies(found, None)
        cost += len(data)
        past = bisect_left(rest, next_offset)
        if _takes_long(data, rest[:past]):
            # The thread does one read, with nothing before it.
            return Copies(found, rest[0]) if found else LargeCopy(bytes(data), rest, bytes_max)
        copies = _copy(data, rest[:past], bytes_max - size)
        found |= copies.found
        size += sum(map(size_bytes, copies.found.values()))
        if copies.end is not None:
            return Copies(found, copies.end)
        rest = rest[past:]
    return Copies(found, rest[0] if rest else None)


def _takes_long(data: Buffer, wanted: Sequence[int]) -> bool:
    """Whether a batch with a wanted record is compressed or large."""
    return any(
        header.compression
        or header.size > BATCH_BYTES_MAX
        or header.record_count > BATCH_RECORDS_MAX
        for _, header in headers(data)
        if bisect_left(wanted, header.base_offset) < bisect_left(wanted, header.next_offset)
    )


def _copy(data: Buffer, wanted: Sequence[int], bytes_max: int) -> Copies:
    """Copy the records at rising offsets of one read."""
    found: dict[int, Record] = {}
    size = at = 0
    for position, header in headers(data):
        at = bisect_left(wanted, header.base_offset, at)
        past = bisect_left(wanted, header.next_offset, at)
        for record in _records(data, position, wanted[at:past]):
            size += size_bytes(record)
            if size > bytes_max and found:
                return Copies(found, record.offset)
            found[record.offset] = record
        at = past
    return Copies(found, wanted[at] if at < len(wanted) else None)


def _records(data: Buffer, at: int, wanted: Sequence[int]) -> Iterator[Record]:
    """Yield the records of a batch at these offsets; none if it is damaged. A record with too many
    headers is left out."""
    if not wanted:
        return
    try:
        records = list(read_records(data, at, offsets=frozenset(wanted)))
    except CorruptBatch:
        return
    yield from (record for record in records if len(record.headers) <= HEADERS_MAX)


def _read(source: Partition, offset: int) -> Read:
    """Read on from an offset. Raises `OSError`, also if that has yet to be downloaded: a letter
    without its record would lose it."""
    found = source.log.read(offset, READ_BYTES, max_offset=source.high_watermark)
    if not found.data and offset < source.log.local_start_offset:
        raise RemoteUnavailable(f"offset {offset} is being read from the object store")
    return found
