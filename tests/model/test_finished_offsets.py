"""`FinishedOffsets` against a set of integers."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.record import finished_offsets
from shoal.record.finished_offsets import EMPTY, FinishedOffsets
from shoal.record.offset_set import to_ranges
from support.runs.example_counts import scale_examples


def _offsets(size: int = 400) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2_000), max_size=size).map(lambda found: sorted(set(found)))


@settings(max_examples=scale_examples(100), deadline=None)
@given(st.lists(_offsets(), max_size=8), st.data())
def test_equals_a_set(steps: list[list[int]], data: st.DataObject) -> None:
    """Unions, reads and removals of random offsets, with many chunks."""
    twin: set[int] = set()
    found = EMPTY
    for step in steps:
        before, ranges = str(found), to_ranges(step)
        merged = found.merge(ranges)
        assert str(found) == before
        found, twin = merged, twin | set(step)
        below = data.draw(st.integers(0, 2_100))
        if data.draw(st.booleans()):
            found, twin = found.without_below(below), {o for o in twin if o >= below}
        assert list(found.iter_ranges()) == to_ranges(sorted(twin))
        assert (len(found), found.count) == (len(twin), len(to_ranges(sorted(twin))))
        assert (found.first, found.last) == (min(twin, default=-1), max(twin, default=-1))
        probe = data.draw(st.integers(0, 2_100))
        assert found.find_first_missing(probe) == next(
            o for o in range(probe, 9_999) if o not in twin
        )
        assert FinishedOffsets.decode(found.encode()) == found
        assert FinishedOffsets.decode_checked(found.encode()) == found


@settings(max_examples=scale_examples(50), deadline=None)
@given(_offsets(), st.integers(0, 500))
def test_ranges_are_counted_before_they_are_decoded(offsets: list[int], most: int) -> None:
    """The count ends above `most`. Distant offsets have the longest lengths."""
    ranges = [(offset << 51, offset << 51) for offset in offsets]
    count = finished_offsets.count_ranges(FinishedOffsets.from_ranges(ranges).encode(), most)
    assert count == len(ranges) or most < count <= len(ranges)


def test_chunks_are_bounded_and_combined() -> None:
    """A chunk never exceeds its maximum, and closing gaps leaves one chunk."""
    found = EMPTY
    for offset in range(0, 4_000, 2):
        found = found.merge([(offset, offset)])
    sizes = [chunk.ranges for chunk in found.chunks]
    assert sum(sizes) == 2_000
    assert max(sizes) <= finished_offsets.CHUNK_RANGES_MAX
    for offset in range(1, 4_000, 2):
        found = found.merge([(offset, offset)])
    assert [(chunk.first, chunk.last) for chunk in found.chunks] == [(0, 3_999)]


def test_memory_and_the_cost_of_a_change() -> None:
    """Every other offset: at most 24 bytes each, and a change replaces at most three chunks."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    found = [FinishedOffsets.from_ranges((o, o) for o in range(1, 20_001, 2)) for _ in range(2)]
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert sum(map(len, found)) == 20_000
    assert used <= 24 * 20_000
    for offset in range(0, 20_000, 1_000):
        changed = found[0].merge([(offset, offset)])
        kept = {id(chunk) for chunk in found[0].chunks}
        assert sum(id(chunk) not in kept for chunk in changed.chunks) <= 3


def test_distant_offsets() -> None:
    """Lengths of more than one byte, up to the largest offset."""
    ranges = [(0, 126), (300, 300), (2**40, 2**41), (2**63 - 2, 2**63 - 1)]
    found = FinishedOffsets.from_ranges(ranges)
    assert list(FinishedOffsets.decode_checked(found.encode()).iter_ranges()) == ranges
    assert found.find_first_missing(2**63 - 2) == 2**63


HEADER = finished_offsets.HEADER.pack
FIVE = HEADER(5, 5, 1, 1, 1) + b"\x01"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (HEADER(9, 5, 1, 1, 1) + b"\x01", "9-5 ends before it starts"),
        (HEADER(-4, 5, 10, 1, 1) + b"\x0a", "-4-5 starts below 0"),
        (
            HEADER(5, 5, 1, 1, 1) + b"\x01" + HEADER(5, 5, 1, 1, 1) + b"\x01",
            "5-5 overlaps or touches",
        ),
        (
            HEADER(5, 5, 1, 1, 1) + b"\x01" + HEADER(6, 6, 1, 1, 1) + b"\x01",
            "6-6 overlaps or touches",
        ),
        (HEADER(5, 9, 5, 2, 3) + b"\x01\x00\x04", "5-9 has a range or a gap without offsets"),
        (HEADER(5, 9, 5, 1, 1) + b"\x04", "5-9 does not have the lengths"),
        (HEADER(5, 9, 4, 1, 1) + b"\x05", "5-9 does not have the lengths"),
        (HEADER(5, 9, 5, 2, 1) + b"\x05", "5-9 does not have the lengths"),
        (HEADER(5, 9, 5, 1, 2) + b"\x05", "a chunk of 2 bytes of which 1 are left"),
        (HEADER(5, 9, 5, 1, 11) + b"\x80" * 11, "beyond 64 bits"),
        (HEADER(5, 9, 5, 1, 21) + b"\x01" * 21, "5-9 has more lengths than ranges"),
        (b"\0" * 7, "end within the header"),
    ],
)
def test_wrong_bytes_are_named(data: bytes, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FinishedOffsets.decode_checked(data)


def test_small_chunks_count_as_larger_ones() -> None:
    """A client makes the work of as many chunks as it sends, whatever their headers claim."""
    least = finished_offsets.CHUNK_RANGES_SMALL
    empty, one = HEADER(0, 0, 0, 0, 0), HEADER(0, 0, 0, 1, 9) + b"\x01" * 9
    assert finished_offsets.count_ranges(empty * 10_000, 100) == 4 * least
    assert finished_offsets.count_ranges(one, 100) == 1
    assert finished_offsets.count_ranges(one * 2, 100) == least + 1
    assert finished_offsets.count_ranges(b"", 100) == 0
