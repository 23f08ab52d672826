"""Values by key range, as pieces `(first, last, value)` that rise and do not overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shoal.protocol.features import KEY_HASH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

V = TypeVar("V")


def within(
    pieces: Iterable[tuple[int, int, V]], first: int, last: int
) -> Iterator[tuple[int, int, V]]:
    """Yield the parts of the pieces that lie in [first, last]."""
    for low, high, value in pieces:
        if low <= last and high >= first:
            yield max(low, first), min(high, last), value


def joined(pieces: Iterable[tuple[int, int, V]]) -> tuple[tuple[int, int, V], ...]:
    """Return the pieces in order. Those that touch and have equal values become one."""
    found: list[tuple[int, int, V]] = []
    for first, last, value in sorted(pieces, key=lambda piece: piece[0]):
        if found and found[-1][1] + 1 == first and found[-1][2] == value:
            found[-1] = found[-1][0], last, value
        else:
            found.append((first, last, value))
    return tuple(found)


def changed(
    pieces: Iterable[tuple[int, int, V]], first: int, last: int, change: Callable[[V], V]
) -> tuple[tuple[int, int, V], ...]:
    """Return the pieces after `change` of the values in [first, last]."""
    found: list[tuple[int, int, V]] = []
    for low, high, value in pieces:
        inner_low, inner_high = max(low, first), min(high, last)
        if inner_low > inner_high:
            found.append((low, high, value))
            continue
        if low < inner_low:
            found.append((low, inner_low - 1, value))
        found.append((inner_low, inner_high, change(value)))
        if inner_high < high:
            found.append((inner_high + 1, high, value))
    return joined(found)


def tiles(pieces: Iterable[tuple[int, int, V]]) -> bool:
    """Whether the pieces follow each other without gaps, and cover all hashes."""
    expected = 0
    for first, last, _ in pieces:
        if first != expected or last < first:
            return False
        expected = last + 1
    return expected == KEY_HASH_MAX + 1


def common(
    ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the hashes that are in both, as ranges in rising order."""
    theirs = list(others)
    found = [
        (max(first, low), min(last, high))
        for first, last in ranges
        for low, high in theirs
        if first <= high and low <= last
    ]
    return sorted(found)


def minus(
    ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the hashes of `ranges` that are not in `others`, as ranges in rising order."""
    theirs = sorted(others)
    found = []
    for first, last in sorted(ranges):
        for low, high in theirs:
            if high < first or low > last:
                continue
            if low > first:
                found.append((first, low - 1))
            first = high + 1
        if first <= last:
            found.append((first, last))
    return found
