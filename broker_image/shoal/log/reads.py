"""Reads of a log: whole batches from an offset on, as bytes or as a range of a file.

The file positions at which reads ended are remembered, so that sequential reads need no search.
They are forgotten when segments are truncated, removed or replaced.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from shoal.log import slices
from shoal.log.errors import OffsetOutOfRange
from shoal.log.remote import RemoteUnavailable
from shoal.record.batch import HEADER_SIZE, Buffer, read_header, read_place

if TYPE_CHECKING:
    from shoal.log.segment import Segment
    from shoal.log.state import LogState

#: Number of remembered read ends.
_HINTS_MAX = 64
#: Bytes to read for the header of a batch.
_HEAD_BYTES = 64


class ReadResult(NamedTuple):
    """Whole batches, the first of which contains the requested offset; b"" if there are none yet.

    `next_offset` is the offset behind the last batch, where the next read continues.
    """

    data: bytes | memoryview
    next_offset: int


def read(
    log: LogState, offset: int, max_bytes: int, max_offset: int | None, min_one: bool
) -> ReadResult:
    """Read whole batches as bytes (`Log.read`)."""
    bound = _find_upper_bound(log, offset, max_offset)
    if log.remote is not None and offset < log.bases[0]:
        data, next_offset = log.remote.read(offset, max_bytes, bound, min_one)
        if isinstance(data, slices.FileSlice):
            data = data.file.read(data.at, data.size)
        return ReadResult(data, next_offset)
    location = _locate(log, offset, bound)
    if location is None:
        return ReadResult(b"", offset)
    return _read_at(log, *location, offset, max_bytes, bound, min_one)


def read_slice(
    log: LogState, offset: int, max_bytes: int, max_offset: int | None, min_one: bool
) -> slices.LogSlice:
    """Find whole batches as a range of a file, or read a small result (`Log.read_slice`)."""
    bound = _find_upper_bound(log, offset, max_offset)
    if log.remote is not None and offset < log.bases[0]:
        return log.remote.read(offset, max_bytes, bound, min_one)
    location = _locate(log, offset, bound)
    if location is None:
        return slices.LogSlice(b"", offset)
    segment, position = location
    located = slices.find_file_slice(
        segment, position, max_bytes, bound=bound, log_end_offset=log.log_end_offset
    )
    if located is None:
        return slices.LogSlice(*_read_at(log, segment, position, offset, max_bytes, bound, min_one))
    _remember(log, located[1], segment, position + len(located[0]))
    return slices.LogSlice(*located)


def _find_upper_bound(log: LogState, offset: int, max_offset: int | None) -> int:
    """Return the upper bound of a read from `offset`. Raises `OffsetOutOfRange`."""
    end = log.log_end_offset
    if not log.log_start_offset <= offset <= end:
        raise OffsetOutOfRange(offset, log.log_start_offset, end)
    if log.remote is None and offset < log.bases[0]:
        raise RemoteUnavailable(f"{log.directory} has no records below {log.bases[0]} on its disk")
    return end if max_offset is None or max_offset > end else max_offset


def _locate(log: LogState, offset: int, bound: int) -> tuple[Segment, int] | None:
    """Return the segment and position of the batch with `offset`, None at or above `bound`."""
    if offset >= bound:
        return None
    # It stays: all followers of a partition, and most consumers, read from the same offsets.
    hint = log.read_ends.get(offset)
    segments = log.segments
    index = bisect_right(log.bases, offset) - 1
    while index < len(segments):
        segment = segments[index]
        if hint is not None and hint[0] is segment:
            position: int | None = hint[1]
        else:
            batch_entry = segment.find(offset)
            position = None if batch_entry is None else batch_entry[0]
        if position is not None and position < segment.size:
            return segment, position
        index += 1
    return None


def _read_at(
    log: LogState,
    segment: Segment,
    position: int,
    offset: int,
    max_bytes: int,
    bound: int,
    min_one: bool,
) -> ReadResult:
    data: bytes | memoryview = segment.read(position, max(max_bytes, 0))
    stop = position + len(data)
    # Search for the last whole batch from a batch that the index has as whole.
    start = segment.offset_index.find_batch_before(stop)
    if bound < log.log_end_offset:
        start = min(start, segment.offset_index.find_position(bound - 1))
    next_offset, last = _find_whole_end(data, max(0, start - position), bound)
    if next_offset == 0:
        header = read_header(segment.read(position, _HEAD_BYTES))
        if not min_one or header.next_offset > bound:
            return ReadResult(b"", offset)
        data = segment.read(position, header.size)
        next_offset, last = header.next_offset, header.size
    if last < len(data):
        # A copy costs 60 µs per MB. A view of a small part would keep a large buffer alive.
        data = memoryview(data)[:last] if last > len(data) // 2 else data[:last]
    _remember(log, next_offset, segment, position + last)
    return ReadResult(data, next_offset)


def _remember(log: LogState, offset: int, segment: Segment, position: int) -> None:
    hints = log.read_ends
    hints[offset] = (segment, position)
    if len(hints) > _HINTS_MAX:
        del hints[next(iter(hints))]


def _find_whole_end(data: Buffer, position: int, bound: int) -> tuple[int, int]:
    """Return (next offset, end position) of the whole batches in `data` from `position` on that lie
    below `bound`. A next offset of 0 means that there are none."""
    next_offset, size = 0, len(data)
    while size - position >= HEADER_SIZE:
        behind, end = read_place(data, position)
        if end > size or behind > bound:
            break
        next_offset, position = behind, end
    return next_offset, position
