"""A member's progress over a log with holes, against the coordinator's rules and a set of records.

Records are delivered and finished in random order, and commits are lost, repeated or go to a broker
without individual commits. Members die, and the next one starts at what is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shoal.client.consume.progress import PartitionProgress
from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.individual_commit import KeyRangeRequest
from shoal.coordinator.group.settings import GroupSettings
from shoal.protocol.errors import ApiError
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from shoal.client.consume.fetcher import FetchedBatches
    from shoal.client.consume.progress import ProgressCommit

MAX_RANGES = 3
SETTINGS = GroupSettings(shoal_group_consumer_individual_commit_max_ranges=MAX_RANGES)
LOG_END = 40


class Row(NamedTuple):
    """A record, as far as `Progress` reads it."""

    offset: int


class Batch(NamedTuple):
    """A fetch of the offsets from `first` below `next_offset`."""

    first: int
    next_offset: int
    rows: list[Row]

    def records(self) -> list[Row]:
        return self.rows


class Members(RuleBasedStateMachine):
    @initialize(holes=st.sets(st.integers(0, LOG_END - 1)), start=st.integers(0, 5))
    def begin(self, holes: set[int], start: int) -> None:
        self.holes = holes
        self.log_start = start
        self.stored: individual_commit.KeyRangeProgress | None = None
        self.finished: set[int] = set()
        self._start()

    def _start(self) -> None:
        """A new member starts where the committed progress is."""
        stored = self.stored
        #: The member keeps this, even if a commit without individual ones replaces it.
        self.known_finished = self._committed()
        if stored is None:
            self.member = PartitionProgress(self.log_start, committed=False)
            self.at = self.log_start
        else:
            ranges = stored.finished.iter_ranges()
            self.member = PartitionProgress(stored.stable_offset, ranges, committed=True)
            self.at = stored.stable_offset
        if self.at < self.log_start:
            self.member.jump(self.at, self.log_start)
            self.at = self.log_start
        self.in_flight: set[int] = set()
        self.sent: list[ProgressCommit] = []

    @rule(count=st.integers(1, 8))
    def fetch(self, count: int) -> None:
        if self.at >= LOG_END or not self.member.should_fetch(self.at, MAX_RANGES):
            return
        end = min(LOG_END, self.at + count)
        rows = [Row(o) for o in range(self.at, end) if o not in self.holes]
        fetched = cast("FetchedBatches", Batch(self.at, end, rows))
        delivered = [record.offset for record in self.member.deliver(fetched)]
        known = self.known_finished
        assert delivered == [row.offset for row in rows if row.offset not in known]
        self.in_flight |= set(delivered)
        self.at = end

    def _committed(self) -> set[int]:
        if self.stored is None:
            return set()
        done = {
            o for first, last in self.stored.finished.iter_ranges() for o in range(first, last + 1)
        }
        return done | set(range(self.stored.stable_offset))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.in_flight.remove(offset)
        self.finished.add(offset)
        self.member.finish(offset, offset)

    @rule(reaches=st.booleans(), answered=st.booleans(), individually=st.integers(0, 4).map(bool))
    def commit(self, reaches: bool, answered: bool, individually: bool) -> None:
        member = self.member
        if individually:
            commit = member.collect_commit(MAX_RANGES)
        else:
            member.forget_commits()
            commit = member.collect_plain_commit()
        if commit is None or not reaches:
            return
        self._store(commit)
        if answered:
            assert self.stored is not None
            member.on_committed(commit, self.stored.stable_offset)
        if not individually:
            member.forget_commits()

    def _store(self, commit: ProgressCommit) -> None:
        """The coordinator stores a commit; it refuses none."""
        if commit.plain:
            self.stored = individual_commit.KeyRangeProgress(commit.position)
            return
        (fields,) = commit.to_fields()["key_ranges"]
        ((_, _, checked),) = individual_commit.validate_commits(
            [KeyRangeRequest(**fields)], SETTINGS
        )
        self.stored = individual_commit.advance_progress(self.stored, checked, 1, SETTINGS)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), end=st.sampled_from(["commit", "abort", "death"]))
    def transact(self, data: st.DataObject, end: str) -> None:
        """A transaction finishes records, unless it aborts. The member may die at its end."""
        some = data.draw(st.sets(st.sampled_from(sorted(self.in_flight)), min_size=1))
        commit = self.member.make_commit(some)
        if end == "abort":
            return
        try:
            self._store(commit)
        except ApiError:  # Too many ranges: it must abort.
            return
        self.finished |= some
        if end == "death":
            self._start()
            return
        self.in_flight -= some
        self.member.on_transaction_committed(commit)

    @rule()
    def die(self) -> None:
        self._start()

    @rule(count=st.integers(1, 5))
    def retain(self, count: int) -> None:
        """Retention deletes the oldest records that were delivered; the members restart."""
        self.log_start = min(self.log_start + count, self.at)
        self.finished |= set(range(self.log_start))
        self._start()

    @invariant()
    def nothing_unfinished_is_committed(self) -> None:
        assert self._committed() <= self.finished | self.holes | set(range(self.log_start))

    def teardown(self) -> None:
        """A last member finishes the rest, and the stable offset reaches the end."""
        if not hasattr(self, "member"):
            return
        self._start()
        for _ in range(3 * LOG_END):
            self.fetch(5)
            for offset in sorted(self.in_flight):
                self.finished.add(offset)
                self.member.finish(offset, offset)
            self.in_flight.clear()
            commit = self.member.collect_commit(MAX_RANGES)
            if commit is not None:
                self._store(commit)
                assert self.stored is not None
                self.member.on_committed(commit, self.stored.stable_offset)
        assert self.stored == individual_commit.KeyRangeProgress(LOG_END)
        assert self.member.collect_commit(MAX_RANGES) is None
        everything = set(range(self.log_start, LOG_END)) - self.holes
        assert everything <= self.finished


Members.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=40, deadline=None
)
TestMembers = Members.TestCase


def test_an_earlier_start_replaces_the_commit() -> None:
    """The log was truncated below the position: what is committed must not skip new records."""
    member = PartitionProgress(20, [(25, 29)], committed=True)
    member.jump(30, 4)
    commit = member.collect_commit(MAX_RANGES)
    assert commit is not None
    assert (commit.position, commit.plain, commit.to_fields()) == (4, True, {})
    member.on_committed(commit, 4)
    assert member.collect_commit(MAX_RANGES) is None
    member.finish(6, 6)
    assert member.collect_commit(MAX_RANGES) == (4, ((6, 6),), False)


def test_a_transaction_is_not_committed_again() -> None:
    member = PartitionProgress(0, committed=True)
    commits = [member.make_commit([7, 0]), member.make_commit([5, 1])]
    assert commits == [(1, ((7, 7),), False), (0, ((1, 1), (5, 5)), False)]
    assert member.collect_commit(MAX_RANGES) is None
    for commit in commits:
        member.on_transaction_committed(commit)
    assert (member.position, member.ranges) == (2, 2)
    assert member.collect_commit(MAX_RANGES) is None
    member.finish(2, 2)
    assert member.collect_commit(MAX_RANGES) == (3, (), False)
    with pytest.raises(ValueError, match="offset 5 is finished already"):
        member.make_commit([4, 5])


def test_only_changes_are_committed_again() -> None:
    member = PartitionProgress(0, committed=True)
    for first in range(1, 40, 2):
        member.finish(first, first)
    commit = member.collect_commit(100)
    assert commit is not None
    assert len(commit.ranges) == 20
    member.on_committed(commit, 0)
    member.finish(10, 10)
    assert member.collect_commit(100) == (0, ((9, 11),), False)
    member.forget_commits()
    commit = member.collect_commit(100)
    assert commit is not None
    assert len(commit.ranges) == 19


def test_a_lower_limit_divides_a_commit() -> None:
    """A request never has more ranges than the limit, even if the coordinator has more."""
    member = PartitionProgress(0, [(o, o) for o in range(1, 20, 4)], committed=True)
    for first in range(2, 20, 4):
        member.finish(first, first)
    commit = member.collect_commit(2)
    assert commit is not None
    assert commit.ranges == ((1, 2), (5, 6))
    member.on_committed(commit, 0)
    assert member.collect_commit(2) == (0, ((9, 10), (13, 14)), False)


def test_a_lost_answer_counts_against_the_limit() -> None:
    """The coordinator may have stored what was not answered, so lower ranges wait."""
    member = PartitionProgress(0, committed=True)
    for offset in (5, 7, 9):
        member.finish(offset, offset)
    sent = (0, ((5, 5), (7, 7), (9, 9)), False)
    assert member.collect_commit(3) == sent
    for offset in (1, 3):
        member.finish(offset, offset)
    assert member.collect_commit(3) == sent
    member.forget_commits()
    commit = member.collect_commit(3)
    assert commit is not None
    assert commit.ranges == sent[1]
    member.on_committed(commit, 0)
    assert member.collect_commit(3) is None
    member.finish(6, 6)
    assert member.collect_commit(3) == (0, ((1, 1), (5, 7)), False)


def test_a_restart_at_the_limit_fetches_what_is_unfinished() -> None:
    member = PartitionProgress(1, [(2, 2), (4, 4), (19, 19)], committed=True)
    assert [member.should_fetch(at, 3) for at in (1, 3, 19, 20)] == [True, True, True, False]
    member.finish(1, 1)
    assert member.should_fetch(20, 3)
