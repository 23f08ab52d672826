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

from shoal.client.consume.range_positions import Range, RangePosition, make_commit_fields
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.key_hash import hash_record
from shoal.record.key_ranges import KeyRanges
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shoal.client.net.cluster import TopicPartition
    from shoal.record.records import Record


class KeyRangeCommit(NamedTuple):
    """A commit of a key range: all offsets below `position` are finished, and those in ranges."""

    first_hash: int
    last_hash: int
    position: int
    finished: tuple[Range, ...] = ()

    def to_field(self) -> dict[str, Any]:
        """Return the key range in OffsetCommit."""
        return {
            "first_hash": self.first_hash,
            "last_hash": self.last_hash,
            "position": self.position,
            "finished": FinishedOffsets.from_ranges(self.finished).encode(),
        }


Commits = tuple[KeyRangeCommit, ...]


class RangeProgress:
    """The unfinished records of all partitions, and which state of them is committed."""

    def __init__(self) -> None:
        self._unfinished: dict[TopicPartition, _UnfinishedRecords] = {}
        self._committed: dict[TopicPartition, Commits] = {}

    def clear(self) -> None:
        self._unfinished.clear()
        self._committed.clear()

    def start(
        self, partition: TopicPartition, first: int, last: int, finished: Iterable[Range]
    ) -> None:
        """Take over a key range. Records at `finished` offsets are not delivered."""
        finished_offsets = OffsetSet()
        for low, high in finished:
            finished_offsets.add(low, high)
        unfinished = self._unfinished.setdefault(partition, _UnfinishedRecords())
        if finished_offsets:
            unfinished.finished.append((first, last, finished_offsets))

    def keep(self, owned: Mapping[TopicPartition, Iterable[Range]]) -> None:
        """Forget the records of all other ranges."""
        for partition in list(self._unfinished):
            ranges = list(owned.get(partition, ()))
            if ranges:
                self._unfinished[partition].keep(KeyRanges(ranges))
            else:
                del self._unfinished[partition]
                self._committed.pop(partition, None)

    def deliver(self, partition: TopicPartition, records: Iterable[Record]) -> list[Record]:
        """Return the fetched records that are neither finished nor delivered already."""
        return [record for record in records if self._unfinished[partition].add(record)]

    def finish(self, partition: TopicPartition, offset: int) -> bool:
        """Finish a record. Return whether it was unfinished here."""
        unfinished = self._unfinished.get(partition)
        return unfinished is not None and unfinished.finish(offset)

    def find_end(self, partition: TopicPartition) -> int:
        """Return the offset after the highest one that was delivered; 0 without one."""
        return self._unfinished[partition].end if partition in self._unfinished else 0

    def restart(self, partition: TopicPartition, ranges: KeyRanges, position: int) -> None:
        """Read these ranges on at `position`, because the log does not have their old one."""
        self._unfinished[partition].truncate(ranges, position)

    def reread(
        self, partition: TopicPartition, range_positions: Iterable[RangePosition], position: int
    ) -> None:
        """Read all ranges again from `position`, without what is below their present positions."""
        for first, last, old_position in range_positions:
            if old_position > position:
                self.start(partition, first, last, [(position, old_position - 1)])
                self._unfinished[partition].reread_ranges.append((first, last, old_position))

    def forget_below(self, partition: TopicPartition, position: int) -> None:
        """Forget what was finished or read before, below the lowest position."""
        unfinished = self._unfinished[partition]
        unfinished.finished = [entry for entry in unfinished.finished if entry[2].last >= position]
        unfinished.reread_ranges = [
            entry for entry in unfinished.reread_ranges if entry[2] > position
        ]

    def should_fetch(self, partition: TopicPartition, position: int, ranges_max: int) -> bool:
        """Return whether to fetch at a position.

        At the limit of ranges of finished offsets nothing new is fetched. What is between finished
        offsets of an earlier owner is fetched in any case: only that closes the gaps.
        """
        unfinished = self._unfinished[partition]
        last_finished = max((offsets.last for _, _, offsets in unfinished.finished), default=-1)
        return len(unfinished.followed) < ranges_max or position <= last_finished

    # Committing.

    def collect_commits(
        self, partition: TopicPartition, range_positions: Iterable[RangePosition], ranges_max: int
    ) -> Commits | None:
        """Return what is finished of the ranges at their positions, with the lowest `ranges_max`
        ranges of finished offsets; None if that is committed."""
        commits = []
        remaining = ranges_max
        for range_position in self._unfinished[partition].find_read_positions(range_positions):
            commit = self._unfinished[partition].make_commit(range_position, remaining)
            commits.append(commit)
            remaining -= len(commit.finished)
        collected = tuple(commits)
        return None if collected == self._committed.get(partition) else collected

    def on_committed(self, partition: TopicPartition, commits: Commits) -> None:
        """Note what the coordinator has stored."""
        if partition in self._unfinished:
            self._committed[partition] = commits

    def forget_commits(self) -> None:
        """Commit everything again: another coordinator may lack it."""
        self._committed.clear()


