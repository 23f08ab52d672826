"""Server-side assignors: their guarantees, over random groups (KIP-848, KIP-932)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.coordinator.group.assignment import GroupSpec, MemberSpec, flatten, group_by_topic
from shoal.coordinator.group.consumer import range_assignor, uniform_assignor
from shoal.coordinator.group.share import simple_assignor
from support.runs.example_counts import scale_examples

TOPICS = [UUID(int=n + 1) for n in range(4)]


@st.composite
def groups(draw, *, homogeneous=False, members_max=9, partitions_max=9):
    counts = {t: draw(st.integers(0, partitions_max)) for t in TOPICS}
    partitions = {t: list(range(n)) for t, n in counts.items()}
    everything = [(t, p) for t in TOPICS for p in partitions[t]]
    common = draw(st.frozensets(st.sampled_from(TOPICS)))
    members = {}
    for index in range(draw(st.integers(0, members_max))):
        topics = common if homogeneous else draw(st.frozensets(st.sampled_from(TOPICS)))
        held = draw(st.lists(st.sampled_from(everything), max_size=9)) if everything else []
        members[f"m{index:02}"] = MemberSpec(topics, group_by_topic(held))
    return GroupSpec(members, partitions)


def after(spec: GroupSpec, assigned, *, without=()):
    """Return the same group with `assigned` as the members' present partitions."""
    members = {
        m: MemberSpec(spec.members[m].topics, assigned.get(m, {}))
        for m in spec.members
        if m not in without
    }
    return GroupSpec(members, spec.partitions)


def sizes(assigned, members):
    return [len(flatten(assigned[m])) for m in members]


def moved(old: GroupSpec, new) -> int:
    """Count the (member, partition) pairs that are new."""
    return sum(
        len(set(flatten(new[m])) - set(flatten(old.members[m].assigned))) for m in old.members
    )


ALL = [
    uniform_assignor.assign,
    range_assignor.assign,
    simple_assignor.assign,
    simple_assignor.patch,
]


@pytest.mark.parametrize("assign", ALL, ids=["uniform", "range", "simple", "patch"])
@given(spec=groups())
def test_only_subscribed_and_assignable_partitions_are_assigned(assign, spec):
    assigned = assign(spec)
    assert sorted(assigned) == sorted(spec.members)
    for member, topics in assigned.items():
        assert all(topics.values())
        for topic, partition in flatten(topics):
            assert topic in spec.members[member].topics
            assert partition in spec.partitions[topic]


@pytest.mark.parametrize("assign", ALL, ids=["uniform", "range", "simple", "patch"])
@given(spec=groups())
def test_every_partition_of_a_subscribed_topic_has_a_member(assign, spec):
    read = {tp for topics in assign(spec).values() for tp in flatten(topics)}
    wanted = {t for m in spec.members.values() for t in m.topics}
    assert read == {(t, p) for t in wanted for p in spec.partitions[t]}


@pytest.mark.parametrize("assign", [uniform_assignor.assign, range_assignor.assign])
@given(spec=groups())
def test_consumer_assignors_give_a_partition_to_one_member(assign, spec):
    counts = Counter(tp for topics in assign(spec).values() for tp in flatten(topics))
    assert set(counts.values()) <= {1}


@pytest.mark.parametrize("assign", [uniform_assignor.assign, simple_assignor.assign])
@given(spec=groups())
def test_a_settled_group_stays_as_it_is(assign, spec):
    settled = assign(spec)
    assert assign(after(spec, settled)) == settled


@given(spec=groups(homogeneous=True))
def test_uniform_sizes_differ_by_at_most_one(spec):
    found = sizes(uniform_assignor.assign(spec), spec.members)
    assert not found or max(found) - min(found) <= 1


