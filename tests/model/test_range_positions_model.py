"""A member's positions of key ranges against a twin with one position for each of eight cells.

Ranges come and go, fetches return some of the log, and commits succeed or are lost. Every cell gets
its records once and in order from where it started.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from shoal.client.consume.fetcher import FetchedBatches
from shoal.client.consume.range_positions import (
    WHOLE,
    Range,
    RangeCursor,
    RangePositions,
    make_commit_fields,
)
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from shoal.record.key_ranges import KeyRanges
from support.runs.example_counts import scale_examples

CELLS = 8
WIDTH = (KEY_HASH_MAX + 1) // CELLS
WHERE = TopicPartition("t", 0)
END = 60

cells = st.sets(st.integers(0, CELLS - 1))


def ranges_of(some: set[int]) -> list[Range]:
    found = [(n * WIDTH, (n + 1) * WIDTH - 1, 0) for n in sorted(some)]
    return [(first, last) for first, last, _ in key_range_map.join_ranges(found)]


def fetched(cursor: RangeCursor, size: int) -> FetchedBatches:
    """What a fetch returns: `size` offsets of the log, or less at its end."""
    end = min(cursor.position + size, END)
    return FetchedBatches("t", 0, cursor.position, None, end, END, END, 0, b"")


class Positions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.positions = RangePositions()
        #: The next offset of each owned cell, and what the coordinator has of all cells.
        self.next: dict[int, int] = {}
        self.committed: dict[int, int] = {}

    @rule(wanted=cells)
    def assign(self, wanted: set[int]) -> None:
        """As `SharedPartitions.take_over` does: commit, keep, and start at what is committed."""
        lost = self.next.keys() - wanted
        if lost:
            self.commit()
        self.positions.keep({WHERE: ranges_of(wanted)} if wanted else {})
        new = wanted - self.next.keys()
        self.next = {n: at for n, at in self.next.items() if n in wanted}
        for cell in sorted(new):
            at = self.committed.get(cell, 0)
            pieces = [(*ranges_of({cell})[0], at)]
            self.positions.start(WHERE, pieces, committed=cell in self.committed)
            self.next[cell] = at

    @precondition(lambda self: self.next)
    @rule(size=st.integers(1, 40))
    def fetch(self, size: int) -> None:
        (cursor,) = self.positions.make_cursors()
        found = cursor.cut(fetched(cursor, size))
        last = END if found.last is None else found.last
        offsets = range(cursor.position, min(found.next_offset, last + 1))
        ranges = KeyRanges(WHOLE) if cursor.key_ranges is None else cursor.key_ranges
        got = False
        for cell in range(CELLS):
            if ranges.has_hash(cell * WIDTH):
                assert self.next[cell] == cursor.position
                self.next[cell] += len(offsets)
                got = got or bool(offsets)
        self.positions.advance(cursor, found.next_offset, delivered=got)

    @rule(lost=st.booleans())
    def commit(self, lost: bool = False) -> None:
        for where, pieces in self.positions.collect_uncommitted().items():
            assert where == WHERE
            for first, last, at in pieces:
                for cell in range(first // WIDTH, last // WIDTH + 1):
                    self.committed[cell] = at
            if not lost:
                self.positions.on_committed(where, pieces)
                assert self.positions.collect_uncommitted() == {}
            fields = make_commit_fields(pieces).get("key_ranges", [])
            assert bool(fields) == (pieces[0][:2] != WHOLE[0])

    @precondition(lambda self: self.next)
    @rule(offset=st.integers(0, END))
    def rewind(self, offset: int) -> None:
        """Offsets that are not committed are read again."""
        self.commit()
        before = dict(self.next)
        self.fetch(5)
        self.positions.rewind(WHERE, offset)
        self.next = {cell: max(before[cell], min(at, offset)) for cell, at in self.next.items()}

    @invariant()
    def equals_the_twin(self) -> None:
        assert self.positions.owned == ({WHERE: ranges_of(set(self.next))} if self.next else {})
        lowest = {WHERE: min(self.next.values())} if self.next else {}
        assert self.positions.lowest == lowest
        assert bool(self.positions) == bool(self.next)
        assert self.positions.has_different_positions == (len(set(self.next.values())) > 1)

    @rule()
    def read_to_the_end(self) -> None:
        """The fetches of ranges that are behind bring all ranges together."""
        for _ in range(4 * CELLS):
            if self.next:
                self.fetch(END)
        assert not self.positions.has_different_positions
        assert set(self.next.values()) <= {END}


Positions.TestCase.settings = settings(
    max_examples=scale_examples(40), stateful_step_count=30, deadline=None
)
TestPositions = Positions.TestCase


def test_ranges_at_different_positions_take_turns() -> None:
    """What is ahead is read between the fetches of what is behind, and both continue together."""
    positions = RangePositions()
    first, second = ranges_of({0, 1, 2, 3}), ranges_of({4, 5, 6, 7})
    positions.start(WHERE, [(*first[0], 10)], committed=True)
    positions.start(WHERE, [(*second[0], 50)], committed=True)
    seen = []
    for _ in range(4):
        (cursor,) = positions.make_cursors()
        seen.append((cursor.position, cursor.end))
        found = cursor.cut(fetched(cursor, 5))
        positions.advance(cursor, found.next_offset, delivered=True)
    assert seen == [(10, 50), (50, None), (15, 55), (55, None)]
    (cursor,) = positions.make_cursors()
    positions.advance(cursor, cursor.cut(fetched(cursor, 60)).next_offset, delivered=True)
    assert not positions.has_different_positions
    (cursor,) = positions.make_cursors()
    assert (cursor.position, cursor.key_ranges) == (60, None)


def test_in_order_the_lowest_position_is_read_first() -> None:
    """The first record of a transaction is above what its member has not read yet."""
    positions = RangePositions(in_order=True)
    first, second = ranges_of({0, 1, 2, 3}), ranges_of({4, 5, 6, 7})
    positions.start(WHERE, [(*first[0], 10)], committed=True)
    positions.start(WHERE, [(*second[0], 20)], committed=True)
    seen = []
    for _ in range(3):
        (cursor,) = positions.make_cursors()
        seen.append((cursor.position, cursor.end))
        found = cursor.cut(fetched(cursor, 6))
        got = cursor.position > 10
        positions.advance(cursor, found.next_offset, delivered=got, first=17 if got else -1)
        assert positions.get_first_offset(WHERE) == (17 if got else -1)
    assert seen == [(10, 20), (16, 20), (20, None)]
    positions.on_committed(WHERE, positions.collect_uncommitted()[WHERE])
    assert positions.get_first_offset(WHERE) == -1


def test_the_first_offset_of_a_transaction() -> None:
    """It is the lowest one, until the transaction ends."""
    positions = RangePositions(in_order=True)
    half = ranges_of({0, 1, 2, 3})[0]
    positions.start(WHERE, [(*half, 10)], committed=True)
    for first in (12, 18):
        (cursor,) = positions.make_cursors()
        positions.advance(cursor, cursor.position + 8, delivered=True, first=first)
        assert positions.get_first_offset(WHERE) == 12
    positions.rewind_all()
    assert positions.get_first_offset(WHERE) == -1
    # What has no record of the member is not read again, and may be committed.
    assert positions.lowest == {WHERE: 12}
    assert positions.collect_uncommitted(passed=True) == {WHERE: ((*half, 12),)}


def test_a_rewind_in_order_of_ranges_at_different_positions() -> None:
    """None goes forward, and none behind what is committed."""
    positions = RangePositions(in_order=True)
    first, second = ranges_of({0, 1, 2, 3}), ranges_of({4, 5, 6, 7})
    positions.start(WHERE, [(*first[0], 10)], committed=True)
    positions.start(WHERE, [(*second[0], 20)], committed=True)
    (cursor,) = positions.make_cursors()
    positions.advance(cursor, 18, delivered=True, first=13)
    positions.rewind_all()
    assert positions.by_partition[WHERE] == ((*first[0], 13), (*second[0], 20))
    (cursor,) = positions.make_cursors()
    positions.advance(cursor, 20, delivered=False)
    positions.rewind_all()
    assert positions.by_partition[WHERE] == ((0, KEY_HASH_MAX, 20),)


def test_ranges_that_are_behind_stop_at_the_next_ones() -> None:
    """Otherwise they would overtake each other for as long as new records arrive."""
    positions = RangePositions()
    first, second = ranges_of({0, 1, 2, 3}), ranges_of({4, 5, 6, 7})
    positions.start(WHERE, [(*first[0], 10)], committed=True)
    positions.start(WHERE, [(*second[0], 50)], committed=True)
    (cursor,) = positions.make_cursors()
    found = cursor.cut(fetched(cursor, 45))
    assert (cursor.end, found.last, found.next_offset) == (50, 49, 50)
    positions.advance(cursor, found.next_offset, delivered=True)
    assert positions.make_cursors() == [RangeCursor(WHERE, 50, None, None)]


def test_passed_positions_are_committed_alone() -> None:
    """Positions that moved without a record are committed for the application."""
    positions = RangePositions()
    half = ranges_of({0, 1, 2, 3})[0]
    positions.start(WHERE, [(*half, 10)], committed=True)
    assert positions.collect_uncommitted(passed=True) == {}
    (cursor,) = positions.make_cursors()
    positions.advance(cursor, 20, delivered=False)
    assert positions.collect_uncommitted(passed=True) == {WHERE: ((*half, 20),)}
    (cursor,) = positions.make_cursors()
    positions.advance(cursor, 30, delivered=True)
    assert positions.collect_uncommitted(passed=True) == {}
    assert positions.collect_uncommitted() == {WHERE: ((*half, 30),)}


def test_a_whole_partition_is_read_from_its_lowest_position() -> None:
    """Its topic does not allow key ranges any more."""
    positions = RangePositions()
    first, second = ranges_of({0, 1, 2, 3}), ranges_of({4, 5, 6, 7})
    positions.start(WHERE, [(*first[0], 10)], committed=True)
    assert not positions.collapse(WHERE)
    positions.start(WHERE, [(*second[0], 50)], committed=True)
    assert positions.collapse(WHERE)
    assert not positions.collapse(WHERE)
    assert positions.make_cursors() == [RangeCursor(WHERE, 10, None, None)]
