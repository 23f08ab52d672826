"""Ranges of offsets as sets, and the division of a batch's ranges into tasks.

Pure. A `Range` is a run of offsets of one partition, both ends inclusive. It has a delivery count,
and an estimate of its bytes from the headers of log batches. Lists of ranges are sets of offsets:
sorted, and disjoint after `normal`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Adjacent ranges are joined only if their records' mean sizes differ by less than this factor. So
#: a cut in proportion to the count is also a cut in proportion to the bytes.
EVEN_SIZES = 2


class Range(NamedTuple):
    """Offsets of one partition, both ends inclusive; `size` is bytes, 0 if unknown."""

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int = 1
    size: int = 0

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    @property
    def weight(self) -> int:
        """The bytes, or the records if the bytes are unknown; at least one per record."""
        return max(self.size, self.length)

    def cut(self, first: int, last: int) -> Range:
        """Return the part [first, last] with its share of the bytes."""
        size = self.size * (last - first + 1) // self.length
        return self._replace(first=first, last=last, size=size)

    def follows(self, before: Range) -> bool:
        """Whether this range continues `before` with the same attributes."""
        if before[:2] != self[:2] or before.last + 1 != self.first:
            return False
        sizes = sorted((before.weight * self.length, self.weight * before.length))
        return before.delivery_count == self.delivery_count and sizes[1] <= EVEN_SIZES * sizes[0]


def count(ranges: Iterable[Range]) -> int:
    return sum(r.length for r in ranges)


def size(ranges: Iterable[Range]) -> int:
    return sum(r.size for r in ranges)


def normal(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets in order, with adjacent ranges joined if possible."""
    out: list[Range] = []
    for r in sorted(ranges):
        if out and r.follows(out[-1]):
            out[-1] = out[-1]._replace(last=r.last, size=out[-1].size + r.size)
        else:
            out.append(r)
    return out


def plus(ranges: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """Return the offsets of both; `other` has priority."""
    newer = list(other)
    return normal([*minus(ranges, newer), *newer])


def minus(ranges: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """Return the part of `ranges` that is not in `other`."""
    return split(ranges, other)[1]


def both(ranges: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """Return the part of `ranges` that is also in `other`."""
    return split(ranges, other)[0]


def split(ranges: Iterable[Range], other: Iterable[Range]) -> tuple[list[Range], list[Range]]:
    """Return the parts of `ranges` inside and outside `other`, both in order."""
    inside: list[Range] = []
    outside: list[Range] = []
    offsets: dict[tuple[str, int], OffsetSet] = {}
    for r in other:
        offsets.setdefault((r.topic, r.partition), OffsetSet()).add(r.first, r.last)
    nothing = OffsetSet()
    for r in sorted(ranges):
        others = offsets.get((r.topic, r.partition), nothing)
        for first, last, is_inside in others.cut(r.first, r.last):
            (inside if is_inside else outside).append(r.cut(first, last))
    return inside, outside


def tasks(ranges: Sequence[Range], wanted: int) -> list[tuple[Range, ...]]:
    """Cut ranges into up to `wanted` tasks of about equal weight.

    The ranges, laid end to end, form a line as long as their weight. It is cut into `wanted` equal
    parts, each cut moved to the next border between records. Every offset is in exactly one task. A
    record that is heavier than a part fills several tasks' places.
    """
    line = [r for r in ranges if r.length > 0]
    ends = list(accumulate(r.weight for r in line))
    if not line:
        return []
    wanted = max(1, min(wanted, count(line)))
    found: dict[int, list[Range]] = {}
    for r, end in zip(line, ends, strict=True):
        for number, piece in _pieces(r, end - r.weight, ends[-1], wanted):
            found.setdefault(number, []).append(piece)
    return [tuple(found[number]) for number in sorted(found)]


def _pieces(r: Range, begin: int, total: int, wanted: int) -> Iterator[tuple[int, Range]]:
    """Yield the pieces of a range that starts at `begin` of the line, each with its task number.

    The record at index i of the range starts at `begin + weight * i / count`. Its task number is
    that divided by (total / wanted), rounded down. All arithmetic uses integers.
    """
    at = 0
    while at < r.length:
        number = (begin * r.length + r.weight * at) * wanted // (total * r.length)
        # The first index that belongs to a later task.
        cut = -(
            (begin * r.length * wanted - (number + 1) * total * r.length) // (r.weight * wanted)
        )
        cut = min(cut, r.length)
        yield number, r.cut(r.first + at, r.first + cut - 1)
        at = cut
