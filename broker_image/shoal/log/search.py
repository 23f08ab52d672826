"""Finds records by timestamp, through the time indexes (ListOffsets).

A search goes from batch to batch: `step` finds the next one that may have the record by its header,
and `find_in_batch` looks into it. A step takes some milliseconds. A few kilobytes of a batch may
expand to 128 MB, so `find_in_batch` needs nothing but the bytes of the batch and may run in another
thread.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shoal.record import batch_validation
from shoal.record.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    Buffer,
    CorruptBatch,
    read_header,
)
from shoal.record.compression import EXPANDED_BYTES_MAX, OutputFull, expand
from shoal.record.records import iter_spans, wrap_int64

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.log.state import LogState

#: Headers that one step reads: some milliseconds.
HEADERS_MAX = 5_000


class TimestampOffset(NamedTuple):
    """A record that ListOffsets names: its timestamp in milliseconds, offset and leader epoch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class SearchStep(NamedTuple):
    """How far a search has come. `next_offset` is where it continues, None at its end. `batch` is
    the whole batch that may have the record, b"" if the step found none."""

    next_offset: int | None
    batch: bytes = b""


def step(log: LogState, timestamp_ms: int, offset: int, max_offset: int | None) -> SearchStep:
    """Find the first batch with records at or above `offset`, below `max_offset`, of which one has
    reached `timestamp_ms`."""
    bound = log.log_end_offset if max_offset is None else max_offset
    start = max(offset, log.log_start_offset)
    headers_left = HEADERS_MAX
    for segment in log.segments[max(bisect_right(log.bases, start) - 1, 0) :]:
        if segment.find_max_timestamp()[0] < timestamp_ms:
            continue
        begin = max(segment.time_index.find_offset(timestamp_ms), start)
        for position, header in segment.read_headers(segment.offset_index.find_position(begin)):
            if header.base_offset >= bound:
                return SearchStep(None)
            if header.next_offset <= start:
                continue  # No more of them than between two entries of the index.
            if not headers_left:
                return SearchStep(header.base_offset)
            headers_left -= 1
            if header.max_timestamp >= timestamp_ms:
                return SearchStep(header.next_offset, segment.read(position, header.size))
    return SearchStep(None)


def find_in_batch(
    batch: Buffer, timestamp_ms: int, start: int, *, bytes_max: int = EXPANDED_BYTES_MAX
) -> TimestampOffset | None:
    """Return the first record at or above `start` in one batch whose timestamp is at least
    `timestamp_ms`, or None.

    Raises `OutputFull` if the records expand to more than `bytes_max`. That of the default counts
    as malformed instead: the batch counts as a whole.
    """
    header = read_header(batch)
    batch_result = TimestampOffset(
        header.max_timestamp, max(header.base_offset, start), header.leader_epoch
    )
    if header.attributes & LOG_APPEND_TIME_BIT:
        return batch_result
    records = memoryview(batch)[HEADER_SIZE : header.size]
    try:
        with expand(header.compression, records, bytes_max) as body:
            match = _find_first(body, header, timestamp_ms, max(start - header.base_offset, 0))
    except CorruptBatch as error:
        if isinstance(error, OutputFull) and bytes_max < EXPANDED_BYTES_MAX:
            raise
        return batch_result  # The records are malformed under a correct CRC.
    if match is None:
        return None
    return TimestampOffset(match[0], header.base_offset + match[1], header.leader_epoch)


def _find_first(
    body: memoryview, header: BatchHeader, timestamp_ms: int, delta_min: int
) -> tuple[int, int] | None:
    """Return timestamp and offset delta of the first record that has reached `timestamp_ms`, of
    those with an offset delta from `delta_min` on. Raises `CorruptBatch`."""
    if header.record_count <= 0:
        return _find_first_in_python(body, header, timestamp_ms, delta_min)
    # It flags the records that have reached the timestamp.
    walk = partial(
        batch_validation.validate_records,
        body,
        base_timestamp=header.base_timestamp,
        newest=timestamp_ms - 1,
    )
    validation = walk(header.record_count, flags_max=1)
    if delta_min == 0 and validation.flags:
        delta, timestamp = validation.flags[0]
        assert timestamp is not None
        return timestamp, delta
    if validation.fault:
        return _find_first_in_python(body, header, timestamp_ms, delta_min)
    if not validation.flagged:
        return None
    return _bisect_first(body, header, walk, delta_min)


def _bisect_first(
    body: memoryview,
    header: BatchHeader,
    walk: Callable[[int], batch_validation.BatchValidation],
    delta_min: int,
) -> tuple[int, int] | None:
    """Do the work of `_find_first` in a batch whose log begins in the middle of it, by
    bisection."""
    low, high = min(delta_min, header.record_count), header.record_count
    before = walk(low).flagged
    if walk(high).flagged == before:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if walk(middle).flagged == before:
            low = middle
        else:
            high = middle
    with body[walk(low).place :] as tail:
        span = next(iter_spans(tail, 1))
    return wrap_int64(header.base_timestamp + span.timestamp_delta), span.offset_delta


def _find_first_in_python(
    body: memoryview, header: BatchHeader, timestamp_ms: int, delta_min: int
) -> tuple[int, int] | None:
    """Do the work of `_find_first` in a batch that compaction has left holes in, or a damaged
    one."""
    for span in iter_spans(body, header.record_count):
        timestamp = wrap_int64(header.base_timestamp + span.timestamp_delta)
        if timestamp >= timestamp_ms and span.offset_delta >= delta_min:
            return timestamp, span.offset_delta
    return None
