"""A chunk of a remote segment that was downloaded: a run of whole batches with a sparse index."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.search import find_in_batch
from shoal.record.batch import HEADER_SIZE, iter_headers, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.log.search import TimestampOffset
    from shoal.record.batch import BatchHeader, Buffer

#: Bytes between two entries of the index.
INDEX_INTERVAL_BYTES = 16 << 10
#: Bytes that a search reads at a time.
_STEP_BYTES = 64 << 10


class BatchRange(NamedTuple):
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
        for position, header in iter_headers(data):
            if position >= due or position + header.size == self.size:
                self._lasts.append(header.last_offset)
                self._positions.append(position)
                due = position + INDEX_INTERVAL_BYTES

    @property
    def last_offset(self) -> int:
        return self._lasts[-1]

    def find(self, read: Callable[[int, int], bytes], offset: int) -> int | None:
        """Return the position of the first batch that ends at or above `offset`, or None."""
        index = bisect_left(self._lasts, offset)
        if index == len(self._lasts):
            return None
        # The batch lies behind the previous entry, which ends below the offset.
        position = self._positions[index - 1] if index else 0
        for place, header in self._read_headers(read, position):
            if header.last_offset >= offset:
                return place
        return None

    def find_range(
        self,
        read: Callable[[int, int], bytes],
        position: int,
        *,
        max_bytes: int,
        bound: int,
        min_one: bool,
    ) -> BatchRange:
        """Return the whole batches from a batch on that lie below `bound` and within `max_bytes`.
        With `min_one` the first one counts whatever its size."""
        end, next_offset = position, -1
        for place, header in self._read_headers(read, position):
            fits = place + header.size - position <= max_bytes or (min_one and place == position)
            if not fits or header.next_offset > bound:
                break
            end, next_offset = place + header.size, header.next_offset
        return BatchRange(position, end - position, next_offset)

    def find_first_record_since(
        self, read: Callable[[int, int], bytes], timestamp_ms: int, start: int
    ) -> TimestampOffset | None:
        """Return the first record from offset `start` on whose timestamp is at least
        `timestamp_ms`. It reads all headers and may expand a batch, so it runs in a thread."""
        for place, header in self._read_headers(read, 0):
            if header.max_timestamp < timestamp_ms or header.next_offset <= start:
                continue
            match = find_in_batch(read(place, header.size), timestamp_ms, start)
            if match is not None:
                return match
        return None

    def _read_headers(
        self, read: Callable[[int, int], bytes], position: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        while position + HEADER_SIZE <= self.size:
            data = read(position, min(_STEP_BYTES, self.size - position))
            data_position = 0
            while data_position + HEADER_SIZE <= len(data):
                header = read_header(data, data_position)
                yield position + data_position, header
                data_position += header.size
            position += data_position