class _UnfinishedRecords:
    """The records of one partition that were delivered and are not finished."""

    def __init__(self) -> None:
        #: In rising order, and the hash of each.
        self.offsets: list[int] = []
        self.hashes: dict[int, int] = {}
        self.followed: set[int] = set()
        #: The offset after the highest one that was delivered.
        self.end = 0
        #: Offsets that earlier owners of key ranges have finished above their positions.
        self.finished: list[tuple[int, int, OffsetSet]] = []
        #: Key ranges that are read again, with the positions that they had.
        self.reread_ranges: list[RangePosition] = []

    def add(self, record: Record) -> bool:
        """Add a record. Return False if it is finished, or was added before."""
        offset = record.offset
        if offset in self.hashes:
            return False
        hash_ = hash_record(record.key, offset)
        index = len(self.offsets)
        if self.offsets and offset < self.offsets[-1]:
            index = bisect_left(self.offsets, offset)
        if any(
            first <= hash_ <= last and offset in finished for first, last, finished in self.finished
        ):
            if index:
                self.followed.add(self.offsets[index - 1])
            return False
        self.offsets.insert(index, offset)
        self.hashes[offset] = hash_
        if offset < self.end:  # Later ones may be finished: its range was behind others.
            self.followed.add(offset)
        self.end = max(self.end, offset + 1)
        return True

    def finish(self, offset: int) -> bool:
        if self.hashes.pop(offset, None) is None:
            return False
        index = bisect_left(self.offsets, offset)
        del self.offsets[index]
        self.followed.discard(offset)
        if index:
            self.followed.add(self.offsets[index - 1])
        return True

    def keep(self, ranges: KeyRanges) -> None:
        """Forget the records of all other ranges, which have no place here."""
        self._keep_if(lambda offset: ranges.has_hash(self.hashes[offset]))
        self.finished = [
            (first, last, finished)
            for low, high, finished in self.finished
            for key_range in ranges
            if (first := max(low, key_range.first)) <= (last := min(high, key_range.last))
        ]
        self.reread_ranges = [
            part
            for key_range in ranges
            for part in key_range_map.clip_to_range(
                self.reread_ranges, key_range.first, key_range.last
            )
        ]

    def truncate(self, ranges: KeyRanges, position: int) -> None:
        """Forget the records of ranges from `position` on: they are others now."""
        self._keep_if(lambda o: o < position or not ranges.has_hash(self.hashes[o]))
        self.finished = [entry for entry in self.finished if entry[2].last < position]
        self.reread_ranges = [entry for entry in self.reread_ranges if entry[2] <= position]

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

    def find_read_positions(self, range_positions: Iterable[RangePosition]) -> list[RangePosition]:
        """Return the pieces at the positions up to which they have been read. Where they are read
        again, their present ones are lower."""
        read_positions = list(range_positions)
        for first, last, position in self.reread_ranges:
            read_positions = [
                part
                for range_position in read_positions
                for part in key_range_map.change_range(
                    [range_position], first, last, partial(max, position)
                )
            ]
        return read_positions

    def make_commit(self, range_position: RangePosition, ranges_max: int) -> KeyRangeCommit:
        """Return what is finished of a key range up to its position."""
        first, last, end = range_position
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
            return KeyRangeCommit(first, last, end)
        if followed and after < end:
            finished.append((after, end - 1))
        return KeyRangeCommit(first, last, position, tuple(finished[:ranges_max]))


def make_progress_fields(commits: Commits, *, individually: bool) -> dict[str, Any]:
    """Return the field of OffsetCommit with these commits. A coordinator without individual commits
    gets the positions alone; then a whole partition has no field."""
    if individually:
        return {"key_ranges": [commit.to_field() for commit in commits]}
    return make_commit_fields([commit[:3] for commit in commits])


def compute_width(ranges: Iterable[Range]) -> float:
    """Return the part of all hashes that ranges have, 0 to 1."""
    return sum(last - first + 1 for first, last in ranges) / (KEY_HASH_MAX + 1)
