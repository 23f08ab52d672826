"""Reads of a log that examined its records are cached, within bounds, for later acquisitions."""

from __future__ import annotations

from shoal.coordinator.share import read_cache
from shoal.coordinator.share.batches import Batches, scan
from shoal.coordinator.share.settings import SelectionPolicy
from shoal.record.batch import iter_headers
from shoal.record.records import build_batch, read_records


def read(first: int, batches: int = 2, size: int = 10) -> Batches:
    """Return batches of records from an offset on."""
    records = [(0, None, b"v" * 100, ())] * size
    found = [build_batch(records, base_offset=first + size * n) for n in range(batches)]
    return scan(b"".join(found), first)


def test_an_offset_is_found_in_the_read_that_holds_it() -> None:
    kept, reads = read_cache.ReadCache(), [read(0), read(20), read(60)]
    for one in reads:
        kept.add(one)
    assert [kept.find(at)[0] for at in (0, 19, 20, 39, 60, 79)] == [
        reads[0],
        reads[0],
        reads[1],
        reads[1],
        reads[2],
        reads[2],
    ]
    assert kept.find(45) == (None, 60)
    assert kept.find(80) == (None, None)


def test_a_read_replaces_those_that_do_not_begin_before_it() -> None:
    kept, first, again = read_cache.ReadCache(), read(0), read(20)
    for one in (first, read(20), read(40), again):
        kept.add(one)
    assert len(kept) == 2
    assert [kept.find(at)[0] for at in (0, 20, 39)] == [first, again, again]
    assert kept.find(40) == (None, None)


def test_a_read_may_begin_within_the_last_one() -> None:
    """As if a scan had ended at offset 10."""
    kept, reads = read_cache.ReadCache(), [read(0), read(10)]
    for one in reads:
        kept.add(one)
    assert [kept.find(at)[0] for at in (9, 10, 19, 20)] == [reads[0], *reads[:1] * 2, reads[1]]
    count, data = kept.gather([5, 15, 25], 1 << 20, 0)
    assert (count or 3) == 3  # None are gathered without the compiled loops.
    if count:
        got = [record.offset for at, _ in iter_headers(data) for record in read_records(data, at)]
        assert got == [5, 15, 25]
    assert [part for part, _ in kept.split_by_read([5, 15, 25])] == [[5, 15], [25]]


def test_the_oldest_go_when_there_is_more_than_may_be_kept() -> None:
    kept = read_cache.ReadCache(2 * len(read(0).data))
    for first in range(0, 100, 20):
        kept.add(read(first))
    assert len(kept) == 2
    assert kept.find(0) == (None, 60)
    kept.clear()
    assert kept.find(99) == (None, None)


def test_a_fair_group_keeps_at_least_100_bytes_for_each_record_that_it_looks_ahead() -> None:
    """That is also so if its queue takes almost all of the 200, and is no reason to keep less than
    other groups keep."""
    plain, small, fair = (
        SelectionPolicy(fairness_by=by, fairness_lookahead=ahead)
        for by, ahead in (("", 100_000), ("key", 1000), ("key", 100_000))
    )
    policies = ((plain, 0), (small, 0), (fair, 6_000_000), (fair, 19_000_000))
    assert [read_cache.compute_cache_bytes(*case) for case in policies] == [
        1 << 20,
        1 << 20,
        14_000_000,
        10_000_000,
    ]
