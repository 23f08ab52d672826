"""Whole batches that are found and not read: a place in a segment's file, for `sendfile`.

A slice stays good while it is held, also when its segment is deleted meanwhile; a file that is cut
under it, as a replica's may be that no longer leads, ends early, which its sender has to notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.log.storage import File

if TYPE_CHECKING:
    from shoal.log.segment import Segment

#: Below this a read and one write cost less than the system calls around a `sendfile`.
SLICE_SIZE_MIN = 64 * 1024


class FileSlice:
    """`size` bytes of a file from `at` on."""

    __slots__ = ("at", "file", "size")

    def __init__(self, file: File, at: int, size: int) -> None:
        self.file = file
        self.at = at
        self.size = size

    def __len__(self) -> int:
        return self.size


class Slice(NamedTuple):
    """Whole batches, read or not, and the offset behind the last of them."""

    data: bytes | memoryview | FileSlice
    next_offset: int


def find(
    segment: Segment, position: int, max_bytes: int, *, bound: int, log_end_offset: int
) -> tuple[FileSlice, int] | None:
    """The whole batches within `max_bytes` from the one at `position` on, none of which ends past
    `bound`, and the offset behind them; None where they are too little to be worth it."""
    stop = min(position + max_bytes, segment.size)
    if stop - position < SLICE_SIZE_MIN or segment.file.fileno() < 0:
        return None
    # Batches are walked from one on that the index knows to be whole, by their headers.
    start = segment.offset_index.whole_before(stop)
    if bound < log_end_offset:
        start = min(start, segment.offset_index.position_of(bound - 1))
    end = next_offset = 0
    for at, header in segment.heads(max(start, position)):
        if at + header.size > stop or header.next_offset > bound:
            break
        end, next_offset = at + header.size, header.next_offset
    if end - position < SLICE_SIZE_MIN:
        return None
    return FileSlice(segment.file, position, end - position), next_offset