@given(spec=groups(homogeneous=True))
def test_uniform_moves_no_more_than_balance_asks_for(spec):
    """Twin: the fewest moves over every choice of members with the larger quota."""
    if not spec.members:
        return
    settled = uniform_assignor.assign(after(spec, {}))
    gone = sorted(spec.members)[: len(spec.members) // 2]
    left = after(spec, settled, without=gone)
    if not left.members:
        return
    assigned = uniform_assignor.assign(left)
    held = {m: len(flatten(s.assigned)) for m, s in left.members.items()}
    total = sum(sizes(assigned, left.members))
    quota, longer = divmod(total, len(held))
    fewest = min(
        sum(max(0, quota + (m in chosen) - held[m]) for m in held)
        for chosen in combinations(sorted(held), longer)
    )
    assert moved(left, assigned) == fewest


@given(spec=groups(members_max=4, partitions_max=3))
@settings(max_examples=scale_examples(100))
def test_uniform_is_as_even_as_subscriptions_allow(spec):
    """Twin: every possible assignment, compared by the sum of squares."""
    wanted = {t for m in spec.members.values() for t in m.topics}
    partitions = [(t, p) for t in sorted(wanted) for p in spec.partitions[t]][:6]
    cut = GroupSpec(
        spec.members, {t: [p for u, p in partitions if u == t] for t in spec.partitions}
    )
    takers = [[m for m in cut.members if t in cut.members[m].topics] for t, _ in partitions]
    best = min(sum(n * n for n in Counter(deal).values()) for deal in product(*takers))
    assert sum(n * n for n in sizes(uniform_assignor.assign(cut), cut.members)) == best


@given(spec=groups(homogeneous=True))
def test_range_gives_contiguous_runs_that_differ_by_at_most_one(spec):
    assigned = range_assignor.assign(spec)
    for topic in TOPICS:
        runs = [sorted(assigned[m].get(topic, ())) for m in sorted(assigned)]
        if any(runs):
            assert [p for run in runs for p in run] == sorted(spec.partitions[topic])
            assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_range_keeps_equal_numbered_partitions_together_and_static_members_in_place():
    topics = frozenset(TOPICS[:2])
    partitions = {t: range(5) for t in topics}
    before = GroupSpec(
        {"z": MemberSpec(topics, {}, "a-1"), "b": MemberSpec(topics, {})}, partitions
    )
    later = GroupSpec({"c": MemberSpec(topics, {}, "a-1"), "b": MemberSpec(topics, {})}, partitions)
    assert range_assignor.assign(before)["z"] == {t: frozenset({0, 1, 2}) for t in topics}
    assert range_assignor.assign(later)["c"] == range_assignor.assign(before)["z"]


@given(spec=groups(homogeneous=True))
def test_simple_shares_every_partition_alike(spec):
    assigned = simple_assignor.assign(spec)
    topics = next(iter(spec.members.values())).topics if spec.members else ()
    partitions = [(t, p) for t in topics for p in spec.partitions[t]]
    if not partitions:
        return
    sharing = -(-len(spec.members) // len(partitions))
    counts = Counter(tp for topics in assigned.values() for tp in flatten(topics))
    assert {counts[tp] for tp in partitions} == {sharing}
    found = sizes(assigned, spec.members)
    assert max(found) - min(found) <= 1
    assert min(found) >= (1 if len(partitions) <= len(spec.members) else 0)
    assert min(found) >= len(partitions) // len(spec.members)


@given(spec=groups())
def test_simple_shares_each_topic_alike_among_its_subscribers(spec):
    assigned = simple_assignor.assign(spec)
    if spec.homogeneous:
        return
    for topic in TOPICS:
        takers = [m for m in spec.members if topic in spec.members[m].topics]
        partitions = spec.partitions[topic]
        if not takers or not partitions:
            continue
        sharing = -(-len(takers) // len(partitions))
        counts = Counter(p for m in takers for p in assigned[m].get(topic, ()))
        assert {counts[p] for p in partitions} == {sharing}
        found = [len(assigned[m].get(topic, ())) for m in takers]
        assert max(found) - min(found) <= 1


@given(spec=groups(homogeneous=True, members_max=12))
def test_simple_moves_little_when_one_member_leaves(spec):
    """Each member gains at most the difference of its quotas, and one for a swap."""
    if len(spec.members) < 2:
        return
    settled = simple_assignor.assign(after(spec, {}))
    left = after(spec, settled, without=sorted(spec.members)[:1])
    assigned = simple_assignor.assign(left)
    lost = len(flatten(settled[min(spec.members)]))
    slots = sum(sizes(assigned, left.members))
    before = sum(len(flatten(m.assigned)) for m in left.members.values())
    assert moved(left, assigned) <= max(slots - before, 0) + 2 * lost + len(left.members)


@given(spec=groups())
def test_patch_moves_nothing_and_leaves_no_member_idle(spec):
    valid = simple_assignor.patch(spec)
    for member, topics in valid.items():
        kept = {
            (t, p)
            for t, p in flatten(spec.members[member].assigned)
            if t in spec.members[member].topics
        }
        assert kept <= set(flatten(topics))
        if any(spec.partitions[t] for t in spec.members[member].topics):
            assert topics
