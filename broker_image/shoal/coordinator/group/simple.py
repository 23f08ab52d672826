"""The `simple` assignor of share groups (KIP-932): every member has work, every partition is read.

With M members and P partitions each partition goes to ceil(M / P) members, each member has at least
one partition, and the sizes of the members' assignments differ by at most one. Where members differ
in their subscriptions, that holds topic by topic. What is held stays where balance allows it.

`patch` is the cheap half of it, for the time between two full assignments (KIP-1263): it moves
nothing, gives a member without work the partition with the fewest members, and a partition that
lost its last member the member with the fewest partitions.
"""

from __future__ import annotations

from uuid import UUID

from shoal.coordinator.group.assignment import (
    Assignment,
    GroupSpec,
    TopicIdPartition,
    flat,
    grouped,
    subscribed,
)

NAME = "simple"

_Held = dict[str, set[TopicIdPartition]]


def assign(spec: GroupSpec) -> dict[str, Assignment]:
    """The target assignment of every member."""
    if not spec.members:
        return {}
    old = _still_valid(spec)
    new: _Held = {m: set() for m in sorted(spec.members)}
    if spec.homogeneous:
        topics = next(iter(spec.members.values())).topics
        _Sharing(_all(spec, sorted(topics)), sorted(spec.members), old, new).share()
    else:
        for topic in sorted(spec.partitions):
            _Sharing(_all(spec, [topic]), list(subscribed(spec, topic)), old, new).share()
    return {m: grouped(new[m]) for m in new}


def patch(spec: GroupSpec) -> dict[str, Assignment]:
    """The assignments with every gap filled and nothing moved."""
    held = _still_valid(spec)
    readers = dict.fromkeys(_all(spec, sorted(spec.partitions)), 0)
    for member in held:
        for tp in held[member]:
            readers[tp] += 1
    for member in sorted(held):
        choice = [tp for tp in readers if tp[0] in spec.members[member].topics]
        if not held[member] and choice:
            tp = min(choice, key=lambda tp: (readers[tp], tp))
            held[member].add(tp)
            readers[tp] += 1
    for tp in sorted(tp for tp in readers if not readers[tp]):
        takers = list(subscribed(spec, tp[0]))
        if takers:
            held[min(takers, key=lambda m: (len(held[m]), m))].add(tp)
    return {m: grouped(held[m]) for m in held}


def _all(spec: GroupSpec, topics: list[UUID]) -> list[TopicIdPartition]:
    return [(t, p) for t in topics for p in sorted(spec.partitions.get(t, ()))]


def _still_valid(spec: GroupSpec) -> _Held:
    """What members hold of what they are subscribed to and what may be assigned."""
    open_ = set(_all(spec, sorted(spec.partitions)))
    return {
        m: {tp for tp in flat(spec.members[m].assigned) if tp[0] in spec.members[m].topics} & open_
        for m in sorted(spec.members)
    }


class _Sharing:
    """Deals `partitions` to `members`, each partition to the same number of them."""

    def __init__(
        self,
        partitions: list[TopicIdPartition],
        members: list[str],
        old: _Held,
        new: _Held,
    ) -> None:
        self.partitions, self.members, self.new = partitions, members, new
        scope = set(partitions)
        self.old = {m: sorted(old[m] & scope) for m in members}
        #: What each member gets here; `new` adds up over the topics.
        self.held: _Held = {m: set() for m in members}
        self.room: dict[TopicIdPartition, int] = {}
        self.missing: dict[str, int] = {}

    def share(self) -> None:
        if not self.partitions or not self.members:
            return
        self._set_quotas()
        self._keep()
        self._fill()
        for member in self.members:
            self.new[member] |= self.held[member]

    def _set_quotas(self) -> None:
        sharing = -(-len(self.members) // len(self.partitions))
        self.room = dict.fromkeys(self.partitions, sharing)
        quota, longer = divmod(sharing * len(self.partitions), len(self.members))
        # The longer quotas go to who holds most here, then to who has least from other topics.
        order = sorted(self.members, key=lambda m: (-len(self.old[m]), len(self.new[m]), m))
        self.missing = {m: quota + (index < longer) for index, m in enumerate(order)}

    def _keep(self) -> None:
        readers = dict.fromkeys(self.partitions, 0)
        for member in self.members:
            for tp in self.old[member]:
                readers[tp] += 1
        for member in self.members:
            # What few others read is kept first: giving that up would leave it unread.
            for tp in sorted(self.old[member], key=lambda tp: (readers[tp], tp)):
                if self.missing[member] and self.room[tp]:
                    self._give(tp, member)
                else:
                    readers[tp] -= 1

    def _fill(self) -> None:
        for tp in sorted(self.partitions, key=lambda tp: (-self.room[tp], tp)):
            while self.room[tp]:
                takers = [m for m in self.members if self.missing[m] and tp not in self.held[m]]
                if takers:
                    self._give(tp, max(takers, key=lambda m: (self.missing[m], m)))
                elif not self._swap(tp):
                    break

    def _swap(self, tp: TopicIdPartition) -> bool:
        """Every member with room already reads `tp`: let one take another's partition for it."""
        for taker in self.members:
            if not self.missing[taker]:
                continue
            for giver in self.members:
                if tp in self.held[giver]:
                    continue
                movable = sorted(self.held[giver] - self.held[taker])
                if movable:
                    self.held[giver].remove(movable[0])
                    self.held[giver].add(tp)
                    self.held[taker].add(movable[0])
                    self.room[tp] -= 1
                    self.missing[taker] -= 1
                    return True
        return False

    def _give(self, tp: TopicIdPartition, member: str) -> None:
        self.held[member].add(tp)
        self.room[tp] -= 1
        self.missing[member] -= 1
