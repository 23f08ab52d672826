"""Members that finish records of their key ranges in any order, against the coordinator's rules and
a set of records.

Two members read one partition with holes. Ranges move between them while records are unfinished,
commits or their answers are lost, and members die. What is stored as finished is finished. A record
that was finished is delivered again only if its commit was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from shoal.client.consume.fetcher import FetchedBatches
from shoal.client.consume.range_positions import WHOLE, Range, RangePositions
from shoal.client.consume.range_progress import KeyRangeCommit, RangeProgress, make_progress_fields
from shoal.client.consume.shared_partitions import divide
from shoal.client.net.cluster import TopicPartition
from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.individual_commit import KeyRangePositions, KeyRangeRequest
from shoal.coordinator.group.settings import GroupSettings
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from shoal.record.key_hash import hash_record
from shoal.record.key_ranges import KeyRanges
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from shoal.record.records import Record

CELLS = 4
WIDTH = (KEY_HASH_MAX + 1) // CELLS
WHERE = TopicPartition("t", 0)
LOG_END = 40
KEYS = [b"k%d" % n for n in range(9)]
SETTINGS = GroupSettings()

cells = st.sets(st.integers(0, CELLS - 1))


class Row(NamedTuple):
    """A record, as far as `RangeProgress` reads it."""

    offset: int
    key: bytes | None

    @property
    def cell(self) -> int:
        return hash_record(self.key, self.offset) // WIDTH


def ranges_of(some: set[int]) -> list[Range]:
    found = [(n * WIDTH, (n + 1) * WIDTH - 1, 0) for n in sorted(some)]
    return [(first, last) for first, last, _ in key_range_map.join_ranges(found)]


class Member:
    """What `SharedPartitions` does, without I/O."""

    def __init__(self) -> None:
        self.positions = RangePositions()
        self.progress = RangeProgress()
        self.owned: set[int] = set()
        self.in_flight: dict[int, Row] = {}

    def start(self, added: set[int], stored: KeyRangePositions | None) -> None:
        for first, last in ranges_of(added):
            for low, high, progress in key_range_map.clip_to_range(stored or (), first, last):
                if progress.stable_offset < 0:
                    continue
                self.positions.start(WHERE, [(low, high, progress.stable_offset)], committed=True)
                self.progress.start(WHERE, low, high, progress.finished.iter_ranges())
            known = [(a, b) for a, b, p in stored or () if p.stable_offset >= 0]
            for low, high in key_range_map.subtract([(first, last)], known):
                self.positions.start(WHERE, [(low, high, 0)], committed=False)
                self.progress.start(WHERE, low, high, ())
        self.owned |= added

    def keep(self, kept: set[int]) -> None:
        self.owned = set(kept)
        wanted = {WHERE: ranges_of(kept)} if kept else {}
        self.positions.keep(wanted)
        self.progress.keep(wanted)
        self.in_flight = {o: row for o, row in self.in_flight.items() if row.cell in kept}

    def to_commit(self, apart: set[int]) -> tuple[KeyRangeCommit, ...] | None:
        pieces = self.positions.by_partition.get(WHERE)
        if pieces is None:
            return None
        return self.progress.collect_commits(WHERE, divide(pieces, ranges_of(apart)), 1_000)


class Members(RuleBasedStateMachine):
    @initialize(
        keys=st.lists(st.sampled_from([*KEYS, None]), min_size=LOG_END, max_size=LOG_END),
        holes=st.sets(st.integers(0, LOG_END - 1)),
    )
    def begin(self, keys: list[bytes | None], holes: set[int]) -> None:
        rows = [Row(o, key) for o, key in enumerate(keys) if o not in holes]
        self.log = {row.offset: row for row in rows}
        self.stored: KeyRangePositions | None = None
        self.finished: set[int] = set()
        #: Finished, but the commit may not have reached the coordinator.
        self.uncertain: set[int] = set()
        self.members = [Member(), Member()]
        self.members[0].start({0, 1}, None)
        self.members[1].start({2, 3}, None)

    @rule(n=st.integers(0, 1), wanted=cells, answered=st.booleans())
    def move(self, n: int, wanted: set[int], answered: bool) -> None:
        """A member gives up some cells, the other one all that this one gets."""
        one, other = self.members[n], self.members[1 - n]
        for member, kept in ((one, one.owned & wanted), (other, other.owned - wanted)):
            if member.owned - kept:
                self._commit(member, apart=member.owned - kept, reaches=True, answered=answered)
                member.keep(kept)
        one.start(wanted - one.owned, self.stored)

    @rule(n=st.integers(0, 1), size=st.integers(1, 25))
    def fetch(self, n: int, size: int) -> None:
        member = self.members[n]
        for cursor in member.positions.make_cursors():
            end = min(cursor.position + size, LOG_END)
            whole = FetchedBatches("t", 0, cursor.position, None, end, LOG_END, LOG_END, 0, b"")
            fetched = cursor.cut(whole)
            last = fetched.next_offset if fetched.last is None else fetched.last + 1
            ranges = cursor.key_ranges or KeyRanges(WHOLE)
            rows = [
                row
                for o in range(cursor.position, last)
                if (row := self.log.get(o)) is not None and ranges.has_record(row.key, o)
            ]
            got = cast("list[Row]", member.progress.deliver(WHERE, cast("list[Record]", rows)))
            for row in got:
                assert row.cell in member.owned
                assert row.offset not in member.in_flight
                assert row.offset not in self.finished - self.uncertain
                self.finished.discard(row.offset)
                self.uncertain.discard(row.offset)
                member.in_flight[row.offset] = row
            member.positions.advance(cursor, fetched.next_offset, delivered=bool(got))
            member.progress.forget_below(WHERE, member.positions.lowest[WHERE])

    @rule(n=st.integers(0, 1), data=st.data(), most=st.integers(1, 6))
    def finish(self, n: int, data: st.DataObject, most: int) -> None:
        member = self.members[n]
        for _ in range(min(most, len(member.in_flight))):
            offset = data.draw(st.sampled_from(sorted(member.in_flight)))
            del member.in_flight[offset]
            self.finished.add(offset)
            assert member.progress.finish(WHERE, offset)
            assert not member.progress.finish(WHERE, offset)

    @rule(n=st.integers(0, 1), reaches=st.booleans(), answered=st.booleans())
    def commit(self, n: int, reaches: bool, answered: bool) -> None:
        self._commit(self.members[n], apart=set(), reaches=reaches, answered=answered)

    def _commit(self, member: Member, *, apart: set[int], reaches: bool, answered: bool) -> None:
        commits = member.to_commit(apart)
        if commits is None or not reaches:
            return
        asked = [
            KeyRangeRequest(**one)
            for one in make_progress_fields(commits, individually=True)["key_ranges"]
        ]
        checked = individual_commit.validate_commits(asked, SETTINGS)
        self.stored = individual_commit.apply_commits(self.stored, checked, 1, SETTINGS)
        done = {o for o in self.finished if self.log[o].cell in member.owned}
        assert done - self.uncertain <= self._stored()
        if answered:
            member.progress.on_committed(WHERE, commits)
            assert member.to_commit(apart) is None

    @rule(n=st.integers(0, 1))
    def die(self, n: int) -> None:
        """Another process starts with the same cells. What was not committed is delivered again."""
        owned = self.members[n].owned
        self.members[n] = Member()
        lost = {o for o in self.finished if self.log[o].cell in owned} - self._stored()
        self.uncertain |= lost
        self.members[n].start(owned, self.stored)

    @rule(n=st.integers(0, 1))
    def share_no_more(self, n: int) -> None:
        """The topic does not allow key ranges any more. One member gets the whole partition, and
        reads it from its lowest position. Nothing is delivered twice."""
        self.move(n, set(range(CELLS)), True)
        member = self.members[n]
        before = member.positions.by_partition[WHERE]
        if member.positions.collapse(WHERE):
            member.progress.reread(WHERE, before, member.positions.lowest[WHERE])

    def _stored(self) -> set[int]:
        """The records that are finished according to the coordinator."""
        found = set()
        for first, last, progress in self.stored or ():
            done = {o for a, b in progress.finished.iter_ranges() for o in range(a, b + 1)}
            for row in self.log.values():
                if first <= hash_record(row.key, row.offset) <= last:
                    if row.offset < progress.stable_offset or row.offset in done:
                        found.add(row.offset)
        return found

    @invariant()
    def nothing_unfinished_is_stored(self) -> None:
        if hasattr(self, "log"):
            assert self._stored() <= self.finished

    def teardown(self) -> None:
        """One member finishes the rest of all cells."""
        if not hasattr(self, "log"):
            return
        self.move(0, set(range(CELLS)), True)
        member = self.members[0]
        for _ in range(4 * CELLS):
            self.fetch(0, LOG_END)
            for offset in list(member.in_flight):
                del member.in_flight[offset]
                self.finished.add(offset)
                member.progress.finish(WHERE, offset)
        self._commit(member, apart=set(), reaches=True, answered=True)
        assert self.finished == self.log.keys()
        assert self.stored == individual_commit.make_single_range(
            individual_commit.KeyRangeProgress(LOG_END)
        )


Members.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=40, deadline=None
)
TestMembers = Members.TestCase


def progress_of(keys: list[bytes | None]) -> RangeProgress:
    """A member that owns all hashes, and was given a record of each key."""
    progress = RangeProgress()
    progress.start(WHERE, *WHOLE[0], ())
    rows = cast("list[Record]", [Row(o, key) for o, key in enumerate(keys)])
    assert progress.deliver(WHERE, rows) == rows
    return progress


def test_only_gaps_are_named() -> None:
    """A commit has a range for what is finished between two unfinished records. Records of other
    members between them are none: otherwise each record that waits would cost a range."""
    progress = progress_of([b"a"] * 3)
    later = cast("list[Record]", [Row(o, b"a") for o in (10, 20, 30)])
    progress.deliver(WHERE, later)
    piece = (*WHOLE[0], 40)
    assert progress.collect_commits(WHERE, [piece], 10) == (KeyRangeCommit(*WHOLE[0], 0),)
    progress.finish(WHERE, 20)
    assert progress.collect_commits(WHERE, [piece], 10) == (
        KeyRangeCommit(*WHOLE[0], 0, ((11, 29),)),
    )
    progress.finish(WHERE, 0)
    progress.finish(WHERE, 1)
    assert progress.collect_commits(WHERE, [piece], 10) == (
        KeyRangeCommit(*WHOLE[0], 2, ((11, 29),)),
    )


def test_the_limit_of_ranges() -> None:
    """At the limit nothing new is read, and a commit has the lowest ranges."""
    progress = progress_of([b"a"] * 9)
    piece = (*WHOLE[0], 9)
    for offset in (1, 3, 5):
        assert progress.should_fetch(WHERE, 9, 3)
        progress.finish(WHERE, offset)
    assert not progress.should_fetch(WHERE, 9, 3)
    assert progress.collect_commits(WHERE, [piece], 2) == (
        KeyRangeCommit(*WHOLE[0], 0, ((1, 1), (3, 3))),
    )
    progress.finish(WHERE, 2)
    assert progress.should_fetch(WHERE, 9, 3)


def test_ranges_that_are_read_again_commit_what_they_were_read_to() -> None:
    """Such as those of a member that gets a whole partition, and reads it from its lowest
    position."""
    cell, rest = ranges_of({1})[0], ranges_of({2, 3})[0]
    first = ranges_of({0})[0]
    progress = RangeProgress()
    progress.start(WHERE, *WHOLE[0], ())
    rows = [Row(o, key) for o in range(4) for key in KEYS if Row(o, key).cell == 1]
    by_offset = {row.offset: row for row in rows}
    progress.deliver(WHERE, cast("list[Record]", list(by_offset.values())))
    progress.finish(WHERE, 0)
    progress.finish(WHERE, 2)
    progress.reread(WHERE, [(*first, 0), (*cell, 4), (*rest, 0)], 0)
    left = (
        KeyRangeCommit(*first, 0),
        KeyRangeCommit(*cell, 1, ((2, 2),)),
        KeyRangeCommit(*rest, 0),
    )
    assert progress.collect_commits(WHERE, [(*WHOLE[0], 0)], 10) == left
    progress.finish(WHERE, 1)
    progress.forget_below(WHERE, 3)
    left = (KeyRangeCommit(*first, 3), KeyRangeCommit(*cell, 3), KeyRangeCommit(*rest, 3))
    assert progress.collect_commits(WHERE, [(*WHOLE[0], 3)], 10) == left
    progress.forget_below(WHERE, 4)
    assert progress.collect_commits(WHERE, [(*WHOLE[0], 4)], 10) == (KeyRangeCommit(*WHOLE[0], 3),)


@pytest.mark.parametrize("position", [4, 8])
def test_a_truncated_log_is_read_again(position: int) -> None:
    progress = progress_of([b"a"] * 9)
    progress.restart(WHERE, KeyRanges(WHOLE), position)
    again = cast("list[Record]", [Row(o, b"b") for o in range(9)])
    assert [row.offset for row in progress.deliver(WHERE, again)] == list(range(position, 9))


def test_a_coordinator_without_individual_commits_gets_positions() -> None:
    commits = (KeyRangeCommit(0, 9, 4, ((6, 7),)),)
    assert make_progress_fields(commits, individually=False) == {
        "key_ranges": [{"first_hash": 0, "last_hash": 9, "position": 4, "finished": b""}]
    }
    assert (
        make_progress_fields((KeyRangeCommit(*WHOLE[0], 4, ((6, 7),)),), individually=False) == {}
    )
