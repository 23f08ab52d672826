"""The `simple` assignor of share groups (KIP-932): no member and no partition is left out.

With M members and P partitions, each partition goes to ceil(M / P) members. Each member has at
least one partition, and the numbers of partitions of the members differ by at most one. If
subscriptions differ, this is true for each topic. Members keep their partitions where balance
allows it.

`SimpleAssignment` is updated with each change, at a cost that does not depend on the size of the
group. `assign` and `patch` compute an assignment once, from a specification.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from shoal.coordinator.group.assignment import (
    Assignment,
    GroupSpec,
    MemberSpec,
    TopicIdPartition,
    flatten,
    group_by_topic,
)
from shoal.coordinator.group.share.leader_pool import LeaderPool
from shoal.coordinator.group.share.simple_assignor_pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

BY_LEADER = "leader"

_Topics = frozenset[UUID]
#: The one pool of a group whose members all have the same subscription.
_COMMON = None


class SimpleAssignment:
    """The assignment of one group.

    A group whose members all have the same subscription has one pool of partitions. Otherwise each
    topic has a pool. A change from one case to the other moves the whole group into new pools.
    """

    def __init__(
        self,
        members: Mapping[str, MemberSpec],
        partitions: Mapping[UUID, Collection[int]],
        find_leader: Callable[[TopicIdPartition], int] | None = None,
    ) -> None:
        """With `find_leader`, a member's partitions have few leaders: the `leader` assignor."""
        self._find_leader = find_leader
        self._topics: dict[str, _Topics] = {m: s.topics for m, s in members.items()}
        #: The number of members with each subscription.
        self._kinds = Counter(self._topics.values())
        self._partitions = {t: frozenset(p) for t, p in partitions.items() if p}
        self._changed: dict[str, None] = {}
        self._changes = 0
        self._pools: dict[UUID | None, Pool] = {}
        self._sort({m: flatten(members[m].assigned) for m in sorted(members)})

    # Changes.

    def put(self, member: str, topics: _Topics) -> None:
        """Add a member, or change its subscription."""
        before = self._topics.get(member)
        if before == topics:
            return
        self._topics[member] = topics
        self._kinds[topics] += 1
        self._uncount(before)
        if self._needs_sorting():
            self._resort()
        elif _COMMON in self._pools:
            self._pools[_COMMON].join(member)
        else:
            before = before or frozenset()
            self._leave(member, before - topics)
            for topic in topics - before:
                self._get_pool(topic).join(member)
        self._changed[member] = None

    def remove(self, member: str) -> None:
        topics = self._topics.pop(member)
        self._uncount(topics)
        if _COMMON in self._pools:
            self._pools[_COMMON].leave(member)
        else:
            self._leave(member, topics)
        if self._needs_sorting():
            self._resort()
        self._changed.pop(member, None)

    def set_partitions(self, partitions: Mapping[UUID, Collection[int]]) -> None:
        """Set the assignable partitions of all subscribed topics."""
        old, new = self._partitions, {t: frozenset(p) for t, p in partitions.items() if p}
        self._partitions = new
        for topic in sorted(old.keys() | new.keys()):
            pool = self._pools.get(_COMMON if _COMMON in self._pools else topic)
            if pool is None or old.get(topic) == new.get(topic):
                continue
            old_partitions, new_partitions = (
                old.get(topic, frozenset()),
                new.get(topic, frozenset()),
            )
            if self._is_read(topic):
                for index in sorted(old_partitions - new_partitions):
                    pool.remove((topic, index))
                for index in sorted(new_partitions - old_partitions):
                    pool.add((topic, index))

    def follow_leaders(self) -> None:
        """Take over the leaders of partitions that have others now."""
        for pool in self._pools.values():
            pool.follow_leaders()

    def _make_pool(self, weigh: Callable[[str], int]) -> Pool:
        if self._find_leader is None:
            return Pool(weigh, self._on_moved)
        return LeaderPool(weigh, self._on_moved, self._find_leader)

    def _uncount(self, topics: _Topics | None) -> None:
        if topics is not None:
            self._kinds[topics] -= 1
            if not self._kinds[topics]:
                del self._kinds[topics]

    def _leave(self, member: str, topics: Iterable[UUID]) -> None:
        for topic in topics:
            self._pools[topic].leave(member)
            if not self._pools[topic].owned:
                self._changes += self._pools.pop(topic).changes

    # Pools.

    def _is_read(self, topic: UUID) -> bool:
        return any(topic in kind for kind in self._kinds)

    def _needs_sorting(self) -> bool:
        """Whether the pools do not fit the subscriptions any more."""
        common = len(self._kinds) <= 1
        return common != (_COMMON in self._pools) or (common and self._common != self._read)

    @property
    def _read(self) -> _Topics:
        return frozenset().union(*self._kinds)

    def _resort(self) -> None:
        owned: dict[str, list[TopicIdPartition]] = {m: [] for m in self._topics}
        for pool in self._pools.values():
            self._changes += pool.changes
            for member, partitions in pool.owned.items():
                if member in owned:
                    owned[member] += partitions
        self._pools.clear()
        self._sort(owned)

    def _sort(self, owned: Mapping[str, Iterable[TopicIdPartition]]) -> None:
        """Create the pools. Members keep the partitions that they may have."""
        self._changed = dict.fromkeys(owned)
        self._common = self._read if len(self._kinds) <= 1 else frozenset()
        if len(self._kinds) <= 1:
            pool = self._pools[_COMMON] = self._make_pool(lambda _: 0)
            for topic in sorted(self._common):
                self._stock(pool, topic)
            for member, partitions in owned.items():
                pool.join(member, partitions)
        else:
            for member, partitions in owned.items():
                for topic in sorted(self._topics[member]):
                    own = [tp for tp in partitions if tp[0] == topic]
                    self._get_pool(topic).join(member, own)

    def _get_pool(self, topic: UUID) -> Pool:
        """The pool of a topic, in a group with different subscriptions."""
        pool = self._pools.get(topic)
        if pool is None:
            pool = self._pools[topic] = self._make_pool(self._compute_load)
            self._stock(pool, topic)
        return pool

    def _stock(self, pool: Pool, topic: UUID) -> None:
        for index in sorted(self._partitions.get(topic, ())):
            pool.add((topic, index))

    def _compute_load(self, member: str) -> int:
        pools = (self._pools.get(topic) for topic in self._topics[member])
        return sum(len(pool.owned.get(member, ())) for pool in pools if pool is not None)

    def _on_moved(self, member: str) -> None:
        self._changed[member] = None

    # Assignment.

    def fill(self, moves_max: int) -> bool:
        """Assign members without partitions and partitions without members; move nothing.

        Makes at most about `moves_max` changes. Returns whether none is left.
        """
        return self._run_in_pools(lambda pool, moves: pool.fill(moves), moves_max)

    def settle(self, moves_max: int) -> bool:
        """Restore balance, with at most about `moves_max` changes. Returns whether it is
        balanced."""
        return self._run_in_pools(lambda pool, moves: pool.settle(moves), moves_max)

    def _run_in_pools(self, step: Callable[[Pool, int], bool], moves_max: int) -> bool:
        end = self.changes + moves_max
        return all(step(pool, end - self.changes) for pool in self._pools.values())

    @property
    def fewest_readers(self) -> int:
        """The number of members of the assigned partition with the fewest; 0 if none is
        assigned."""
        return min((p.fewest_readers for p in self._pools.values() if p.readers), default=0)

    @property
    def changes(self) -> int:
        """Pairs of member and partition added or removed so far: the cost of the changes."""
        return self._changes + sum(pool.changes for pool in self._pools.values())

    def get_assignment(self, member: str) -> Assignment:
        topics = self._topics[member]
        pools = (self._pools[t] for t in ([_COMMON] if _COMMON in self._pools else sorted(topics)))
        return group_by_topic(tp for pool in pools for tp in pool.owned[member])

    def take_changed(self) -> list[str]:
        """Members whose partitions may have changed since the last call, in order of their ids."""
        changed, self._changed = sorted(self._changed), {}
        return [member for member in changed if member in self._topics]


def assign(spec: GroupSpec) -> dict[str, Assignment]:
    """The balanced assignment of every member."""
    assignment = SimpleAssignment(spec.members, spec.partitions)
    while not assignment.settle(1_000):
        pass
    return {m: assignment.get_assignment(m) for m in sorted(spec.members)}


def patch(spec: GroupSpec) -> dict[str, Assignment]:
    """The assignments, with only the missing parts added."""
    assignment = SimpleAssignment(spec.members, spec.partitions)
    while not assignment.fill(1_000):
        pass
    return {m: assignment.get_assignment(m) for m in sorted(spec.members)}
