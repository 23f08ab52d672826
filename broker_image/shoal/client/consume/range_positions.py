"""Positions of the key ranges that a member of a consumer group owns, by partition.

Ranges of a partition may have different positions: one that comes from another member continues at
its last commit, while the others are further. A fetch has one position of a partition, so ranges at
the same position are fetched together, and those at different positions take turns. Ranges that are
behind read up to the position of the next ones, and continue together with them.

No I/O: `shared_partitions.SharedPartitions` fetches and commits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.client.consume.fetcher import FetchedBatches
    from shoal.client.net.cluster import TopicPartition

Range = tuple[int, int]
#: A key range and its position.
RangePosition = tuple[int, int, int]
WHOLE: tuple[Range, ...] = ((0, KEY_HASH_MAX),)


@dataclass(frozen=True, slots=True)
class RangeCursor:
    """What to fetch of a partition: records of `key_ranges`, or all without any, from `position` up
    to the offset before `end`."""

    partition: TopicPartition
    position: int
    key_ranges: KeyRanges | None
    end: int | None

    def cut(self, fetched: FetchedBatches) -> FetchedBatches:
        """Return what was fetched, without records from `end` on: they are fetched again together
        with those of the ranges that are there already."""
        if self.end is None or fetched.next_offset <= self.end:
            return fetched
        return replace(fetched, last=self.end - 1, next_offset=self.end)


def make_commit_fields(range_positions: Sequence[RangePosition]) -> dict[str, Any]:
    """Return the field of OffsetCommit with these positions; none for one of a whole partition."""
    if len(range_positions) == 1 and range_positions[0][:2] == WHOLE[0]:
        return {}
    return {
        "key_ranges": [
            {"first_hash": first, "last_hash": last, "position": position, "finished": b""}
            for first, last, position in range_positions
        ]
    }


class RangePositions:
    """The pieces of the owned key ranges, with their positions and what of them is committed.

    With `in_order`, the lowest position of a partition is always read first. So the key ranges that
    are not read yet are never behind the first record of a transaction.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order
        self._by_partition: dict[TopicPartition, tuple[RangePosition, ...]] = {}
        self._committed: dict[TopicPartition, tuple[RangePosition, ...]] = {}
        #: Where the ranges continue after an aborted transaction.
        self._restart: dict[TopicPartition, tuple[RangePosition, ...]] = {}
        #: Partitions with records since the last commit, and the lowest offset of these records.
        self._delivered: dict[TopicPartition, int] = {}
        self._turns: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    @property
    def lowest(self) -> dict[TopicPartition, int]:
        """The lowest position of each partition."""
        return {
            partition: min(p for _, _, p in range_positions)
            for partition, range_positions in self._by_partition.items()
        }

    @property
    def by_partition(self) -> Mapping[TopicPartition, tuple[RangePosition, ...]]:
        """The key ranges of each partition with their positions, in rising order."""
        return self._by_partition

    def find_end(self, partition: TopicPartition) -> int:
        """The highest position of a partition; 0 without one."""
        return max(
            (position for _, _, position in self._by_partition.get(partition, ())), default=0
        )

    @property
    def owned(self) -> dict[TopicPartition, list[Range]]:
        """The key ranges of each partition."""
        return {
            partition: [
                (a, b)
                for a, b, _ in key_range_map.join_ranges((a, b, 0) for a, b, _ in range_positions)
            ]
            for partition, range_positions in self._by_partition.items()
        }

    def clear(self) -> None:
        self._by_partition.clear()
        self._committed.clear()
        self._restart.clear()
        self._delivered.clear()
        self._turns.clear()

    def keep(self, owned: Mapping[TopicPartition, Iterable[Range]]) -> None:
        """Forget all other ranges."""
        for side in (self._by_partition, self._restart, self._committed):
            for partition in list(side):
                ranges = list(owned.get(partition, ()))
                remaining = [
                    range_position
                    for first, last in ranges
                    for range_position in key_range_map.clip_to_range(side[partition], first, last)
                ]
                if remaining:
                    side[partition] = key_range_map.join_ranges(remaining)
                else:
                    del side[partition]
        for partition in self._turns.keys() - self._by_partition.keys():
            del self._turns[partition]
        for partition in self._delivered.keys() - self._by_partition.keys():
            del self._delivered[partition]

    def start(
        self,
        partition: TopicPartition,
        range_positions: Iterable[RangePosition],
        *,
        committed: bool,
    ) -> None:
        """Add ranges at their positions, which are `committed` or not."""
        added = list(range_positions)
        for side in (self._by_partition, self._restart, self._committed)[: 2 + committed]:
            side[partition] = key_range_map.join_ranges([*side.get(partition, ()), *added])

    # Reading.

    def make_cursors(self) -> list[RangeCursor]:
        """Return what to fetch next, one cursor for each partition, in turn."""
        cursors = []
        for partition, range_positions in self._by_partition.items():
            positions = sorted({position for _, _, position in range_positions})
            turn = 0 if self._in_order else self._turns.get(partition, 0) % len(positions)
            self._turns[partition] = turn + 1
            turn_position = positions[turn]
            ranges: KeyRanges | None = None
            if range_positions != ((*WHOLE[0], turn_position),):
                ranges = KeyRanges(
                    (a, b) for a, b, position in range_positions if position == turn_position
                )
            end = positions[turn + 1] if turn + 1 < len(positions) else None
            cursors.append(RangeCursor(partition, turn_position, ranges, end))
        return cursors

    @property
    def has_different_positions(self) -> bool:
        """Whether ranges of a partition have different positions."""
        return any(
            len({p for _, _, p in range_positions}) > 1
            for range_positions in self._by_partition.values()
        )

    def advance(
        self, cursor: RangeCursor, position: int, *, delivered: bool, first: int = -1
    ) -> None:
        """Move the ranges of a cursor. `delivered` means that the application got records, of which
        `first` is the lowest offset."""
        self._by_partition[cursor.partition] = key_range_map.join_ranges(
            (a, b, position if current == cursor.position else current)
            for a, b, current in self._by_partition[cursor.partition]
        )
        if delivered:
            before = self._delivered.get(cursor.partition, first)
            self._delivered[cursor.partition] = min(before, first)

    def get_first_offset(self, partition: TopicPartition) -> int:
        """The lowest offset that the application got since the last commit; -1 for none."""
        return self._delivered.get(partition, -1)

    def collapse(self, partition: TopicPartition) -> bool:
        """Read a partition that is owned as a whole from its lowest position. Return whether it is
        owned as a whole and had several positions."""
        range_positions = self._by_partition[partition]
        if len(range_positions) == 1 or not key_range_map.is_tiling(range_positions):
            return False
        for side in (self._by_partition, self._restart):
            side[partition] = ((*WHOLE[0], min(position for _, _, position in side[partition])),)
        return True

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Move positions beyond `offset` back to it, but not behind what is committed."""
        back: list[RangePosition] = []
        for a, b, position in self._by_partition.get(partition, ()):
            committed = list(key_range_map.clip_to_range(self._committed.get(partition, ()), a, b))
            back += [
                (low, high, max(committed_position, min(position, offset)))
                for low, high, committed_position in committed
            ]
            uncommitted = key_range_map.subtract(
                [(a, b)], [(low, high) for low, high, _ in committed]
            )
            back += [(low, high, min(position, offset)) for low, high in uncommitted]
        if back:
            self._by_partition[partition] = key_range_map.join_ranges(back)

    def rewind_all(self) -> None:
        """Read again what is not committed; `in_order`, only from the first record on."""
        for partition, range_positions in self._by_partition.items():
            first = self._delivered.get(partition)
            back: list[RangePosition] = []
            for low, high, position in range_positions:
                passed = (
                    0 if not self._in_order else position if first is None else min(position, first)
                )
                back += [
                    (a, b, max(start, passed))
                    for a, b, start in key_range_map.clip_to_range(
                        self._restart[partition], low, high
                    )
                ]
            self._by_partition[partition] = key_range_map.join_ranges(back)
        self._delivered.clear()

    # Committing.

    def has_unfinished(self, partition: TopicPartition, ranges: Iterable[Range]) -> bool:
        """Whether the application may have got records of these ranges that are not committed."""
        committed = self._committed.get(partition, ())
        return partition in self._delivered and any(
            key_range_map.join_ranges(
                key_range_map.clip_to_range(self._by_partition.get(partition, ()), first, last)
            )
            != key_range_map.join_ranges(key_range_map.clip_to_range(committed, first, last))
            for first, last in ranges
        )

    def collect_uncommitted(
        self, *, passed: bool = False
    ) -> dict[TopicPartition, tuple[RangePosition, ...]]:
        """Return the pieces whose positions are not committed.

        With `passed`, only those of partitions whose positions moved over records of other members
        alone. The application has nothing to process before they are committed.
        """
        uncommitted = {}
        for partition, range_positions in self._by_partition.items():
            if passed and partition in self._delivered:
                continue
            committed = set(self._committed.get(partition, ()))
            if set(range_positions) == committed:
                continue
            moved = [
                range_position
                for range_position in range_positions
                if not self._is_committed(partition, range_position)
            ]
            if moved:
                uncommitted[partition] = tuple(moved)
        return uncommitted

    def _is_committed(self, partition: TopicPartition, range_position: RangePosition) -> bool:
        first, last, position = range_position
        committed = key_range_map.join_ranges(
            key_range_map.clip_to_range(self._committed.get(partition, ()), first, last)
        )
        return committed == ((first, last, position),)

    def on_committed(
        self, partition: TopicPartition, range_positions: Iterable[RangePosition]
    ) -> None:
        """Note what the coordinator has stored."""
        if partition not in self._by_partition:
            return
        added = list(range_positions)
        ranges = [(a, b) for a, b, _ in added]
        for side in (self._committed, self._restart):
            before = side.get(partition, ())
            remaining = [
                range_position
                for first, last in key_range_map.subtract([(a, b) for a, b, _ in before], ranges)
                for range_position in key_range_map.clip_to_range(before, first, last)
            ]
            side[partition] = key_range_map.join_ranges([*remaining, *added])
        if all(
            self._is_committed(partition, range_position)
            for range_position in self._by_partition[partition]
        ):
            self._delivered.pop(partition, None)
