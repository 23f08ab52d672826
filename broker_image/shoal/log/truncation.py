"""Cutting a log's end off, as a follower does whose leader has other records.

Positions, and syncs that are under way, mean nothing after it. The recovery point moves back: sync
and checkpoint it before new batches are appended, or a crash may bring back what was cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log import producer_recovery, rolling
from shoal.log.segment import Segment

if TYPE_CHECKING:
    from shoal.log.state import LogState


def from_offset(log: LogState, offset: int) -> None:
    """Cut all from `offset` on. Raises `OSError`."""
    if offset >= log.log_end_offset:
        # Who led for a moment has noted an epoch that begins here and has no record.
        log.epochs.truncate_from_end(log.log_end_offset)
        return
    if offset < log.log_start_offset:
        fully(log, offset)
        return
    _void(log)
    while len(log.segments) > 1 and log.segments[-1].base_offset >= offset:
        _drop(log, log.segments.pop())
        log.bases.pop()
    log.active.truncate(offset)
    log.log_end_offset = offset
    log.recovery_point = min(log.recovery_point, offset)
    log.cleaned_to = min(log.cleaned_to, offset)
    log.log_start_offset = min(log.log_start_offset, offset)
    log.epochs.truncate_from_end(offset)
    producer_recovery.rebuild(log, log.active.created_ms)


def fully(log: LogState, offset: int) -> None:
    """Drop all there is; the log goes on at `offset`. Raises `OSError`."""
    _void(log)
    now_ms = log.active.created_ms
    while log.segments:
        _drop(log, log.segments.pop())
    log.bases.clear()
    log.snapshots.drop_past(-1)
    log.producers.clear()
    log.epochs.clear()
    fresh = rolling.fresh_segment(log.storage, log.directory, log.config, offset, now_ms)
    log.segments.append(fresh)
    log.bases.append(offset)
    log.log_start_offset = log.log_end_offset = offset
    log.recovery_point = log.cleaned_to = offset
    log.unsynced_since_ms = None


def _void(log: LogState) -> None:
    log.generation += 1
    log.forget_positions()


def _drop(log: LogState, segment: Segment) -> None:
    """Remove a segment that no reader may see again, at once."""
    segment.remove()
    segment.release()
    if segment.base_offset:
        log.snapshots.drop(segment.base_offset)
