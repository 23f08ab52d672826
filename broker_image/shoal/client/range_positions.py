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

    from shoal.client.cluster import TopicPartition
    from shoal.client.fetcher import Fetched

Range = tuple[int, int]
#: A key range and its position.
Piece = tuple[int, int, int]
WHOLE: tuple[Range, ...] = ((0, KEY_HASH_MAX),)


@dataclass(frozen=True, slots=True)
class Cursor:
    """What to fetch of a partition: records of `key_ranges`, or all without any, from `position` up
    to the offset before `end`."""

    where: TopicPartition
    position: int
    key_ranges: KeyRanges | None
    end: int | None

    def cut(self, fetched: Fetched) -> Fetched:
        """Return what was fetched, without records from `end` on: they are fetched again together
        with those of the ranges that are there already."""
        if self.end is None or fetched.next_offset <= self.end:
            return fetched
        return replace(fetched, last=self.end - 1, next_offset=self.end)


def commit_fields(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the field of OffsetCommit with these positions; none for one of a whole partition."""
    if len(pieces) == 1 and pieces[0][:2] == WHOLE[0]:
        return {}
    return {
        "key_ranges": [
            {"first_hash": first, "last_hash": last, "position": position, "finished": b""}
            for first, last, position in pieces
        ]
    }


class RangePositions:
    """The pieces of the owned key ranges, with their positions and what of them is committed.

    With `in_order`, the lowest position of a partition is always read first. So the key ranges that
    are not read yet are never behind the first record of a transaction.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order
        self._pieces: dict[TopicPartition, tuple[Piece, ...]] = {}
        self._committed: dict[TopicPartition, tuple[Piece, ...]] = {}
        #: Where the ranges continue after an aborted transaction.
        self._restart: dict[TopicPartition, tuple[Piece, ...]] = {}
        #: Partitions with records since the last commit, and the lowest offset of these records.
        self._delivered: dict[TopicPartition, int] = {}
        self._turns: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def lowest(self) -> dict[TopicPartition, int]:
        """The lowest position of each partition."""
        return {where: min(p for _, _, p in some) for where, some in self._pieces.items()}

    @property
    def pieces(self) -> Mapping[TopicPartition, tuple[Piece, ...]]:
        """The key ranges of each partition with their positions, in rising order."""
        return self._pieces

    def end_of(self, where: TopicPartition) -> int:
        """The highest position of a partition; 0 without one."""
        return max((at for _, _, at in self._pieces.get(where, ())), default=0)

    @property
    def owned(self) -> dict[TopicPartition, list[Range]]:
        """The key ranges of each partition."""
        return {
            where: [(a, b) for a, b, _ in key_range_map.joined((a, b, 0) for a, b, _ in pieces)]
            for where, pieces in self._pieces.items()
        }

    def clear(self) -> None:
        self._pieces.clear()
        self._committed.clear()
        self._restart.clear()
        self._delivered.clear()
        self._turns.clear()

    def keep(self, wanted: Mapping[TopicPartition, Iterable[Range]]) -> None:
        """Forget all other ranges."""
        for side in (self._pieces, self._restart, self._committed):
            for where in list(side):
                ranges = list(wanted.get(where, ()))
                kept = [
                    piece
                    for first, last in ranges
                    for piece in key_range_map.within(side[where], first, last)
                ]
                if kept:
                    side[where] = key_range_map.joined(kept)
                else:
                    del side[where]
        for where in self._turns.keys() - self._pieces.keys():
            del self._turns[where]
        for where in self._delivered.keys() - self._pieces.keys():
            del self._delivered[where]

    def start(self, where: TopicPartition, pieces: Iterable[Piece], *, committed: bool) -> None:
        """Add ranges at their positions, which are `committed` or not."""
        added = list(pieces)
        for side in (self._pieces, self._restart, self._committed)[: 2 + committed]:
            side[where] = key_range_map.joined([*side.get(where, ()), *added])

    # Reading.

    def cursors(self) -> list[Cursor]:
        """Return what to fetch next, one cursor for each partition, in turn."""
        found = []
        for where, pieces in self._pieces.items():
            positions = sorted({position for _, _, position in pieces})
            turn = 0 if self._in_order else self._turns.get(where, 0) % len(positions)
            self._turns[where] = turn + 1
            at = positions[turn]
            ranges: KeyRanges | None = None
            if pieces != ((*WHOLE[0], at),):
                ranges = KeyRanges((a, b) for a, b, position in pieces if position == at)
            end = positions[turn + 1] if turn + 1 < len(positions) else None
            found.append(Cursor(where, at, ranges, end))
        return found

    @property
    def take_turns(self) -> bool:
        """Whether ranges of a partition have different positions."""
        return any(len({p for _, _, p in pieces}) > 1 for pieces in self._pieces.values())

    def advance(self, cursor: Cursor, position: int, *, delivered: bool, first: int = -1) -> None:
        """Move the ranges of a cursor. `delivered` means that the application got records, of which
        `first` is the lowest offset."""
        self._pieces[cursor.where] = key_range_map.joined(
            (a, b, position if at == cursor.position else at)
            for a, b, at in self._pieces[cursor.where]
        )
        if delivered:
            before = self._delivered.get(cursor.where, first)
            self._delivered[cursor.where] = min(before, first)

    def first_offset(self, where: TopicPartition) -> int:
        """The lowest offset that the application got since the last commit; -1 for none."""
        return self._delivered.get(where, -1)

    def collapse(self, where: TopicPartition) -> bool:
        """Read a partition that is owned as a whole from its lowest position. Return whether it is
        owned as a whole and had several positions."""
        pieces = self._pieces[where]
        if len(pieces) == 1 or not key_range_map.tiles(pieces):
            return False
        for side in (self._pieces, self._restart):
            side[where] = ((*WHOLE[0], min(at for _, _, at in side[where])),)
        return True

    def rewind(self, where: TopicPartition, offset: int) -> None:
        """Move positions beyond `offset` back to it, but not behind what is committed."""
        back: list[Piece] = []
        for a, b, at in self._pieces.get(where, ()):
            done = list(key_range_map.within(self._committed.get(where, ()), a, b))
            back += [(low, high, max(known, min(at, offset))) for low, high, known in done]
            rest = key_range_map.minus([(a, b)], [(low, high) for low, high, _ in done])
            back += [(low, high, min(at, offset)) for low, high in rest]
        if back:
            self._pieces[where] = key_range_map.joined(back)

    def rewind_all(self) -> None:
        """Read again what is not committed; `in_order`, only from the first record on."""
        for where, pieces in self._pieces.items():
            first = self._delivered.get(where)
            back: list[Piece] = []
            for low, high, at in pieces:
                passed = 0 if not self._in_order else at if first is None else min(at, first)
                back += [
                    (a, b, max(start, passed))
                    for a, b, start in key_range_map.within(self._restart[where], low, high)
                ]
            self._pieces[where] = key_range_map.joined(back)
        self._delivered.clear()

    # Committing.

    def has_unfinished(self, where: TopicPartition, ranges: Iterable[Range]) -> bool:
        """Whether the application may have got records of these ranges that are not committed."""
        done = self._committed.get(where, ())
        return where in self._delivered and any(
            key_range_map.joined(key_range_map.within(self._pieces.get(where, ()), first, last))
            != key_range_map.joined(key_range_map.within(done, first, last))
            for first, last in ranges
        )

    def to_commit(self, *, passed: bool = False) -> dict[TopicPartition, tuple[Piece, ...]]:
        """Return the pieces whose positions are not committed.

        With `passed`, only those of partitions whose positions moved over records of other members
        alone. The application has nothing to process before they are committed.
        """
        found = {}
        for where, pieces in self._pieces.items():
            if passed and where in self._delivered:
                continue
            known = set(self._committed.get(where, ()))
            if set(pieces) == known:
                continue
            moved = [piece for piece in pieces if not self._is_committed(where, piece)]
            if moved:
                found[where] = tuple(moved)
        return found

    def _is_committed(self, where: TopicPartition, piece: Piece) -> bool:
        first, last, position = piece
        done = key_range_map.joined(
            key_range_map.within(self._committed.get(where, ()), first, last)
        )
        return done == ((first, last, position),)

    def committed(self, where: TopicPartition, pieces: Iterable[Piece]) -> None:
        """Note what the coordinator has stored."""
        if where not in self._pieces:
            return
        added = list(pieces)
        ranges = [(a, b) for a, b, _ in added]
        for side in (self._committed, self._restart):
            before = side.get(where, ())
            rest = [
                piece
                for first, last in key_range_map.minus([(a, b) for a, b, _ in before], ranges)
                for piece in key_range_map.within(before, first, last)
            ]
            side[where] = key_range_map.joined([*rest, *added])
        if all(self._is_committed(where, piece) for piece in self._pieces[where]):
            self._delivered.pop(where, None)
