"""What a member has finished of its key ranges, if it finishes records individually.

A member keeps the offset and the hash of each record that it was given and has not finished. Every
other offset below the position of a range is finished: its record was handled here, was finished by
an earlier owner or belongs to another range, or there is no record. Thus ranges can be split and
joined without a change, and memory depends on the unfinished records only.

An unfinished record is *followed* if a finished record comes before the next unfinished one. Only
then a commit names the offsets between the two: without a finished record there, they say nothing.

No I/O: `shared_partitions.SharedPartitions` fetches and commits, and `range_positions` has the
positions.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.range_positions import Piece, Range, commit_fields
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.key_hash import record_hash
from shoal.record.key_ranges import KeyRanges
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shoal.client.cluster import TopicPartition
    from shoal.record.records import Record


class Commit(NamedTuple):
    """A commit of a key range: all offsets below `position` are finished, and those in ranges."""

    first_hash: int
    last_hash: int
    position: int
    finished: tuple[Range, ...] = ()

    def field(self) -> dict[str, Any]:
        """Return the key range in OffsetCommit."""
        return {
            "first_hash": self.first_hash,
            "last_hash": self.last_hash,
            "position": self.position,
            "finished": FinishedOffsets.of(self.finished).encode(),
        }


Commits = tuple[Commit, ...]


class RangeProgress:
    """The unfinished records of all partitions, and which state of them is committed."""

    def __init__(self) -> None:
        self._unfinished: dict[TopicPartition, _Unfinished] = {}
        self._committed: dict[TopicPartition, Commits] = {}

    def clear(self) -> None:
        self._unfinished.clear()
        self._committed.clear()

    def start(
        self, where: TopicPartition, first: int, last: int, finished: Iterable[Range]
    ) -> None:
        """Take over a key range. Records at `finished` offsets are not delivered."""
        done = OffsetSet()
        for low, high in finished:
            done.add(low, high)
        unfinished = self._unfinished.setdefault(where, _Unfinished())
        if done:
            unfinished.done.append((first, last, done))

    def keep(self, wanted: Mapping[TopicPartition, Iterable[Range]]) -> None:
        """Forget the records of all other ranges."""
        for where in list(self._unfinished):
            ranges = list(wanted.get(where, ()))
            if ranges:
                self._unfinished[where].keep(KeyRanges(ranges))
            else:
                del self._unfinished[where]
                self._committed.pop(where, None)

    def deliver(self, where: TopicPartition, records: Iterable[Record]) -> list[Record]:
        """Return the fetched records that are neither finished nor delivered already."""
        return [record for record in records if self._unfinished[where].add(record)]

    def finish(self, where: TopicPartition, offset: int) -> bool:
        """Finish a record. Return whether it was unfinished here."""
        unfinished = self._unfinished.get(where)
        return unfinished is not None and unfinished.finish(offset)

    def end_of(self, where: TopicPartition) -> int:
        """Return the offset after the highest one that was delivered; 0 without one."""
        return self._unfinished[where].end if where in self._unfinished else 0

    def restart(self, where: TopicPartition, ranges: KeyRanges, position: int) -> None:
        """Read these ranges on at `position`, because the log does not have their old one."""
        self._unfinished[where].truncate(ranges, position)

    def reread(self, where: TopicPartition, pieces: Iterable[Piece], position: int) -> None:
        """Read all ranges again from `position`, without what is below their present positions."""
        for first, last, at in pieces:
            if at > position:
                self.start(where, first, last, [(position, at - 1)])
                self._unfinished[where].ahead.append((first, last, at))

    def read_to(self, where: TopicPartition, position: int) -> None:
        """Forget what was finished or read before, below the lowest position."""
        unfinished = self._unfinished[where]
        unfinished.done = [one for one in unfinished.done if one[2].last >= position]
        unfinished.ahead = [one for one in unfinished.ahead if one[2] > position]

    def takes(self, where: TopicPartition, position: int, ranges_max: int) -> bool:
        """Return whether to fetch at a position.

        At the limit of ranges of finished offsets nothing new is fetched. What is between finished
        offsets of an earlier owner is fetched in any case: only that closes the gaps.
        """
        unfinished = self._unfinished[where]
        done = max((one.last for _, _, one in unfinished.done), default=-1)
        return len(unfinished.followed) < ranges_max or position <= done

    # Committing.

    def to_commit(
        self, where: TopicPartition, pieces: Iterable[Piece], ranges_max: int
    ) -> Commits | None:
        """Return what is finished of the ranges at their positions, with the lowest `ranges_max`
        ranges of finished offsets; None if that is committed."""
        commits = []
        left = ranges_max
        for piece in self._unfinished[where].read(pieces):
            commit = self._unfinished[where].commit(piece, left)
            commits.append(commit)
            left -= len(commit.finished)
        found = tuple(commits)
        return None if found == self._committed.get(where) else found

    def committed(self, where: TopicPartition, commits: Commits) -> None:
        """Note what the coordinator has stored."""
        if where in self._unfinished:
            self._committed[where] = commits

    def forget_commits(self) -> None:
        """Commit everything again: another coordinator may lack it."""
        self._committed.clear()


class _Unfinished:
    """The records of one partition that were delivered and are not finished."""

    def __init__(self) -> None:
        #: In rising order, and the hash of each.
        self.offsets: list[int] = []
        self.hashes: dict[int, int] = {}
        self.followed: set[int] = set()
        #: The offset after the highest one that was delivered.
        self.end = 0
        #: Offsets that earlier owners of key ranges have finished above their positions.
        self.done: list[tuple[int, int, OffsetSet]] = []
        #: Key ranges that are read again, with the positions that they had.
        self.ahead: list[Piece] = []

    def add(self, record: Record) -> bool:
        """Add a record. Return False if it is finished, or was added before."""
        offset = record.offset
        if offset in self.hashes:
            return False
        hash_ = record_hash(record.key, offset)
        at = len(self.offsets)
        if self.offsets and offset < self.offsets[-1]:
            at = bisect_left(self.offsets, offset)
        if any(first <= hash_ <= last and offset in done for first, last, done in self.done):
            if at:
                self.followed.add(self.offsets[at - 1])
            return False
        self.offsets.insert(at, offset)
        self.hashes[offset] = hash_
        if offset < self.end:  # Later ones may be finished: its range was behind others.
            self.followed.add(offset)
        self.end = max(self.end, offset + 1)
        return True

    def finish(self, offset: int) -> bool:
        if self.hashes.pop(offset, None) is None:
            return False
        at = bisect_left(self.offsets, offset)
        del self.offsets[at]
        self.followed.discard(offset)
        if at:
            self.followed.add(self.offsets[at - 1])
        return True

    def keep(self, ranges: KeyRanges) -> None:
        """Forget the records of all other ranges, which have no place here."""
        self._keep_if(lambda offset: ranges.contains(self.hashes[offset]))
        self.done = [
            (first, last, done)
            for low, high, done in self.done
            for one in ranges
            if (first := max(low, one.first)) <= (last := min(high, one.last))
        ]
        self.ahead = [
            part for one in ranges for part in key_range_map.within(self.ahead, one.first, one.last)
        ]

    def truncate(self, ranges: KeyRanges, position: int) -> None:
        """Forget the records of ranges from `position` on: they are others now."""
        self._keep_if(lambda o: o < position or not ranges.contains(self.hashes[o]))
        self.done = [one for one in self.done if one[2].last < position]
        self.ahead = [one for one in self.ahead if one[2] <= position]

    def _keep_if(self, is_kept: Callable[[int], bool]) -> None:
        offsets: list[int] = []
        followed = set()
        for offset in self.offsets:
            if is_kept(offset):
                offsets.append(offset)
            else:
                del self.hashes[offset]
            if offset in self.followed and offsets:
                followed.add(offsets[-1])
        self.offsets, self.followed = offsets, followed

    def read(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return the pieces at the positions up to which they have been read. Where they are read
        again, their present ones are lower."""
        found = list(pieces)
        for first, last, at in self.ahead:
            found = [
                part
                for piece in found
                for part in key_range_map.changed([piece], first, last, partial(max, at))
            ]
        return found

    def commit(self, piece: Piece, ranges_max: int) -> Commit:
        """Return what is finished of a key range up to its position."""
        first, last, end = piece
        position = after = -1
        followed = False
        finished: list[Range] = []
        for offset in self.offsets:
            if offset >= end:
                break
            if first <= self.hashes[offset] <= last:
                if position < 0:
                    position = offset
                elif followed and after < offset:
                    finished.append((after, offset - 1))
                after, followed = offset + 1, False
            followed = followed or offset in self.followed
        if position < 0:
            return Commit(first, last, end)
        if followed and after < end:
            finished.append((after, end - 1))
        return Commit(first, last, position, tuple(finished[:ranges_max]))


def fields(commits: Commits, *, individually: bool) -> dict[str, Any]:
    """Return the field of OffsetCommit with these commits. A coordinator without individual commits
    gets the positions alone; then a whole partition has no field."""
    if individually:
        return {"key_ranges": [one.field() for one in commits]}
    return commit_fields([one[:3] for one in commits])


def width_of(ranges: Iterable[Range]) -> float:
    """Return the part of all hashes that ranges have, 0 to 1."""
    return sum(last - first + 1 for first, last in ranges) / (KEY_HASH_MAX + 1)
