"""Sets of offsets as ranges: a few ranges stand for many offsets.

A range is a pair of its first and its last offset, both included.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def to_ranges(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending `offsets` as ranges that do not touch each other."""
    ascending = iter(offsets)
    ranges: list[tuple[int, int]] = []
    first = last = next(ascending, None)
    if first is None or last is None:
        return ranges
    for offset in ascending:
        if offset != last + 1:
            ranges.append((first, last))
            first = offset
        last = offset
    ranges.append((first, last))
    return ranges


class OffsetSet:
    """A mutable set of offsets, stored as ascending ranges that do not touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for offset in offsets:
            self.add(offset)

    @classmethod
    def parse(cls, text: str) -> OffsetSet:
        """Parse a set such as `3-7,9`. Raises `ValueError`."""
        offsets = cls()
        for word in filter(None, text.split(",")):
            first, dash, last = word.partition("-")
            offsets.add(int(first), int(last) if dash else int(first))
        return offsets

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.iter_ranges())

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.iter_ranges())

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._firsts, offset) - 1
        return index >= 0 and offset <= self._lasts[index]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.iter_ranges():
            yield from range(first, last + 1)

    def iter_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges, as first and last offset, in ascending order."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def range_count(self) -> int:
        """Number of ranges."""
        return len(self._firsts)

    @property
    def last(self) -> int:
        """The highest offset; -1 without one."""
        return self._lasts[-1] if self._lasts else -1

    def add(self, first: int, last: int | None = None) -> None:
        """Add one offset or a range. Raises `ValueError` if the range ends before it starts."""
        last = first if last is None else last
        if last < first or first < 0:
            raise ValueError(f"{first}-{last} is not a range of offsets")
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high], self._lasts[low:high] = [first], [last]

    def find_first_missing(self, offset: int) -> int:
        """Return the lowest offset that is at least `offset` and not in the set."""
        index = bisect_right(self._firsts, offset) - 1
        return self._lasts[index] + 1 if index >= 0 and offset <= self._lasts[index] else offset

    def cut(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Cut a range where ranges of this set begin and end. Yield the first and last offset of
        each part, and whether the set contains it."""
        index = bisect_left(self._lasts, first)
        while first <= last:
            if index == len(self._firsts) or self._firsts[index] > last:
                yield first, last, False
                return
            if self._firsts[index] > first:
                yield first, self._firsts[index] - 1, False
                first = self._firsts[index]
            high = min(self._lasts[index], last)
            yield first, high, True
            first, index = high + 1, index + 1

    def forget(self, below: int) -> None:
        """Remove all offsets below `below`."""
        index = bisect_left(self._lasts, below)
        del self._firsts[:index], self._lasts[:index]
        if self._firsts and self._firsts[0] < below:
            self._firsts[0] = below
