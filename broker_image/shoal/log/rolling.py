"""Decides when to roll the active segment: by size, by full indexes, and by age."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from shoal.log.segment import Segment

if TYPE_CHECKING:
    from shoal.log.config import LogConfig
    from shoal.log.storage import Storage


def create_segment(
    storage: Storage, directory: str, config: LogConfig, base_offset: int, now_ms: int
) -> Segment:
    """Create an empty segment, with reserved disk space if `preallocate` is set."""
    segment = Segment(storage, directory, base_offset, now_ms=now_ms, fresh=True)
    if config.preallocate:
        segment.file.reserve(config.segment_bytes)
        segment.preallocated = True
    return segment


def should_roll_for(
    config: LogConfig,
    active: Segment,
    *,
    size: int,
    last_offset: int,
    max_timestamp: int,
    now_ms: int,
) -> bool:
    """Whether a batch must go to a new segment. The active segment is not empty.

    segment.ms counts by the timestamps of records, from the first batch of the segment on, as in
    Kafka. Without timestamps it counts by the broker's clock.
    """
    if active.size + size > config.segment_bytes or not active.can_hold_offset(last_offset):
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
    return waited > (limit - _compute_jitter(config, active) if config.segment_jitter_ms else limit)


def should_roll_by_age(config: LogConfig, active: Segment, now_ms: int) -> bool:
    """Whether the active segment is older than segment.ms by the broker's clock."""
    waited = now_ms - active.created_ms
    return active.size > 0 and waited > config.roll_ms - _compute_jitter(config, active)


def _compute_jitter(config: LogConfig, segment: Segment) -> int:
    """Return a part of segment.jitter.ms that differs between logs and between segments, but is
    the same in every run."""
    limit = min(config.segment_jitter_ms, config.roll_ms)
    if limit <= 0:
        return 0
    seed = sum(map(ord, segment.directory)) * 2_654_435_761 + segment.base_offset * 40_503
    return seed % limit
