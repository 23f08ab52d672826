"""The incremental `simple` assignor over thousands of random changes, and the cost of a change."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.coordinator.group.assignment import MemberSpec, flatten
from shoal.coordinator.group.share.simple_assignor import SimpleAssignment
from support.runs.example_counts import scale_examples

TOPICS = [UUID(int=n + 1) for n in range(4)]
CHANGES = 250


class Group:
    """A group beside its assignment: plain dicts, and the rules."""

    def __init__(self, random: Random, *, homogeneous: bool) -> None:
        self.random, self.homogeneous = random, homogeneous
        self.counts = {t: random.choice([0, 1, 3, 12]) for t in TOPICS}
        self.members: dict[str, frozenset[UUID]] = {}
        self.assignment = SimpleAssignment({}, self.partitions)
        self.made = 0

    @property
    def partitions(self):
        read = {t for topics in self.members.values() for t in topics}
        return {t: range(n) for t, n in self.counts.items() if t in read}

    def pairs(self):
        of = self.assignment.get_assignment
        return {(m, (t, p)) for m in self.members for t, own in of(m).items() for p in own}

    # Changes.

    def subscription(self):
        if self.homogeneous:
            return frozenset(TOPICS[:2])
        return frozenset(self.random.sample(TOPICS, self.random.choice([0, 1, 1, 2, 4])))

    def join(self):
        self.made += 1
        self._put(f"m{self.random.randrange(1_000):03}-{self.made}", self.subscription())

    def _put(self, member, topics):
        self.members[member] = topics
        self.assignment.set_partitions(self.partitions)
        self.assignment.put(member, topics)

    def leave(self):
        if self.members:
            member = self.random.choice(sorted(self.members))
            del self.members[member]
            self.assignment.remove(member)
            self.assignment.set_partitions(self.partitions)

    def subscribe(self):
        if self.members:
            self._put(self.random.choice(sorted(self.members)), self.subscription())
            self.assignment.set_partitions(self.partitions)

    def resize(self):
        topic = self.random.choice(TOPICS)
        grown = self.counts[topic] + self.random.randrange(1, 5)
        self.counts[topic] = self.random.choice([0, grown, grown])
        self.assignment.set_partitions(self.partitions)

    def change(self):
        growing = self.random.random() < 0.5 + 0.4 * (len(self.members) < 40)
        common = self.join if growing else self.leave
        changes = [common] * 12 + [self.resize] + [self.subscribe] * 2
        self.random.choice(changes)()

    # Rules.

    def check_gaps(self):
        """Check that no member that could read is idle, and that every partition has a reader.
        Return the pairs."""
        pairs, partitions = self.check_pairs(), self.partitions
        busy = {member for member, _ in pairs}
        for member, topics in self.members.items():
            assert member in busy or not any(partitions[t] for t in topics)
        readers = Counter(tp for _, tp in pairs)
        assert readers.keys() == {(t, p) for t, indexes in partitions.items() for p in indexes}
        assert self.assignment.fewest_readers == min(readers.values(), default=0)
        return pairs

    def check_pairs(self):
        """Check that members have partitions of their topics. Return the pairs."""
        pairs, partitions = self.pairs(), self.partitions
        for member, (topic, index) in pairs:
            assert topic in self.members[member]
            assert index in partitions[topic]
        return pairs

    def check_balance(self):
        """Check the rules of the full assignment (KIP-932), in common or topic by topic. Return the
        pairs."""
        pairs, every = self.check_gaps(), self.partitions
        kinds = set(self.members.values())
        pools = [kinds.pop()] if len(kinds) == 1 else [{t} for t in every]
        for topics in pools:
            takers = [m for m, own in self.members.items() if topics <= own]
            partitions = [(t, p) for t in topics for p in every[t]]
            if not partitions or not takers:
                continue
            here = [(m, tp) for m, tp in pairs if tp[0] in topics]
            counts = Counter(tp for _, tp in here)
            assert {counts[tp] for tp in partitions} == {-(-len(takers) // len(partitions))}
            sizes = Counter(m for m, _ in here)
            found = [sizes[m] for m in takers]
            assert max(found) - min(found) <= 1
            assert min(found) >= 1
        return pairs


@given(seed=st.integers(0, 2**32), homogeneous=st.booleans())
@settings(max_examples=scale_examples(12))
def test_random_changes_keep_the_rules(seed, homogeneous):
    """Gaps are filled at once without moves; balance comes in steps, and is then kept."""
    random = Random(seed)
    group = Group(random, homogeneous=homogeneous)
    for _ in range(CHANGES):
        group.change()
        before = group.check_pairs()
        if random.random() < 0.5:
            while not group.assignment.fill(random.choice([1, 3, 100])):
                assert before <= group.pairs()
            assert before <= group.pairs()
            group.check_gaps()
        if random.random() < 0.5:
            while not group.assignment.settle(random.choice([1, 3, 100])):
                group.check_pairs()
            settled, changes = group.check_balance(), group.assignment.changes
            assert group.assignment.settle(1)
            assert group.assignment.changes == changes
            # A SimpleAssignment that is built from the members' partitions keeps all of them.
            held = {
                m: MemberSpec(t, group.assignment.get_assignment(m))
                for m, t in group.members.items()
            }
            again = SimpleAssignment(held, group.partitions)
            assert again.settle(1)
            assert settled == {(m, tp) for m in held for tp in flatten(again.get_assignment(m))}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=scale_examples(20))
def test_a_join_or_leave_moves_what_balance_needs(seed):
    """Others give up what the new member gets, or get what a member leaves, give or take two.

    If the number of members of each partition changes, each partition has one more change.
    """
    random = Random(seed)
    group = Group(random, homogeneous=True)
    group.counts = {t: random.choice([1, 4, 10]) for t in TOPICS}
    total = sum(group.counts[t] for t in TOPICS[:2])
    each = 0
    for _ in range(CHANGES):
        before, members = group.pairs(), set(group.members)
        random.choice([group.join, group.join, group.leave])()
        group.assignment.settle(10_000)
        after, common = group.pairs(), members & group.members.keys()
        moved = sum(m in common for m, _ in before ^ after)
        own = sum(m not in common for m, _ in before ^ after)
        was, each = each, -(-len(group.members) // total)
        assert moved <= own + 4 + (2 * total if was != each else 0), (moved, own, total)


@pytest.mark.parametrize("partitions", [1, 64, 3_000])
def test_the_cost_of_a_change_does_not_depend_on_the_size_of_the_group(partitions):
    """Counts pairs that are made and removed; join and leave include the moves that follow."""
    costs = []
    for size in (100, 10_000):
        members = {f"m{n}": MemberSpec(frozenset(TOPICS[:1]), {}) for n in range(size)}
        assignment = SimpleAssignment(members, {TOPICS[0]: range(partitions)})
        while not assignment.settle(1_000):
            pass
        before = assignment.changes
        for n in range(50):
            assignment.put(f"new{n}", frozenset(TOPICS[:1]))
            assignment.settle(10_000)
        for n in range(50):
            assignment.remove(f"new{n}")
            assignment.settle(10_000)
        costs.append((assignment.changes - before) / 100)
    small, large = costs
    assert large <= 2 * small + 2, costs
