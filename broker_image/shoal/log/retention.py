"""Removes old segments: by age, by size, and below the log start offset.

Only whole segments below the high watermark are removed, oldest first. Their files are renamed to
`.deleted` at once, so that a restart ignores them. Another thread unlinks them later, because that
is slow for large files.

With remote.storage.enable, local.retention.* removes segments that were copied to the object store,
and the log still starts where it did. `tiered.retention` decides where it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.segment import DELETED, DeletedSegment

if TYPE_CHECKING:
    from shoal.log.state import LogState


def tick(log: LogState, now_ms: int, high_watermark: int) -> list[DeletedSegment]:
    """Remove the segments that the configuration no longer keeps. Return them, and those that
    compaction has replaced. Raises `OSError`."""
    removed = log.garbage
    log.garbage = []
    if log.compacting or log.offline:
        return removed
    config = log.config
    if config.remote_storage_enable:
        due = _count_copied_and_due(log, now_ms, high_watermark)
        removed += _remove_oldest(log, due, "local retention")
    elif config.delete and config.retention_ms >= 0:
        due = _count_older_than(log, now_ms - config.retention_ms, high_watermark)
        removed += _delete_oldest(log, due, "retention.ms", now_ms)
    if config.delete and config.retention_bytes >= 0 and not config.remote_storage_enable:
        due = _count_past_size(log, config.retention_bytes, high_watermark)
        removed += _delete_oldest(log, due, "retention.bytes", now_ms)
    removed += _delete_oldest(
        log, _count_below_start(log, high_watermark), "log start offset", now_ms
    )
    for segment in log.segments[:-1]:
        segment.unload()
    return removed


def _find_end_offset(log: LogState, index: int) -> int:
    return log.bases[index + 1] if index + 1 < len(log.bases) else log.log_end_offset


def _count_older_than(log: LogState, earliest_ms: int, high_watermark: int) -> int:
    count = 0
    for index, segment in enumerate(log.segments):
        if (
            _find_end_offset(log, index) > high_watermark
            or segment.find_age_timestamp() >= earliest_ms
        ):
            break
        if index + 1 == len(log.segments) and segment.size == 0:
            break
        count += 1
    return count


def _count_past_size(log: LogState, limit: int, high_watermark: int) -> int:
    excess, count = log.size_bytes - limit, 0
    for index, segment in enumerate(log.segments[:-1]):
        if excess < segment.size or _find_end_offset(log, index) > high_watermark:
            break
        excess -= segment.size
        count += 1
    return count


def _count_below_start(log: LogState, high_watermark: int) -> int:
    bound = min(log.log_start_offset, high_watermark)
    return sum(end <= bound for end in log.bases[1:])


def _count_copied_and_due(log: LogState, now_ms: int, high_watermark: int) -> int:
    """Return how many closed segments are in the object store and beyond local.retention.*."""
    copied_to = log.log_start_offset if log.remote is None else log.remote.copied_end_offset
    bound = min(copied_to, high_watermark)
    copied = sum(end <= bound for end in log.bases[1:])
    age_ms = log.config.effective_local_retention_ms
    size_max = log.config.effective_local_retention_bytes
    due = 0
    if age_ms >= 0:
        due = _count_older_than(log, now_ms - age_ms, high_watermark)
    if size_max >= 0:
        due = max(due, _count_past_size(log, size_max, high_watermark))
    return min(copied, due)


def _delete_oldest(log: LogState, count: int, reason: str, now_ms: int) -> list[DeletedSegment]:
    if not count:
        return []
    if count == len(log.segments):
        log.roll(log.log_end_offset, now_ms)
    removed = _remove_oldest(log, count, reason)
    log.advance_log_start(log.bases[0])
    return removed


def _remove_oldest(log: LogState, count: int, reason: str) -> list[DeletedSegment]:
    """Remove that many segments, of which none is the active one, from the disk."""
    if not count:
        return []
    removed = []
    for _ in range(count):
        segment = log.segments[0]
        segment.rename(DELETED)
        del log.segments[0], log.bases[0]
        log.snapshots.drop(segment.base_offset)
        removed.append(DeletedSegment(segment, reason))
    log.forget_positions()
    return removed
