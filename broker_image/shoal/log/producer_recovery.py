"""The state of producers at a log's end, from the newest snapshot and the batches behind it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from shoal.record.batch import NO_PRODUCER_ID
from shoal.record.control import read_marker

if TYPE_CHECKING:
    from shoal.log.segment import Segment
    from shoal.log.state import LogState


def rebuild(log: LogState, now_ms: int, at_most: int | None = None) -> None:
    """Rebuild `log.producers` from the newest snapshot at or below `at_most`, and from the batches
    behind that snapshot. Raises `OSError`."""
    log.snapshots.drop_past(log.log_end_offset)
    log.producers.clear()
    snapshot_offset = log.snapshots.load(log.producers, now_ms, at_most)
    start = log.bases[0] if snapshot_offset is None else max(log.bases[0], snapshot_offset)
    for segment in log.segments[max(0, bisect_right(log.bases, start) - 1) :]:
        _replay(log, segment, start, now_ms)


def _replay(log: LogState, segment: Segment, start: int, now_ms: int) -> None:
    """Replay the producers' batches of a segment from `start` on."""
    if start >= log.log_end_offset:
        return
    indexed_offsets = {entry.last_offset for entry in segment.get_aborted_transactions()}
    for position, header in segment.read_headers(segment.offset_index.find_position(start)):
        if header.base_offset < start or header.producer_id == NO_PRODUCER_ID:
            continue
        if not header.is_control:
            log.producers.note(header, header.base_offset, now_ms)
            continue
        marker = read_marker(segment.read(position, header.size))
        if marker is not None:
            aborted = log.producers.note_marker(header, marker, header.base_offset, now_ms)
            if aborted is not None and aborted.last_offset not in indexed_offsets:
                segment.txn_index.extend([aborted])
