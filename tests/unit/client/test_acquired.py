"""Locked ranges with their records, where batches hold more than is locked, and less."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from shoal.client.share.acquired import AcquiredRange, AcquiredRecords
from shoal.record.records import build_batch

#: Offsets of records are those of batches of three, with a gap of two after each.
BATCHES = b"".join(
    build_batch([(0, None, b"%d" % n, ()) for n in range(first, first + 3)], base_offset=first)
    for first in range(0, 30, 5)
)
PRESENT = [offset for first in range(0, 30, 5) for offset in range(first, first + 3)]


@given(st.sets(st.integers(0, 30), min_size=2))
def test_each_range_has_its_records(edges: set[int]) -> None:
    pairs = zip(ends := sorted(edges), ends[1:], strict=False)
    ranges = tuple(AcquiredRange(a, b - 1, n) for n, (a, b) in enumerate(pairs, 1) if n % 3)
    acquired = AcquiredRecords("t", UUID(int=1), 0, ranges, BATCHES)
    found = acquired.list_by_range()
    assert [locked for locked, _ in found] == list(ranges)
    for locked, records in found:
        inside = range(locked.first_offset, locked.last_offset + 1)
        assert [record.offset for record in records] == [o for o in PRESENT if o in inside]
    lazily = [(record, count) for record, count in acquired.iterate_with_counts()]
    assert lazily == [(one, r.delivery_count) for r, records in found for one in records]
