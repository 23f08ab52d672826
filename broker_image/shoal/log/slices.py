"""Ranges of a segment's file that hold whole batches, for `sendfile`.

A slice stays valid while it is referenced, also if its segment is deleted. The file may be
truncated meanwhile, when the replica no longer leads. It then ends early, and the sender has to
detect that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shoal.log.segment import Segment
    from shoal.log.storage import File

#: Smallest slice in bytes: below it, a read and a write cost less than `sendfile`.
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


class LogSlice(NamedTuple):
    """Whole batches, as bytes or as a slice, and the offset behind the last of them."""

    data: bytes | memoryview | FileSlice
    next_offset: int


def find_file_slice(
    segment: Segment, position: int, max_bytes: int, *, bound: int, log_end_offset: int
) -> tuple[FileSlice, int] | None:
    """Find the whole batches within `max_bytes` from `position` on that lie below `bound`.

    Return their slice and the offset behind them; None if they are smaller than
    `SLICE_SIZE_MIN`.
    """
    stop = min(position + max_bytes, segment.size)
    if stop - position < SLICE_SIZE_MIN or segment.file.fileno() < 0:
        return None
    # Follow the headers from a batch that the index has as whole.
    start = segment.offset_index.find_batch_before(stop)
    if bound < log_end_offset:
        start = min(start, segment.offset_index.find_position(bound - 1))
    end = next_offset = 0
    for batch_position, header in segment.read_headers(max(start, position)):
        if batch_position + header.size > stop or header.next_offset > bound:
            break
        end, next_offset = batch_position + header.size, header.next_offset
    if end - position < SLICE_SIZE_MIN:
        return None
    return FileSlice(segment.file, position, end - position), next_offset
