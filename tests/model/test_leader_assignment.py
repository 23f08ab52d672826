"""The `leader` assignor of share groups: balanced like `simple`, with few leaders for a member."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.coordinator.group.assignment import MemberSpec, TopicIdPartition, flatten
from shoal.coordinator.group.share.simple_assignor import SimpleAssignment
from support.runs.example_counts import scale_examples

TOPICS = [UUID(int=n + 1) for n in range(2)]
Holdings = dict[str, set[TopicIdPartition]]


class Group:
    """A group whose members read both topics, beside its assignment."""

    def __init__(self, partitions: int, brokers: int, random: Random | None = None) -> None:
        self.brokers, self.random = brokers, random
        self.partitions = [(t, n) for n in range(partitions) for t in TOPICS][:partitions]
        draw = None if random is None else random.randrange
        self.leaders = {
            tp: n % brokers if draw is None else draw(brokers)
            for n, tp in enumerate(self.partitions)
        }
        self.members: list[str] = []
        self.joined = 0
        self.assignment = SimpleAssignment({}, self.by_topic, self.leaders.__getitem__)

    @property
    def by_topic(self) -> dict[UUID, list[int]]:
        return {t: [n for topic, n in self.partitions if topic == t] for t in TOPICS}

    def join(self) -> None:
        self.joined += 1
        self.members.append(f"m{self.joined}")
        self.assignment.put(self.members[-1], frozenset(TOPICS))
        self.assignment.set_partitions(self.by_topic)

    def leave(self) -> None:
        self.assignment.remove(self.members.pop(0))

    def settle(self) -> None:
        while not self.assignment.settle(3):
            pass

    @property
    def holdings(self) -> Holdings:
        return {m: set(flatten(self.assignment.get_assignment(m))) for m in self.members}

    def count_leaders(self) -> list[int]:
        """Return how many leaders the partitions of each member have."""
        return [len({self.leaders[tp] for tp in own}) for own in self.holdings.values()]

    def rate(self, owned: Holdings) -> int:
        """Return the sum that each trade raises."""
        shares = (Counter(self.leaders[tp] for tp in own) for own in owned.values())
        return sum(count**2 for share in shares for count in share.values())

    def check(self) -> None:
        """Check the balance, and that no trade between two members gathers more."""
        owned = self.holdings
        readers = Counter(tp for own in owned.values() for tp in own)
        each = -(-len(self.members) // len(self.partitions))
        assert readers == dict.fromkeys(self.partitions, each)
        sizes = [len(own) for own in owned.values()]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        rating = self.rate(owned)
        for a, b in permutations(self.members, 2):
            wanted = self._find_wanted(owned[a])
            for sent in owned[a] - owned[b]:
                if self.leaders[sent] == wanted:
                    continue
                if len(owned[a]) > len(owned[b]):
                    self._check_trade(owned, rating, (a, {sent}), (b, set()))
                for taken in owned[b] - owned[a]:
                    if self.leaders[taken] == wanted:
                        self._check_trade(owned, rating, (a, {sent}), (b, {taken}))

    def _find_wanted(self, own: set[TopicIdPartition]) -> int:
        shares = Counter(self.leaders[tp] for tp in own)
        return max(shares, key=lambda leader: (shares[leader], -leader))

    def _check_trade(
        self,
        owned: Holdings,
        rating: int,
        one: tuple[str, set[TopicIdPartition]],
        other: tuple[str, set[TopicIdPartition]],
    ) -> None:
        (a, sent), (b, taken) = one, other
        after = {**owned, a: owned[a] - sent | taken, b: owned[b] - taken | sent}
        assert self.rate(after) <= rating, (a, sent, b, taken)


@given(seed=st.integers(0, 2**32), partitions=st.integers(1, 14), brokers=st.integers(1, 5))
@settings(max_examples=scale_examples(40))
def test_it_is_balanced_and_no_trade_gathers_more(seed: int, partitions: int, brokers: int) -> None:
    """After each join, leave, or move of leaders; and a settled group stays as it is."""
    random = Random(seed)
    group = Group(partitions, brokers, random)
    for _ in range(12):
        if group.members and random.random() < 0.3:
            group.leave()
        elif random.random() < 0.2:
            group.leaders[random.choice(group.partitions)] = random.randrange(brokers)
            group.assignment.follow_leaders()
        else:
            group.join()
        if not group.members:
            continue
        group.settle()
        group.check()
        before, changes = group.holdings, group.assignment.changes
        held = {
            m: MemberSpec(frozenset(TOPICS), group.assignment.get_assignment(m))
            for m in group.members
        }
        again = SimpleAssignment(held, group.by_topic, group.leaders.__getitem__)
        assert again.settle(1)
        assert {m: set(flatten(again.get_assignment(m))) for m in held} == before
        assert group.assignment.settle(1)
        assert group.assignment.changes == changes


@pytest.mark.parametrize(
    ("partitions", "brokers", "members", "leaders"),
    [
        (12, 3, 3, [1, 1, 1]),
        (12, 3, 6, [1] * 6),
        # Two leaders have one partition each, and a third has two.
        (4, 3, 3, [1, 1, 1]),
        # Three members have three of the four partitions of a leader; what is left is of all three.
        (12, 3, 4, [1, 1, 1, 3]),
        (30, 3, 3, [1, 1, 1]),
        (12, 3, 2, [2, 2]),
        (12, 3, 24, [1] * 24),
    ],
)
def test_members_have_few_leaders(
    partitions: int, brokers: int, members: int, leaders: list[int]
) -> None:
    group = Group(partitions, brokers)
    for _ in range(members):
        group.join()
        group.assignment.fill(100)
    group.settle()
    group.check()
    assert sorted(group.count_leaders()) == leaders


def test_the_cost_of_a_change_does_not_depend_on_the_size_of_the_group() -> None:
    """Pairs that are made and removed by a join and a leave, in a small group and a large one."""
    costs = []
    for size in (15, 150):
        group = Group(10 * size, 3)
        for _ in range(size):
            group.join()
        group.settle()
        before = group.assignment.changes
        group.join()
        group.settle()
        group.leave()
        group.settle()
        costs.append(group.assignment.changes - before)
    assert costs[1] <= 4 * costs[0]
