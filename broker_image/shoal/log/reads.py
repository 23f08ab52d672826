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
from shoal.record.batch import OVERHEAD, Buffer, headers, read_header

if TYPE_CHECKING:
    from shoal.log.segment import Segment
    from shoal.log.state import LogState

#: Number of remembered read ends.
_HINTS_MAX = 64
#: Bytes to read for the header of a batch.
_HEAD_BYTES = 64


class Read(NamedTuple):
    """Whole batches, the first of which contains the requested offset; b"" if there are none yet.

    `next_offset` is the offset behind the last batch, where the next read continues.
    """

    data: bytes | memoryview
    next_offset: int


def read(log: LogState, offset: int, max_bytes: int, max_offset: int | None, min_one: bool) -> Read:
    """Read whole batches as bytes (`Log.read`)."""
    bound = _bound(log, offset, max_offset)
    if log.remote is not None and offset < log.bases[0]:
        data, next_offset = log.remote.read(offset, max_bytes, bound, min_one)
        if isinstance(data, slices.FileSlice):
            data = data.file.read(data.at, data.size)
        return Read(data, next_offset)
    place = _place(log, offset, bound)
    if place is None:
        return Read(b"", offset)
    return _read_at(log, *place, offset, max_bytes, bound, min_one)


def read_slice(
    log: LogState, offset: int, max_bytes: int, max_offset: int | None, min_one: bool
) -> slices.Slice:
    """Find whole batches as a range of a file, or read a small result (`Log.slice`)."""
    bound = _bound(log, offset, max_offset)
    if log.remote is not None and offset < log.bases[0]:
        return log.remote.read(offset, max_bytes, bound, min_one)
    place = _place(log, offset, bound)
    if place is None:
        return slices.Slice(b"", offset)
    segment, position = place
    found = slices.find(
        segment, position, max_bytes, bound=bound, log_end_offset=log.log_end_offset
    )
    if found is None:
        return slices.Slice(*_read_at(log, segment, position, offset, max_bytes, bound, min_one))
    _remember(log, found[1], segment, position + len(found[0]))
    return slices.Slice(*found)


def _bound(log: LogState, offset: int, max_offset: int | None) -> int:
    """Return the upper bound of a read from `offset`. Raises `OffsetOutOfRange`."""
    end = log.log_end_offset
    if not log.log_start_offset <= offset <= end:
        raise OffsetOutOfRange(offset, log.log_start_offset, end)
    if log.remote is None and offset < log.bases[0]:
        raise RemoteUnavailable(f"{log.directory} has no records below {log.bases[0]} on its disk")
    return end if max_offset is None or max_offset > end else max_offset


def _place(log: LogState, offset: int, bound: int) -> tuple[Segment, int] | None:
    """Return the segment and position of the batch with `offset`, None at or above `bound`."""
    if offset >= bound:
        return None
    hint = log.read_ends.pop(offset, None)
    segments = log.segments
    at = bisect_right(log.bases, offset) - 1
    while at < len(segments):
        segment = segments[at]
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
    log: LogState,
    segment: Segment,
    position: int,
    offset: int,
    max_bytes: int,
    bound: int,
    min_one: bool,
) -> Read:
    data: bytes | memoryview = segment.read(position, max(max_bytes, 0))
    stop = position + len(data)
    # Search for the last whole batch from a batch that the index has as whole.
    start = segment.offset_index.whole_before(stop)
    if bound < log.log_end_offset:
        start = min(start, segment.offset_index.position_of(bound - 1))
    next_offset, last = _whole(data, max(0, start - position), bound)
    if next_offset == 0:
        header = read_header(segment.read(position, _HEAD_BYTES))
        if not min_one or header.next_offset > bound:
            return Read(b"", offset)
        data = segment.read(position, header.size)
        next_offset, last = header.next_offset, header.size
    if last < len(data):
        # A copy costs 60 µs per MB. A view of a small part would keep a large buffer alive.
        data = memoryview(data)[:last] if last > len(data) // 2 else data[:last]
    _remember(log, next_offset, segment, position + last)
    return Read(data, next_offset)


def _remember(log: LogState, offset: int, segment: Segment, position: int) -> None:
    hints = log.read_ends
    hints[offset] = (segment, position)
    if len(hints) > _HINTS_MAX:
        del hints[next(iter(hints))]


def _whole(data: Buffer, at: int, bound: int) -> tuple[int, int]:
    """Return (next offset, end position) of the whole batches in `data` from `at` on that lie
    below `bound`. A next offset of 0 means that there are none."""
    next_offset = 0
    for start, header in headers(data, at):
        if header.next_offset > bound:
            break
        next_offset = header.next_offset
        at = start + header.batch_length + OVERHEAD
    return next_offset, at
