"""Finds records by timestamp, through the time indexes (ListOffsets)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.record.batch import LOG_APPEND_TIME_BIT, BatchHeader, CorruptBatch
from shoal.record.records import read_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.log.state import LogState


class TimestampOffset(NamedTuple):
    """A record that ListOffsets names: its timestamp in milliseconds, offset and leader epoch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


def since(log: LogState, timestamp_ms: int, max_offset: int | None) -> TimestampOffset | None:
    """Return the first record below `max_offset` whose timestamp is at least `timestamp_ms`."""
    bound = log.log_end_offset if max_offset is None else max_offset
    for segment in log.segments:
        if segment.max_timestamp()[0] < timestamp_ms:
            continue
        start = segment.offset_index.position_of(segment.time_index.offset_of(timestamp_ms))
        for position, header in segment.heads(start):
            if header.base_offset >= bound:
                return None
            if header.max_timestamp < timestamp_ms or header.next_offset <= log.log_start_offset:
                continue
            found = within(
                header,
                lambda: segment.read(position, header.size),  # noqa: B023
                timestamp_ms,
                log.log_start_offset,
            )
            if found is not None:
                return found if found.offset < bound else None
    return None


def within(
    header: BatchHeader, read: Callable[[], bytes], timestamp_ms: int, start: int
) -> TimestampOffset | None:
    """Return the first record at or above `start` in one batch whose timestamp is at least
    `timestamp_ms`, or None. `read` returns the batch."""
    whole = TimestampOffset(
        header.max_timestamp, max(header.base_offset, start), header.leader_epoch
    )
    if header.attributes & LOG_APPEND_TIME_BIT:
        return whole
    try:
        for record in read_records(read()):
            if record.timestamp_ms >= timestamp_ms and record.offset >= start:
                return TimestampOffset(record.timestamp_ms, record.offset, header.leader_epoch)
    except CorruptBatch:
        # The records are malformed under a correct CRC. The batch counts as a whole.
        return whole
    return None
