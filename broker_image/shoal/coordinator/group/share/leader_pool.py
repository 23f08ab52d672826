"""A balanced pool in which a member's partitions have as few leaders as balance allows.

Kafka's share consumers keep one fetch in flight that may bring records (KAFKA-19767). So a member
whose partitions have leaders on three brokers waits at one of them while records wait at another.
`LeaderPool.settle` first balances like any pool. Then it swaps partitions between two members, or
moves one from a larger to a smaller member, as long as that gathers partitions of one leader at one
member. The numbers of partitions of the members, and of members of the partitions, stay as they
are.

What improves is the sum, over all members and leaders, of the square of how many partitions of the
leader a member has. Each step raises it, so the steps come to an end, and an assignment that cannot
be improved by one step stays.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.share.simple_assignor_pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.coordinator.group.assignment import TopicIdPartition

#: The most members with which one step compares a member, and of its leaders that it looks at.
_PARTNERS_MAX, _LEADERS_MAX = 64, 8


class _Trade(NamedTuple):
    """What two members give each other: a partition each, or one of them none. `gain` is half of
    what the sum of squares rises by."""

    gain: int
    partner: str
    given: TopicIdPartition | None
    taken: TopicIdPartition | None


class LeaderPool(Pool):
    """A pool that knows the leader of each partition."""

    def __init__(
        self,
        weigh: Callable[[str], int],
        on_moved: Callable[[str], None],
        find_leader: Callable[[TopicIdPartition], int],
    ) -> None:
        super().__init__(weigh, on_moved)
        self._find_leader = find_leader
        self._leaders: dict[TopicIdPartition, int] = {}
        #: By member: how many of its partitions each leader has.
        self._shares: dict[str, Counter[int]] = {}
        #: By leader: the members with partitions of it.
        self._members: dict[int, dict[str, None]] = {}
        #: The members with partitions of several leaders.
        self._scattered: dict[str, None] = {}
        #: Members whose partitions have changed, and those that may trade with them.
        self._changed: dict[str, None] = {}
        self._to_examine: dict[str, None] = {}

    # Adding and removing.

    def join(self, member: str, owned: Iterable[TopicIdPartition] = ()) -> None:
        self._shares[member] = Counter()
        super().join(member, owned)

    def leave(self, member: str) -> None:
        super().leave(member)
        for members in (self._shares, self._scattered, self._changed, self._to_examine):
            members.pop(member, None)

    def add(self, partition: TopicIdPartition) -> None:
        self._leaders[partition] = self._find_leader(partition)
        super().add(partition)

    def remove(self, partition: TopicIdPartition) -> None:
        super().remove(partition)
        del self._leaders[partition]

    def follow_leaders(self) -> None:
        """Take over the leaders of partitions that have others now."""
        for partition, before in list(self._leaders.items()):
            leader = self._find_leader(partition)
            if leader != before:
                self._leaders[partition] = leader
                for member in self.readers[partition]:
                    self._note_share(member, before, -1)
                    self._note_share(member, leader, 1)

    def _note_change(self, member: str, partition: TopicIdPartition, by: int) -> None:
        super()._note_change(member, partition, by)
        self._note_share(member, self._leaders[partition], by)

    def _note_share(self, member: str, leader: int, by: int) -> None:
        shares = self._shares[member]
        shares[leader] += by
        if shares[leader]:
            self._members.setdefault(leader, {})[member] = None
        else:
            del shares[leader], self._members[leader][member]
        if len(shares) > 1:
            self._scattered[member] = None
        else:
            self._scattered.pop(member, None)
        self._changed[member] = None

    # Gathering.

    def settle(self, moves_max: int) -> bool:
        """Make up to `moves_max` moves towards balance, then towards fewer leaders for each
        member."""
        end = self.changes + moves_max
        if not super().settle(moves_max):
            return False
        while self._gather():
            if self.changes >= end:
                return False
        return True

    def _gather(self) -> bool:
        """Make one trade, if any member has one that is worth it."""
        while self._changed or self._to_examine:
            if self._changed:
                member = next(iter(self._changed))
                del self._changed[member]
                self._to_examine[member] = None
                self._to_examine |= dict.fromkeys(islice(self._scattered, _PARTNERS_MAX))
                continue
            member = next(iter(self._to_examine))
            trade = self._find_trade(member)
            if trade is not None:
                self._make(member, trade)
                return True
            del self._to_examine[member]
        return False

    def _find_trade(self, member: str) -> _Trade | None:
        """Return the best trade that gathers partitions of the leader of which a scattered member
        has most."""
        shares = self._shares[member]
        if len(shares) < 2:
            return None
        wanted = max(shares, key=lambda leader: (shares[leader], -leader))
        others = sorted(shares, key=lambda leader: (shares[leader], leader))
        trades = (
            trade
            for leader in others[:_LEADERS_MAX]
            if leader != wanted
            for trade in self._list_trades(member, leader, wanted)
        )
        return max(trades, key=lambda trade: trade.gain, default=None)

    def _list_trades(self, member: str, leader: int, wanted: int) -> list[_Trade]:
        """Return what raises the sum if the member gives a partition of `leader`, or takes one of
        `wanted`, or both. Alone, a partition goes from a larger member to a smaller one."""
        trades = []
        own, size = self._shares[member], len(self.owned[member])
        partners = dict.fromkeys(islice(self._members.get(wanted, ()), _PARTNERS_MAX))
        partners |= dict.fromkeys(islice(self._members.get(leader, ()), _PARTNERS_MAX))
        partners.pop(member, None)
        for partner in partners:
            theirs, larger_by = self._shares[partner], len(self.owned[partner]) - size
            giving = theirs[leader] - own[leader] + 1
            taking = own[wanted] - theirs[wanted] + 1
            given = self._find_partition(member, partner, leader)
            taken = self._find_partition(partner, member, wanted)
            if given is not None and taken is not None:
                trades.append(_Trade(giving + taking, partner, given, taken))
            if given is not None and larger_by == -1:
                trades.append(_Trade(giving, partner, given, None))
            if taken is not None and larger_by == 1:
                trades.append(_Trade(taking, partner, None, taken))
        return [trade for trade in trades if trade.gain > 0]

    def _find_partition(self, giver: str, taker: str, leader: int) -> TopicIdPartition | None:
        """Return a partition of the leader that only the giver has."""
        has = self.owned[taker]
        return next(
            (p for p in self.owned[giver] if self._leaders[p] == leader and p not in has), None
        )

    def _make(self, member: str, trade: _Trade) -> None:
        if trade.given is not None:
            self._take(member, trade.given)
            self._give(trade.partner, trade.given)
        if trade.taken is not None:
            self._take(trade.partner, trade.taken)
            self._give(member, trade.taken)
