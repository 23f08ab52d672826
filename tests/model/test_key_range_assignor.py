"""Assignments that split partitions by key ranges: their guarantees, over random groups."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.coordinator.group.assignment import GroupSpec, MemberSpec, flatten
from shoal.coordinator.group.consumer import range_assignor, uniform_assignor
from shoal.coordinator.group.key_ranges import key_range_assignor
from shoal.coordinator.group.key_ranges.key_slots import (
    ALL,
    SLOTS,
    from_ranges,
    overlapping_slots,
    take_lowest,
    to_ranges,
)
from shoal.protocol.features import KEY_HASH_MAX
from support.runs.example_counts import scale_examples

TOPICS = [UUID(int=n + 1) for n in range(3)]
ASSIGNORS = pytest.mark.parametrize("assignor", [uniform_assignor.assign, range_assignor.assign])
#: Whole partitions and slices by member.
Result = tuple[Any, Any]


def spec_of(
    counts: dict[UUID, int],
    members: dict[str, bool],
    before: Result = ({}, {}),
    *,
    topics: dict[str, frozenset[UUID]] | None = None,
    splittable: frozenset[UUID] = frozenset(TOPICS),
) -> GroupSpec:
    """A group in which `members` share or not, with their last assignment."""
    subscribed = frozenset(counts)
    specs = {
        m: MemberSpec(
            subscribed if topics is None else topics[m],
            before[0].get(m, {}),
            None,
            shares,
            before[1].get(m, {}),
        )
        for m, shares in members.items()
    }
    partitions = {t: range(n) for t, n in counts.items()}
    return GroupSpec(specs, partitions, splittable & subscribed)


def sharing(count: int) -> dict[str, bool]:
    return {f"m{n:02}": True for n in range(count)}


def slots(result: Result, member: str) -> dict[tuple[UUID, int], int]:
    """All slots of a member by partition."""
    whole = dict.fromkeys(flatten(result[0].get(member, {})), ALL)
    return whole | result[1].get(member, {})


def owners(result: Result, topic: UUID) -> list[int]:
    """The number of owners of each partition of a topic, the most first."""
    found = Counter(
        partition for m in result[0] for (t, partition) in slots(result, m) if t == topic
    )
    return sorted(found.values(), reverse=True)


@ASSIGNORS
def test_the_examples_of_the_draft(assignor: Any) -> None:
    a, b, _ = TOPICS
    result = key_range_assignor.assign(spec_of({a: 3}, sharing(5)), assignor)
    assert owners(result, a) == [2, 2, 1]
    result = key_range_assignor.assign(spec_of({a: 2, b: 3}, sharing(5)), assignor)
    assert owners(result, a) == [3, 2]
    assert owners(result, b) == [2, 2, 1]
    for count in range(1, 4):
        result = key_range_assignor.assign(spec_of({a: 3}, sharing(count)), assignor)
        assert result == (assignor(spec_of({a: 3}, sharing(count))), {})


@ASSIGNORS
def test_plain_members_get_whole_partitions(assignor: Any) -> None:
    (a, *_), plain = TOPICS, {"p0": False, "p1": False}
    whole, slices = key_range_assignor.assign(spec_of({a: 4}, plain | sharing(6)), assignor)
    assert [len(whole[p][a]) for p in plain] == [1, 1]
    assert owners((whole, slices), a) == [3, 3, 1, 1]
    # The last partition is for those that can share it.
    whole, slices = key_range_assignor.assign(spec_of({a: 1}, plain | sharing(2)), assignor)
    assert [whole[p] for p in plain] == [{}, {}]
    assert owners((whole, slices), a) == [2]
    # A plain member keeps its partition when others share.
    alone: Result = (assignor(spec_of({a: 2}, plain)), {})
    mixed = key_range_assignor.assign(spec_of({a: 2}, plain | sharing(3), alone), assignor)
    kept = [p for p in plain if mixed[0][p] and mixed[0][p] == alone[0][p]]
    assert len(kept) == 1
    assert owners(mixed, a) == [3, 1]


@ASSIGNORS
def test_a_topic_that_does_not_allow_it_is_not_split(assignor: Any) -> None:
    a, b, _ = TOPICS
    spec = spec_of({a: 1, b: 1}, sharing(4), splittable=frozenset({b}))
    result = key_range_assignor.assign(spec, assignor)
    assert (owners(result, a), owners(result, b)) == ([1], [4])


@st.composite
def histories(draw: st.DrawFn) -> list[GroupSpec]:
    """Changes of a group: which members it has, and which of them share and subscribe to what."""
    counts = {t: draw(st.integers(0, 5)) for t in TOPICS}
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        names = draw(st.frozensets(st.sampled_from([f"m{n:02}" for n in range(12)])))
        members = {m: draw(st.booleans()) or draw(st.booleans()) for m in sorted(names)}
        topics = {
            m: draw(st.sampled_from([frozenset(TOPICS), frozenset(TOPICS[:2])])) for m in members
        }
        splittable = draw(st.frozensets(st.sampled_from(TOPICS)))
        steps.append(spec_of(counts, members, topics=topics, splittable=splittable))
    return steps


@ASSIGNORS
@settings(max_examples=scale_examples(50))
@given(steps=histories())
def test_every_slot_has_one_owner(assignor: Any, steps: list[GroupSpec]) -> None:
    """The owners of a partition of a subscribed topic tile it. They subscribe to the topic, parts
    are for members that share, and nobody else gets anything."""
    before: Result = ({}, {})
    for step in steps:
        members = {m: one.shares for m, one in step.members.items()}
        topics = {m: one.topics for m, one in step.members.items()}
        counts = {t: len(p) for t, p in step.partitions.items()}
        spec = spec_of(counts, members, before, topics=topics, splittable=step.splittable)
        before = key_range_assignor.assign(spec, assignor)
        assert before[0].keys() == spec.members.keys()
        taken: dict[tuple[UUID, int], int] = {}
        for member, one in spec.members.items():
            for where, mine in slots(before, member).items():
                assert where[0] in one.topics
                assert mine
                assert mine == ALL or (one.shares and where[0] in spec.splittable)
                assert not taken.get(where, 0) & mine
                taken[where] = taken.get(where, 0) | mine
        wanted = {t for one in spec.members.values() for t in one.topics}
        assert taken == {(t, p): ALL for t in wanted for p in range(counts[t])}
        assert key_range_assignor.assign(spec, assignor) == before


@given(data=st.data(), partitions=st.integers(1, 4), count=st.integers(1, 20))
def test_few_hashes_move(data: st.DataObject, partitions: int, count: int) -> None:
    """A member that joins gets its share, and that of one that leaves goes to others. With one
    partition, nothing else moves."""
    topic = TOPICS[0]
    count = max(count, partitions)
    members = sharing(count)
    assign = key_range_assignor.assign
    before = assign(spec_of({topic: partitions}, members), uniform_assignor.assign)
    if data.draw(st.booleans()):
        members = {**members, "new": True}
    else:
        members.pop(data.draw(st.sampled_from(sorted(members))))
    if len(members) <= partitions:
        return
    after = assign(spec_of({topic: partitions}, members, before), uniform_assignor.assign)
    moved = sum(
        (now & ~slots(before, m).get(where, 0)).bit_count()
        for m in members
        for where, now in slots(after, m).items()
    )
    smaller = min(count, len(members)) // partitions
    # One share moves. With several partitions, a member may have to go to another one, which it
    # may get as a whole, and then leaves its part to others.
    share = -(-SLOTS // max(count, len(members)))
    assert moved <= (SLOTS + SLOTS // 2 if partitions > 1 else share)
    assert moved <= 2 * -(-SLOTS // max(smaller, 1))


@given(slots=st.integers(0, ALL))
def test_slots_are_key_ranges(slots: int) -> None:
    ranges = to_ranges(slots)
    assert from_ranges(ranges) == slots
    assert ranges == sorted(ranges)
    assert all(a[1] + 1 < b[0] for a, b in pairwise(ranges))
    for first, last in ranges:
        assert overlapping_slots(first, last) & ~slots == 0
    for count in (0, 1, 100):
        fewer = take_lowest(slots, count)
        assert fewer & ~slots == 0
        assert fewer.bit_count() == min(count, slots.bit_count())


def test_the_slots_of_all_hashes() -> None:
    assert to_ranges(ALL) == [(0, KEY_HASH_MAX)]
    assert overlapping_slots(5, 5) == 1
    assert overlapping_slots(KEY_HASH_MAX, KEY_HASH_MAX) == 1 << (SLOTS - 1)
    for broken in ((0, 5), (1, KEY_HASH_MAX), (0, KEY_HASH_MAX + 1), (-1, 5)):
        with pytest.raises(ValueError, match="was not assigned"):
            from_ranges([broken])
