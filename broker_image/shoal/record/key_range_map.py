"""Values by key range, as pieces `(first, last, value)` that rise and do not overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shoal.protocol.features import KEY_HASH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

V = TypeVar("V")


def clip_to_range(
    ranges: Iterable[tuple[int, int, V]], first: int, last: int
) -> Iterator[tuple[int, int, V]]:
    """Yield the parts of the pieces that lie in [first, last]."""
    for low, high, value in ranges:
        if low <= last and high >= first:
            yield max(low, first), min(high, last), value


def join_ranges(ranges: Iterable[tuple[int, int, V]]) -> tuple[tuple[int, int, V], ...]:
    """Return the pieces in order. Those that touch and have equal values become one."""
    result: list[tuple[int, int, V]] = []
    for first, last, value in sorted(ranges, key=lambda piece: piece[0]):
        if result and result[-1][1] + 1 == first and result[-1][2] == value:
            result[-1] = result[-1][0], last, value
        else:
            result.append((first, last, value))
    return tuple(result)


def change_range(
    ranges: Iterable[tuple[int, int, V]], first: int, last: int, change: Callable[[V], V]
) -> tuple[tuple[int, int, V], ...]:
    """Return the pieces after `change` of the values in [first, last]."""
    result: list[tuple[int, int, V]] = []
    for low, high, value in ranges:
        inner_low, inner_high = max(low, first), min(high, last)
        if inner_low > inner_high:
            result.append((low, high, value))
            continue
        if low < inner_low:
            result.append((low, inner_low - 1, value))
        result.append((inner_low, inner_high, change(value)))
        if inner_high < high:
            result.append((inner_high + 1, high, value))
    return join_ranges(result)


def is_tiling(ranges: Iterable[tuple[int, int, V]]) -> bool:
    """Whether the pieces follow each other without gaps, and cover all hashes."""
    expected = 0
    for first, last, _ in ranges:
        if first != expected or last < first:
            return False
        expected = last + 1
    return expected == KEY_HASH_MAX + 1


def intersect(
    ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the hashes that are in both, as ranges in rising order."""
    other_ranges = list(others)
    overlaps = [
        (max(first, low), min(last, high))
        for first, last in ranges
        for low, high in other_ranges
        if first <= high and low <= last
    ]
    return sorted(overlaps)


def subtract(
    ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the hashes of `ranges` that are not in `others`, as ranges in rising order."""
    other_ranges = sorted(others)
    remaining = []
    for first, last in sorted(ranges):
        for low, high in other_ranges:
            if high < first or low > last:
                continue
            if low > first:
                remaining.append((first, low - 1))
            first = high + 1
        if first <= last:
            remaining.append((first, last))
    return remaining
