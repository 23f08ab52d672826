"""The `uniform` assignor of consumer groups (KIP-848): balanced first, then sticky.

Every assignable partition of a subscribed topic goes to exactly one subscriber. With equal
subscriptions the sizes of the assignments differ by at most one, and as few partitions move as
that allows.

With unequal subscriptions the sizes are as even as the subscriptions permit. No member could give a
partition to a member that has at least two fewer. No chain of members could do so either, in which
each gives a partition to the next. This is an optimal semi-matching, and the chains are its
cost-reducing paths (Harvey, Ladner, Lovasz, Tamir: "Semi-matchings for bipartite graphs and load
balancing").
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from shoal.coordinator.group.assignment import (
    Assignment,
    GroupSpec,
    TopicIdPartition,
    find_subscribers,
    flatten,
    group_by_topic,
)

if TYPE_CHECKING:
    from uuid import UUID

NAME = "uniform"


def assign(spec: GroupSpec) -> dict[str, Assignment]:
    """The target assignment of every member."""
    if not spec.members:
        return {}
    owned, free = _keep_partitions(spec)
    if spec.homogeneous:
        _fill_quotas(owned, free)
    else:
        _Balance(spec, owned).settle(free)
    return {m: group_by_topic(owned[m]) for m in sorted(owned)}


def _keep_partitions(
    spec: GroupSpec,
) -> tuple[dict[str, list[TopicIdPartition]], list[TopicIdPartition]]:
    """The partitions that members keep, and those without a member. A partition has one member."""
    topics = {t for m in spec.members.values() for t in m.topics}
    free = {(t, p) for t in sorted(topics) for p in spec.partitions.get(t, ())}
    owned: dict[str, list[TopicIdPartition]] = {}
    for member_id in sorted(spec.members):
        member = spec.members[member_id]
        kept = [tp for tp in flatten(member.assigned) if tp[0] in member.topics and tp in free]
        free.difference_update(kept)
        owned[member_id] = kept
    return owned, sorted(free)


def _fill_quotas(owned: dict[str, list[TopicIdPartition]], free: list[TopicIdPartition]) -> None:
    total = len(free) + sum(map(len, owned.values()))
    quota, longer = divmod(total, len(owned))
    # The members with most partitions get the longer quotas, which moves the fewest partitions.
    order = sorted(owned, key=lambda m: (-len(owned[m]), m))
    quotas = {m: quota + (index < longer) for index, m in enumerate(order)}
    for member in order:
        free += owned[member][quotas[member] :]
        del owned[member][quotas[member] :]
    begin = 0
    for member in sorted(owned):
        missing = quotas[member] - len(owned[member])
        owned[member] += free[begin : begin + missing]
        begin += missing


class _Balance:
    """Moves partitions between members of unequal subscriptions until they are balanced."""

    def __init__(self, spec: GroupSpec, owned: dict[str, list[TopicIdPartition]]) -> None:
        self.owned = owned
        self.takers = {t: list(find_subscribers(spec, t)) for t in sorted(spec.partitions)}
        self.by_topic: dict[str, dict[UUID, list[int]]] = {m: {} for m in owned}
        for member, partitions in owned.items():
            for topic, partition in partitions:
                self.by_topic[member].setdefault(topic, []).append(partition)
        self.load = {m: len(partitions) for m, partitions in owned.items()}

    def settle(self, free: list[TopicIdPartition]) -> None:
        # Topics with the fewest subscribers come first: their partitions have the least choice.
        for topic, partition in sorted(free, key=lambda tp: (len(self.takers[tp[0]]), tp)):
            taker = min(self.takers[topic], key=lambda m: (self.load[m], m))
            self._give(taker, topic, partition)
        while self._improve():
            pass
        for member, topics in self.by_topic.items():
            self.owned[member] = [(t, p) for t in topics for p in topics[t]]

    def _improve(self) -> bool:
        """Move along one path from a loaded member to one with at least two fewer, if any."""
        for member in sorted(self.load, key=lambda m: (-self.load[m], m)):
            path = self._find_path(member)
            if path:
                for giver, topic, taker in path:
                    self._give(taker, topic, self._take(giver, topic))
                return True
        return False

    def _find_path(self, start: str) -> list[tuple[str, UUID, str]]:
        """The shortest chain of (giver, topic, taker) from `start`; empty if there is none."""
        limit = self.load[start] - 2
        came: dict[str, tuple[str, UUID, str] | None] = {start: None}
        visited_topics: set[UUID] = set()
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for topic in sorted(self.by_topic[giver]):
                if topic in visited_topics:
                    continue
                visited_topics.add(topic)
                for taker in self.takers[topic]:
                    if taker in came:
                        continue
                    came[taker] = (giver, topic, taker)
                    if self.load[taker] <= limit:
                        return self._trace_back(came, taker)
                    queue.append(taker)
        return []

    @staticmethod
    def _trace_back(
        came: dict[str, tuple[str, UUID, str] | None], end: str
    ) -> list[tuple[str, UUID, str]]:
        path = []
        step = came[end]
        while step is not None:
            path.append(step)
            step = came[step[0]]
        return path[::-1]

    def _give(self, member: str, topic: UUID, partition: int) -> None:
        self.by_topic[member].setdefault(topic, []).append(partition)
        self.load[member] += 1

    def _take(self, member: str, topic: UUID) -> int:
        partitions = self.by_topic[member][topic]
        partition = partitions.pop()
        if not partitions:
            del self.by_topic[member][topic]
        self.load[member] -= 1
        return partition
