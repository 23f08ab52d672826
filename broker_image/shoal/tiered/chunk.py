"""A chunk of a remote segment that was downloaded: a run of whole batches with a sparse index."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.search import within
from shoal.record.batch import HEADER_SIZE, headers, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.log.search import TimestampOffset
    from shoal.record.batch import BatchHeader, Buffer

#: Bytes between two entries of the index.
INDEX_INTERVAL_BYTES = 16 << 10
#: Bytes that a search reads at a time.
_STEP_BYTES = 64 << 10


class Extent(NamedTuple):
    """Whole batches of a chunk: their position, their size in bytes, the offset behind them."""

    position: int
    size: int
    next_offset: int


class ChunkIndex:
    """Finds batches in a chunk of `size` bytes, whose bytes are read by `read(at, size)`."""

    __slots__ = ("_lasts", "_positions", "size")

    def __init__(self, data: Buffer) -> None:
        """Raises `CorruptBatch`."""
        self.size = len(data)
        #: The last offset of a batch about every interval, and the position of that batch.
        self._lasts: list[int] = []
        self._positions: list[int] = []
        due = 0
        for at, header in headers(data):
            if at >= due or at + header.size == self.size:
                self._lasts.append(header.last_offset)
                self._positions.append(at)
                due = at + INDEX_INTERVAL_BYTES

    @property
    def last_offset(self) -> int:
        return self._lasts[-1]

    def find(self, read: Callable[[int, int], bytes], offset: int) -> int | None:
        """Return the position of the first batch that ends at or above `offset`, or None."""
        at = bisect_left(self._lasts, offset)
        if at == len(self._lasts):
            return None
        # The batch lies behind the previous entry, which ends below the offset.
        position = self._positions[at - 1] if at else 0
        for place, header in self._heads(read, position):
            if header.last_offset >= offset:
                return place
        return None

    def extent(
        self,
        read: Callable[[int, int], bytes],
        position: int,
        *,
        max_bytes: int,
        bound: int,
        min_one: bool,
    ) -> Extent:
        """Return the whole batches from a batch on that lie below `bound` and within `max_bytes`.
        With `min_one` the first one counts whatever its size."""
        end, next_offset = position, -1
        for place, header in self._heads(read, position):
            fits = place + header.size - position <= max_bytes or (min_one and place == position)
            if not fits or header.next_offset > bound:
                break
            end, next_offset = place + header.size, header.next_offset
        return Extent(position, end - position, next_offset)

    def since(
        self, read: Callable[[int, int], bytes], timestamp_ms: int, start: int
    ) -> TimestampOffset | None:
        """Return the first record from offset `start` on whose timestamp is at least
        `timestamp_ms`. It reads all headers and may expand a batch, so it runs in a thread."""
        for place, header in self._heads(read, 0):
            if header.max_timestamp < timestamp_ms or header.next_offset <= start:
                continue
            found = within(read(place, header.size), timestamp_ms, start)
            if found is not None:
                return found
        return None

    def _heads(
        self, read: Callable[[int, int], bytes], position: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        while position + HEADER_SIZE <= self.size:
            data = read(position, min(_STEP_BYTES, self.size - position))
            at = 0
            while at + HEADER_SIZE <= len(data):
                header = read_header(data, at)
                yield position + at, header
                at += header.size
            position += at
