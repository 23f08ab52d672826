"""Reads of a log that examined its records are cached, within bounds, for later acquisitions."""

from __future__ import annotations

from shoal.coordinator.share import read_cache
from shoal.coordinator.share.batches import Batches, scan
from shoal.record.records import build_batch


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


def test_a_read_that_begins_before_the_last_one_ends_is_kept_alone() -> None:
    kept = read_cache.ReadCache()
    kept.add(read(0))
    kept.add(read(20))
    kept.add(read(20))
    assert len(kept) == 1
    assert kept.find(0) == (None, 20)


def test_the_oldest_go_when_there_is_more_than_may_be_kept() -> None:
    kept = read_cache.ReadCache(2 * len(read(0).data))
    for first in range(0, 100, 20):
        kept.add(read(first))
    assert len(kept) == 2
    assert kept.find(0) == (None, 60)
    kept.clear()
    assert kept.find(99) == (None, None)
