"""Truncates a log, as a follower does whose leader has other records.

Truncation voids file positions and running syncs. The recovery point moves back. Sync and
checkpoint it before new batches are appended, or a crash can restore truncated records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log import producer_recovery, rolling
from shoal.log.producers import ProducerStateManager

if TYPE_CHECKING:
    from shoal.log.remote import RebuiltState
    from shoal.log.segment import Segment
    from shoal.log.state import LogState


def truncate_to(log: LogState, offset: int) -> None:
    """Remove all records from `offset` on. Raises `OSError`."""
    if offset >= log.log_end_offset:
        # A short leadership may have noted an epoch that starts here and has no records.
        log.epochs.truncate_from_end(log.log_end_offset)
        return
    if offset < log.local_start_offset:
        # Epochs and producer states below the local log are in the object store, with its records.
        # From the log start on, the replica gets them from there again (`rebuild`).
        tiered = log.config.remote_storage_enable
        truncate_fully(log, min(log.log_start_offset, offset) if tiered else offset)
        return
    _invalidate(log)
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


def truncate_fully(log: LogState, offset: int) -> None:
    """Remove all records and continue at `offset`. Raises `OSError`."""
    _invalidate(log)
    now_ms = log.active.created_ms
    while log.segments:
        _drop(log, log.segments.pop())
    log.bases.clear()
    log.snapshots.drop_past(-1)
    log.producers.clear()
    log.epochs.clear()
    fresh = rolling.create_segment(log.storage, log.directory, log.config, offset, now_ms)
    log.segments.append(fresh)
    log.bases.append(offset)
    log.log_start_offset = log.log_end_offset = offset
    log.recovery_point = log.cleaned_to = offset
    log.unsynced_since_ms = None


def rebuild(log: LogState, state: RebuiltState, log_start_offset: int) -> None:
    """Remove all records and continue behind those in the object store, with what the store knows
    of them. Raises `OSError`, `CorruptSnapshot`.

    Until the last step, the log is an empty one at its start. After a crash the replica begins
    again there.
    """
    producers = ProducerStateManager()
    now_ms = log.active.created_ms
    producers.load(state.producer_snapshot, now_ms)
    start, end = min(log_start_offset, state.next_offset), state.next_offset
    truncate_fully(log, start)
    log.snapshots.restore(end, state.producer_snapshot)
    log.epochs.restore(state.leader_epochs)
    if end > start:
        fresh = rolling.create_segment(log.storage, log.directory, log.config, end, now_ms)
        _drop(log, log.segments.pop())
        log.segments.append(fresh)
        log.bases[:] = [end]
    log.producers = producers
    log.log_end_offset = log.recovery_point = log.cleaned_to = end
    log.epochs.truncate_from_start(start)


def _invalidate(log: LogState) -> None:
    log.generation += 1
    log.forget_positions()


def _drop(log: LogState, segment: Segment) -> None:
    """Remove a segment at once, so that no reader sees it again."""
    segment.remove()
    if segment.base_offset:
        log.snapshots.drop(segment.base_offset)
