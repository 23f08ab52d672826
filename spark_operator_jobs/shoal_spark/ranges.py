"""Ranges of offsets as sets, and the division of a batch's ranges into tasks.

Pure. A `OffsetRange` is a run of offsets of one partition, both ends inclusive. It has a delivery
count, and an estimate of its bytes from the headers of log batches. Lists of ranges are sets of
offsets: sorted, and disjoint after `normalize`.
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


class OffsetRange(NamedTuple):
    """Offsets of one partition, both ends inclusive; `sum_sizes` is bytes, 0 if unknown."""

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

    def cut(self, first: int, last: int) -> OffsetRange:
        """Return the part [first, last] with its share of the bytes."""
        size = self.size * (last - first + 1) // self.length
        return self._replace(first=first, last=last, size=size)

    def is_continuation_of(self, before: OffsetRange) -> bool:
        """Whether this range continues `before` with the same attributes."""
        if before[:2] != self[:2] or before.last + 1 != self.first:
            return False
        sizes = sorted((before.weight * self.length, self.weight * before.length))
        return before.delivery_count == self.delivery_count and sizes[1] <= EVEN_SIZES * sizes[0]


def count(ranges: Iterable[OffsetRange]) -> int:
    return sum(r.length for r in ranges)


def sum_sizes(ranges: Iterable[OffsetRange]) -> int:
    return sum(r.size for r in ranges)


def normalize(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the same offsets in order, with adjacent ranges joined if possible."""
    out: list[OffsetRange] = []
    for r in sorted(ranges):
        if out and r.is_continuation_of(out[-1]):
            out[-1] = out[-1]._replace(last=r.last, size=out[-1].size + r.size)
        else:
            out.append(r)
    return out


def unite(ranges: Iterable[OffsetRange], other: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the offsets of both; `other` has priority."""
    newer = list(other)
    return normalize([*subtract(ranges, newer), *newer])


def subtract(ranges: Iterable[OffsetRange], other: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the part of `ranges` that is not in `other`."""
    return split(ranges, other)[1]


def intersect(ranges: Iterable[OffsetRange], other: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the part of `ranges` that is also in `other`."""
    return split(ranges, other)[0]


def split(
    ranges: Iterable[OffsetRange], other: Iterable[OffsetRange]
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return the parts of `ranges` inside and outside `other`, both in order."""
    inside: list[OffsetRange] = []
    outside: list[OffsetRange] = []
    offsets: dict[tuple[str, int], OffsetSet] = {}
    for r in other:
        offsets.setdefault((r.topic, r.partition), OffsetSet()).add(r.first, r.last)
    nothing = OffsetSet()
    for r in sorted(ranges):
        other_offsets = offsets.get((r.topic, r.partition), nothing)
        for first, last, is_inside in other_offsets.cut(r.first, r.last):
            (inside if is_inside else outside).append(r.cut(first, last))
    return inside, outside


def split_into_tasks(
    ranges: Sequence[OffsetRange], task_count: int
) -> list[tuple[OffsetRange, ...]]:
    """Cut ranges into up to `task_count` tasks of about equal weight.

    The ranges, laid end to end, form a line as long as their weight. It is cut into `task_count`
    equal parts, each cut moved to the next border between records. Every offset is in exactly one
    task. A record that is heavier than a part fills several tasks' places.
    """
    line = [r for r in ranges if r.length > 0]
    ends = list(accumulate(r.weight for r in line))
    if not line:
        return []
    task_count = max(1, min(task_count, count(line)))
    by_task: dict[int, list[OffsetRange]] = {}
    for r, end in zip(line, ends, strict=True):
        for number, piece in _split_range(r, end - r.weight, ends[-1], task_count):
            by_task.setdefault(number, []).append(piece)
    return [tuple(by_task[number]) for number in sorted(by_task)]


def _split_range(
    r: OffsetRange, begin: int, total: int, task_count: int
) -> Iterator[tuple[int, OffsetRange]]:
    """Yield the pieces of a range that starts at `begin` of the line, each with its task number.

    The record at index i of the range starts at `begin + weight * i / count`. Its task number is
    that divided by (total / wanted), rounded down. All arithmetic uses integers.
    """
    index = 0
    while index < r.length:
        number = (begin * r.length + r.weight * index) * task_count // (total * r.length)
        # The first index that belongs to a later task.
        cut = -(
            (begin * r.length * task_count - (number + 1) * total * r.length)
            // (r.weight * task_count)
        )
        cut = min(cut, r.length)
        yield number, r.cut(r.first + index, r.first + cut - 1)
        index = cut
