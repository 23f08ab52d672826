"""A pool of partitions with a balanced assignment: the moves of the `simple` assignor.

With M members and P partitions, a balanced pool gives each partition to ceil(M / P) members, and
the members' numbers of partitions differ by at most one. `Pool.fill` assigns members without
partitions and partitions without members, and moves nothing. `Pool.settle` restores balance.

Members and partitions are indexed by their counts, so that the cost of a move does not depend on
the size of the pool. Dicts are used as ordered sets, so that the choices are deterministic.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from shoal.coordinator.group.assignment import TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: The most candidates that one choice compares.
CANDIDATES_MAX = 8
#: The most members that are searched for a partition with too many members.
_DONORS_MAX = 64

_Partitions = dict[TopicIdPartition, None]
_Members = dict[str, None]


K = TypeVar("K")


class _CountIndex(Generic[K]):
    """Keys by a count, which changes by one at a time."""

    __slots__ = ("_of", "at")

    def __init__(self) -> None:
        self.at: dict[int, dict[K, None]] = {}
        self._of: dict[K, int] = {}

    def __getitem__(self, key: K) -> int:
        return self._of[key]

    def put(self, key: K, count: int) -> None:
        """Set the count of a key."""
        self.drop(key)
        self._of[key] = count
        self.at.setdefault(count, {})[key] = None

    def drop(self, key: K) -> None:
        count = self._of.pop(key, None)
        if count is not None:
            keys = self.at[count]
            del keys[key]
            if not keys:
                del self.at[count]

    def find_fewest(self) -> int:
        return min(self.at)

    def find_most(self) -> int:
        return max(self.at)


class Pool:
    """Members, partitions, and the assignment of partitions to members.

    `weigh` returns a member's load outside the pool, and the least loaded of equal members gets a
    partition. `moved` is called with each member whose partitions have changed.
    """

    def __init__(self, weigh: Callable[[str], int], on_moved: Callable[[str], None]) -> None:
        self.owned: dict[str, _Partitions] = {}
        self.readers: dict[TopicIdPartition, _Members] = {}
        self._sizes: _CountIndex[str] = _CountIndex()
        self._counts: _CountIndex[TopicIdPartition] = _CountIndex()
        #: The number of pairs of a member and a partition that it owns.
        self._pairs = 0
        self._weigh, self._on_moved = weigh, on_moved
        #: Pairs added or removed so far, as a measure of cost.
        self.changes = 0

    # Adding and removing.

    def join(self, member: str, owned: Iterable[TopicIdPartition] = ()) -> None:
        """Add a member, with those of its partitions that are in the pool."""
        self.owned[member] = {}
        self._sizes.put(member, 0)
        for partition in owned:
            if partition in self.readers:
                self._give(member, partition)

    def leave(self, member: str) -> None:
        for partition in list(self.owned[member]):
            self._take(member, partition)
        del self.owned[member]
        self._sizes.drop(member)

    def add(self, partition: TopicIdPartition) -> None:
        self.readers[partition] = {}
        self._counts.put(partition, 0)

    def remove(self, partition: TopicIdPartition) -> None:
        for member in list(self.readers[partition]):
            self._take(member, partition)
        del self.readers[partition]
        self._counts.drop(partition)

    def follow_leaders(self) -> None:
        """Take over the leaders of partitions that have others now. This pool knows none."""

    @property
    def fewest_readers(self) -> int:
        """The number of members of the partition that has the fewest; 0 without partitions."""
        return self._counts.find_fewest() if self.readers else 0

    # Filling gaps.

    def fill(self, moves_max: int) -> bool:
        """Assign up to `moves_max` members without partitions and partitions without members.

        Moves nothing. Returns whether none is left.
        """
        if not self.readers or not self.owned:
            return True
        end = self.changes + moves_max
        while self._fill_one():
            if self.changes >= end:
                return False
        return True

    def _fill_one(self) -> bool:
        if 0 in self._sizes.at:
            partition = next(iter(self._counts.at[self._counts.find_fewest()]))
            self._give(next(iter(self._sizes.at[0])), partition)
        elif 0 in self._counts.at:
            self._give(self._find_smallest_member(), next(iter(self._counts.at[0])))
        else:
            return False
        return True

    # Balance.

    def settle(self, moves_max: int) -> bool:
        """Make up to `moves_max` moves towards balance. Returns whether the pool is balanced."""
        if not self.readers or not self.owned:
            return True
        target_count = -(-len(self.owned) // len(self.readers))
        end = self.changes + moves_max
        for step in (self._shed, self._spread, self._even_partitions, self._even_members):
            while step(target_count):
                if self.changes >= end:
                    return False
        return True

    def _shed(self, target_count: int) -> bool:
        """Remove one pair if there are more than in a balanced pool."""
        if self._pairs <= target_count * len(self.readers):
            return False
        largest = self._sizes.at[self._sizes.find_most()]
        for member in islice(largest, _DONORS_MAX):
            for partition in islice(self.owned[member], CANDIDATES_MAX):
                if self._counts[partition] > target_count:
                    self._take(member, partition)
                    return True
        partition = next(iter(self._counts.at[self._counts.find_most()]))
        readers = islice(reversed(self.readers[partition]), CANDIDATES_MAX)
        self._take(max(readers, key=self._sizes.__getitem__), partition)
        return True

    def _spread(self, target_count: int) -> bool:
        """Add one pair if there are fewer than in a balanced pool."""
        if self._pairs >= target_count * len(self.readers):
            return False
        partition = next(iter(self._counts.at[self._counts.find_fewest()]))
        smallest = self._sizes.at[self._sizes.find_fewest()]
        takers = [m for m in islice(smallest, CANDIDATES_MAX) if m not in self.readers[partition]]
        if takers:
            self._give(min(takers, key=self._weigh), partition)
            return True
        member = next(iter(smallest))
        self._give(member, next(self._iterate_by_count(without=self.owned[member])))
        return True

    def _even_partitions(self, target_count: int) -> bool:
        """Move a member from a partition with too many to one with too few."""
        if self._counts.find_most() <= target_count:
            return False
        source = next(iter(self._counts.at[self._counts.find_most()]))
        target = next(iter(self._counts.at[self._counts.find_fewest()]))
        # There is one: `source` has more members than `target`.
        target_readers = self.readers[target]
        member = next(m for m in reversed(self.readers[source]) if m not in target_readers)
        self._take(member, source)
        self._give(member, target)
        return True

    def _even_members(self, _each: int) -> bool:
        """Move a partition from a member with most to one with fewest."""
        if self._sizes.find_most() - self._sizes.find_fewest() < 2:
            return False
        giver = next(iter(self._sizes.at[self._sizes.find_most()]))
        taker = self._find_smallest_member()
        taker_partitions = self.owned[taker]
        partition = next(p for p in reversed(self.owned[giver]) if p not in taker_partitions)
        self._take(giver, partition)
        self._give(taker, partition)
        return True

    # Choices and changes.

    def _find_smallest_member(self) -> str:
        """A member with the fewest partitions in the pool, and the least load outside it."""
        smallest = self._sizes.at[self._sizes.find_fewest()]
        return min(islice(smallest, CANDIDATES_MAX), key=self._weigh)

    def _iterate_by_count(self, *, without: _Partitions) -> Iterator[TopicIdPartition]:
        """Partitions, those with the fewest members first."""
        for count in sorted(self._counts.at):
            yield from (p for p in self._counts.at[count] if p not in without)

    def _give(self, member: str, partition: TopicIdPartition) -> None:
        self.owned[member][partition] = None
        self.readers[partition][member] = None
        self._note_change(member, partition, 1)

    def _take(self, member: str, partition: TopicIdPartition) -> None:
        del self.owned[member][partition]
        del self.readers[partition][member]
        self._note_change(member, partition, -1)

    def _note_change(self, member: str, partition: TopicIdPartition, by: int) -> None:
        self._pairs += by
        self._sizes.put(member, self._sizes[member] + by)
        self._counts.put(partition, self._counts[partition] + by)
        self.changes += 1
        self._on_moved(member)
