"""Ranges of offsets as sets, and how the ranges of a batch become tasks.

Pure. A `Range` is a run of offsets of one partition, both ends inclusive, with what the group said
of it: the delivery count, and an estimate of its bytes, taken from the headers of the log's batches
that hold it. Lists of ranges are sets of offsets: sorted, and disjoint where `normal` made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

#: Neighbours are joined only if their records' mean sizes differ less than by this factor, so that
#: cutting a range in proportion to its count cuts it in proportion to its bytes too.
EVEN_SIZES = 2


class Range(NamedTuple):
    """Offsets of one partition, both ends inclusive; `size` is bytes, 0 where it is not known."""

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
        """Bytes, or records where the bytes are not known; at least one a record."""
        return max(self.size, self.length)

    def cut(self, first: int, last: int) -> Range:
        """The part [first, last], with its share of the bytes."""
        size = self.size * (last - first + 1) // self.length
        return self._replace(first=first, last=last, size=size)

    def follows(self, before: Range) -> bool:
        """Whether this is the next run of the same kind behind `before`."""
        if before[:2] != self[:2] or before.last + 1 != self.first:
            return False
        sizes = sorted((before.weight * self.length, self.weight * before.length))
        return before.delivery_count == self.delivery_count and sizes[1] <= EVEN_SIZES * sizes[0]


def count(ranges: Iterable[Range]) -> int:
    return sum(r.length for r in ranges)


def size(ranges: Iterable[Range]) -> int:
    return sum(r.size for r in ranges)


def normal(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in order, runs of the same kind joined."""
    out: list[Range] = []
    for r in sorted(ranges):
        if out and r.follows(out[-1]):
            out[-1] = out[-1]._replace(last=r.last, size=out[-1].size + r.size)
        else:
            out.append(r)
    return out


def plus(ranges: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """The offsets of both; where both have one, `other` says what it is."""
    newer = list(other)
    return normal([*minus(ranges, newer), *newer])


def minus(ranges: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """What of `ranges` is not in `other`."""
    return split(ranges, other)[1]


def both(ranges: Iterable[Range], other: Iterable[Range]) -> list[Range]:
    """What of `ranges` is in `other` too."""
    return split(ranges, other)[0]


def split(ranges: Iterable[Range], other: Iterable[Range]) -> tuple[list[Range], list[Range]]:
    """The parts of `ranges` that lie inside and outside of `other`, both in order."""
    inside: list[Range] = []
    outside: list[Range] = []
    holes = {
        where: list(some) for where, some in groupby(sorted(other), key=lambda r: (r[0], r[1]))
    }
    for where, some in groupby(sorted(ranges), key=lambda r: (r[0], r[1])):
        ahead = iter(holes.get(where, ()))
        hole = next(ahead, None)
        for r in some:
            at = r.first
            while at <= r.last:
                while hole is not None and hole.last < at:
                    hole = next(ahead, None)
                if hole is None or hole.first > r.last:
                    outside.append(r.cut(at, r.last))
                    break
                if hole.first > at:
                    outside.append(r.cut(at, hole.first - 1))
                    at = hole.first
                high = min(hole.last, r.last)
                inside.append(r.cut(at, high))
                at = high + 1
    return inside, outside


def tasks(ranges: Sequence[Range], wanted: int) -> list[tuple[Range, ...]]:
    """Cut ranges into up to `wanted` tasks of equal weight, give or take a record.

    The ranges, laid end to end, are a line as long as their weight; it is cut at the multiples of
    its length over `wanted`, each cut moved to the next border between two records. Every offset
    is in exactly one task; a record heavier than a share takes the place of several tasks.
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
    """The pieces of a range that begins at `begin` of the line, each with its task's number.

    The record at index i of the range begins at `begin + weight * i / count`; it belongs to task
    number that / (total / wanted), rounded down. Whole numbers throughout.
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
