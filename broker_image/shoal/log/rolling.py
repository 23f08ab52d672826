"""When the active segment is to be closed: by size, by full indexes, and by age."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from shoal.log.segment import Segment

if TYPE_CHECKING:
    from shoal.log.log import Log


def fresh_segment(log: Log, base_offset: int, now_ms: int) -> Segment:
    """An empty segment, with its space on disk reserved if the log is to preallocate."""
    found = Segment(log.storage, log.directory, base_offset, now_ms=now_ms, fresh=True)
    if log.config.preallocate:
        found.file.reserve(log.config.segment_bytes)
        found.preallocated = True
    return found


def due_for(log: Log, *, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
    """Whether a batch must go to a new segment; the active one is not empty.

    segment.ms counts by the records' own time, from the segment's first batch on, as Kafka has it;
    by the broker's clock where records have no time.
    """
    config, active = log.config, log.segments[-1]
    if active.size + size > config.segment_bytes or not active.fits(last_offset):
        return True
    if len(active.offset_index) >= config.segment_index_bytes // OFFSET_ENTRY_SIZE - 1:
        return True
    if len(active.time_index) >= config.segment_index_bytes // TIME_ENTRY_SIZE - 1:
        return True
    if active.first_timestamp is not None and active.first_timestamp >= 0:
        waited = max_timestamp - active.first_timestamp
    else:
        waited = now_ms - active.created_ms
    limit = config.roll_ms
    return waited > (limit - _jitter(log, active) if config.segment_jitter_ms else limit)


def due_by_age(log: Log, now_ms: int) -> bool:
    """Whether an active segment, idle or not, is old enough by the broker's clock."""
    active = log.segments[-1]
    waited = now_ms - active.created_ms
    return active.size > 0 and waited > log.config.roll_ms - _jitter(log, active)


def _jitter(log: Log, segment: Segment) -> int:
    """A part of segment.jitter.ms that differs from log to log and segment to segment, and is
    the same in every run."""
    limit = min(log.config.segment_jitter_ms, log.config.roll_ms)
    if limit <= 0:
        return 0
    seed = sum(map(ord, log.directory)) * 2_654_435_761 + segment.base_offset * 40_503
    return seed % limit
