"""Finished offsets of a partition above its stable offset: immutable, in encoded form.

A group that commits records individually may have many ranges of finished offsets. They are kept as
*chunks* of at most `CHUNK_RANGES_MAX` ranges, each in encoded form: about two bytes for each range
and its gap. A change decodes only the chunks that it touches. The other chunks are shared with the
value before it, in memory and in the encoding.

`__consumer_offsets`, OffsetCommit, TxnOffsetCommit and OffsetFetch have the encoding: chunk after
chunk, ascending, without two that touch. A chunk is a header with first offset, last offset and
number of offsets (int64 each), number of ranges and size of the lengths in bytes (uint16 each). The
lengths follow as unsigned varints: a range, a gap, a range, and so on. A chunk starts and ends with
a range.

`offset_set.OffsetSet` is the mutable form with Python's integers, for clients.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: The most ranges of a chunk: a change decodes and encodes that many.
CHUNK_RANGES_MAX = 128
#: The ranges of a chunk after a larger one was divided, so that it has room for more.
_CHUNK_RANGES = 96
#: Chunks up to this size are combined with a neighbour that changes.
CHUNK_RANGES_SMALL = 32
OFFSET_MAX = 2**63 - 1
#: Of a chunk, before its lengths.
HEADER = struct.Struct(">qqqHH")
_CONTINUED = bytes(range(0x80, 0x100))
#: The most bytes of a range and the gap before it: two varints of 64 bits.
_RANGE_BYTES_MAX = 20
#: A range as its first and its last offset, both included.
Range = tuple[int, int]


class RangeChunk(NamedTuple):
    """Up to `CHUNK_RANGES_MAX` ranges in encoded form."""

    first: int
    last: int
    #: Number of offsets, and of ranges.
    offsets: int
    ranges: int
    lengths: bytes


_last = attrgetter("last")


def _find_problem(chunk: RangeChunk, previous: int) -> str | None:
    """Return what is wrong with a chunk of a client behind one that ends at `previous`."""
    if chunk.last < chunk.first:
        return "ends before it starts"
    if chunk.first < 0:
        return "starts below 0"
    if chunk.first <= previous + 1:
        return "overlaps or touches the one before it"
    if len(chunk.lengths) > _RANGE_BYTES_MAX * chunk.ranges:
        return "has more lengths than ranges"
    bounds = _decode_bounds(chunk)
    if len(set(bounds)) < len(bounds):
        return "has a range or a gap without offsets"
    offsets = sum(bounds[1::2]) - sum(bounds[::2])
    if (len(bounds), bounds[-1] - 1, offsets) != (2 * chunk.ranges, chunk.last, chunk.offsets):
        return "does not have the lengths that its header has"
    return None


def count_ranges(data: bytes, most: int) -> int:
    """Return how many ranges an encoding has, without decoding it; more than `most` ends the count.

    Encoders fill all chunks but the last. A chunk before another one counts as at least
    `CHUNK_RANGES_SMALL` ranges, so that small or empty ones do not make work.
    """
    at = count = owed = 0
    while at + HEADER.size <= len(data) and count <= most:
        *_, ranges, size = HEADER.unpack_from(data, at)
        count += owed + ranges
        owed = max(0, CHUNK_RANGES_SMALL - ranges)
        at += HEADER.size + size
    return count


class FinishedOffsets:
    """An immutable set of offsets. `EMPTY` has none."""

    __slots__ = ("chunks", "count")

    def __init__(self, chunks: tuple[RangeChunk, ...] = ()) -> None:
        self.chunks = chunks
        #: Number of ranges.
        self.count = sum(chunk.ranges for chunk in chunks)

    @classmethod
    def from_ranges(cls, ranges: Iterable[Range]) -> FinishedOffsets:
        """Return the set of these ranges, which ascend and do not touch."""
        return EMPTY.merge(list(ranges))

    @classmethod
    def decode(cls, data: bytes) -> FinishedOffsets:
        """Decode the encoding of `encode`, from a log. Lengths are read when they are used.

        Raises `ValueError` if the chunks do not fit the data.
        """
        chunks = []
        at = 0
        while at < len(data):
            if at + HEADER.size > len(data):
                raise ValueError("the finished offsets end within the header of a chunk")
            first, last, offsets, count, size = HEADER.unpack_from(data, at)
            at += HEADER.size
            lengths = data[at : at + size]
            if len(lengths) < size:
                raise ValueError(f"a chunk of {size} bytes of which {len(lengths)} are left")
            chunks.append(RangeChunk(first, last, offsets, count, lengths))
            at += size
        return cls(tuple(chunks)) if chunks else EMPTY

    @classmethod
    def decode_checked(cls, data: bytes) -> FinishedOffsets:
        """Decode bytes of a client. Raises `ValueError`, which names the ranges that are wrong."""
        finished = cls.decode(data)
        previous = -2
        for chunk in finished.chunks:
            problem = _find_problem(chunk, previous)
            if problem:
                label = f"the range of finished offsets {chunk.first}-{chunk.last}"
                raise ValueError(f"{label} {problem}")
            previous = chunk.last
        return finished

    def encode(self) -> bytes:
        """Return the encoding that the module describes; empty without offsets."""
        return b"".join(
            part
            for chunk in self.chunks
            for part in (
                HEADER.pack(*chunk[:-1], len(chunk.lengths)),
                chunk.lengths,
            )
        )

    def __len__(self) -> int:
        """Number of finished offsets."""
        return sum(chunk.offsets for chunk in self.chunks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FinishedOffsets):
            return NotImplemented
        if self.chunks == other.chunks:
            return True
        # Chunks are compared in encoded form. They are read only if the sets may still be equal.
        return self._get_summary() == other._get_summary() and list(self.iter_ranges()) == list(
            other.iter_ranges()
        )

    def __hash__(self) -> int:
        return hash(self._get_summary())

    def _get_summary(self) -> tuple[int, int, int, int]:
        return self.first, self.last, self.count, len(self)

    def __repr__(self) -> str:
        return f"FinishedOffsets({self})"

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.iter_ranges())

    @property
    def first(self) -> int:
        """The lowest finished offset; -1 without one."""
        return self.chunks[0].first if self.chunks else -1

    @property
    def last(self) -> int:
        """The highest finished offset; -1 without one."""
        return self.chunks[-1].last if self.chunks else -1

    def iter_ranges(self) -> Iterator[Range]:
        """Yield the ranges in ascending order."""
        for chunk in self.chunks:
            bounds = _decode_bounds(chunk)
            for first, end in zip(bounds[::2], bounds[1::2], strict=True):
                yield first, end - 1

    def find_first_missing(self, offset: int) -> int:
        """Return the lowest offset that is at least `offset` and not in the set."""
        chunk_index = bisect_left(self.chunks, offset, key=_last)
        if chunk_index == len(self.chunks) or self.chunks[chunk_index].first > offset:
            return offset
        bounds = _decode_bounds(self.chunks[chunk_index])
        below = bisect_right(bounds, offset)
        return bounds[below] if below % 2 else offset

    def without_below(self, offset: int) -> FinishedOffsets:
        """Return the set without the offsets below `offset`."""
        chunk_index = bisect_left(self.chunks, offset, key=_last)
        remaining = self.chunks[chunk_index:]
        if remaining and remaining[0].first < offset:
            bounds = _decode_bounds(remaining[0])
            below = bisect_right(bounds, offset)
            bounds = bounds[below:]
            if below % 2:
                bounds.insert(0, offset)
            return FinishedOffsets((_build_chunk(bounds), *remaining[1:]))
        return FinishedOffsets(remaining) if chunk_index else self

    def merge(self, ranges: Sequence[Range]) -> FinishedOffsets:
        """Return the union with `ranges`, which ascend. Ranges that touch become one."""
        old = self.chunks
        chunks: list[RangeChunk] = []
        chunk_index = range_index = 0
        while range_index < len(ranges):
            end = ranges[range_index][0]
            before = bisect_left(old, end - 1, lo=chunk_index, key=_last)
            chunks += old[chunk_index:before]
            chunk_index = before
            bounds: list[list[int]] = []
            if chunks and chunks[-1].ranges <= CHUNK_RANGES_SMALL:
                bounds.append(_decode_bounds(chunks.pop()))
            added = range_index
            while True:
                next_first = old[chunk_index].first if chunk_index < len(old) else OFFSET_MAX + 1
                if range_index < len(ranges) and ranges[range_index][0] < next_first:
                    end = max(end, ranges[range_index][1] + 1)
                    range_index += 1
                elif chunk_index < len(old) and (
                    next_first <= end or old[chunk_index].ranges <= CHUNK_RANGES_SMALL
                ):
                    end = max(end, old[chunk_index].last + 1)
                    bounds.append(_decode_bounds(old[chunk_index]))
                    chunk_index += 1
                else:
                    break
            new = [(first, last + 1) for first, last in ranges[added:range_index]]
            old_bounds = list(chain.from_iterable(bounds))
            chunks += _divide(
                _unite(chain(zip(old_bounds[::2], old_bounds[1::2], strict=True), new))
            )
        return FinishedOffsets((*chunks, *old[chunk_index:]))


EMPTY = FinishedOffsets()


def _unite(spans: Iterable[Range]) -> list[int]:
    """Return the bounds of the union of half-open spans: start, end, start, end, ascending."""
    bounds: list[int] = []
    for start, end in sorted(spans):
        if bounds and start <= bounds[-1]:
            if end > bounds[-1]:
                bounds[-1] = end
        else:
            bounds += (start, end)
    return bounds


def _divide(bounds: list[int]) -> list[RangeChunk]:
    """Return the chunks of the ranges with these bounds."""
    count = len(bounds) // 2
    if count <= CHUNK_RANGES_MAX:
        return [_build_chunk(bounds)]
    return [
        _build_chunk(bounds[2 * start : 2 * (start + _CHUNK_RANGES)])
        for start in range(0, count, _CHUNK_RANGES)
    ]


def _build_chunk(bounds: list[int]) -> RangeChunk:
    lengths = [high - low for low, high in pairwise(bounds)]
    if max(lengths) < 0x80:
        encoded = bytes(lengths)
    else:
        out = bytearray()
        for length in lengths:
            while length > 0x7F:
                out.append((length & 0x7F) | 0x80)
                length >>= 7
            out.append(length)
        encoded = bytes(out)
    return RangeChunk(bounds[0], bounds[-1] - 1, sum(lengths[::2]), len(bounds) // 2, encoded)


def _decode_bounds(chunk: RangeChunk) -> list[int]:
    """Return the bounds of the ranges of a chunk: start, end (excluded), start, end."""
    lengths: Iterable[int] = chunk.lengths
    if len(chunk.lengths.translate(None, _CONTINUED)) < len(chunk.lengths):
        lengths = _decode_long_lengths(chunk.lengths)
    return list(accumulate(lengths, initial=chunk.first))


def _decode_long_lengths(encoded: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in encoded:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            yield value
            value = shift = 0
        elif shift >= 63:
            raise ValueError("a length of finished offsets beyond 64 bits")
        else:
            shift += 7
