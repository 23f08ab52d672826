"""What a cleaning of remote segments does: which segments serve reads, which are due, and which
become one.

A cleaning reads the segments that readers use, one for each offset. Another finished segment, which
serves no offset, was left by another leader, or by a cleaning that a crash ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.log.indexes import RELATIVE_OFFSET_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.tiered.remote_log import RemoteLog, RemoteSegment


class ServedSegments(NamedTuple):
    """The finished segments from an offset on: those that serve it and the following ones, in
    order, and those in the same range that serve none."""

    chain: list[RemoteSegment]
    unused: list[RemoteSegment]

    def compute_dirty_ratio(self, cleaned_to: int) -> float:
        """Return the part of the bytes that lies in segments from `cleaned_to` on."""
        total = sum(segment.log_size for segment in self.chain)
        dirty = sum(s.log_size for s in self.chain if s.end_offset >= cleaned_to)
        return dirty / total if total else 0.0


def find_served_segments(
    remote: RemoteLog, start: int, epoch_of: Callable[[int], int]
) -> ServedSegments:
    """Return the segments that serve reads from `start` on. `epoch_of` is that of the log."""
    chain: list[RemoteSegment] = []
    offset = start
    while (next_segment := remote.find(offset, epoch_of(offset))) is not None:
        chain.append(next_segment)
        offset = next_segment.end_offset + 1
    used = {segment.segment_id for segment in chain}
    unused = [s for s in remote if start <= s.end_offset < offset and s.segment_id not in used]
    return ServedSegments(chain, unused)


def group_segments(
    chain: Sequence[RemoteSegment], end: int, segment_bytes: int
) -> list[list[RemoteSegment]]:
    """Return the segments that begin below `end`, in groups that each fit into one segment."""
    out: list[list[RemoteSegment]] = []
    size = 0
    for segment in chain:
        if segment.base_offset >= end:
            break
        fits = (
            out
            and size + segment.log_size <= segment_bytes
            and segment.end_offset - out[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if not fits:
            out.append([])
            size = 0
        out[-1].append(segment)
        size += segment.log_size
    return out
