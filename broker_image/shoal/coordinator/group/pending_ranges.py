"""Key ranges that transactions commit, beside the committed offsets (ADR 122).

An offset record has the state of a whole partition, so two open transactions cannot both write one.
A transaction that commits key ranges therefore writes a record of its own: what it adds to its key
ranges, under a key with its producer id. Transactions with disjoint key ranges of a partition are
open at the same time, and none of them waits.

When a transaction commits, its key ranges are added to the committed offset. Its record is
*settled*: the coordinator writes an offset record with the sum, and removes the transaction's
record by a tombstone in the same batch. Until then a shard that is loaded adds the key ranges
again, which changes nothing. A record that the committed offset replaced since, as a reset does, is
only removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.group import individual_commit
from shoal.coordinator.group.records import RecordType, tombstone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from shoal.coordinator.contract import Record, Replayed
    from shoal.coordinator.group.individual_commit import Pieces


class Place(NamedTuple):
    """A group's partition."""

    group_id: str
    topic: str
    partition: int


class Added(NamedTuple):
    """What a transaction adds to a partition. Pieces with the position -1 are not part of it."""

    pieces: Pieces
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: UUID | None
    record_offset: int

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The key ranges of the transaction."""
        return [(first, last) for first, last, p in self.pieces if p.stable_offset >= 0]

    def overlaps(self, ranges: Iterable[tuple[int, int]]) -> bool:
        mine = self.ranges
        return any(a <= last and first <= b for a, b in ranges for first, last in mine)


def key_of(place: Place, producer_id: int) -> dict[str, Any]:
    """The key of a transaction's record."""
    group_id, topic, partition = place
    return {"group": group_id, "topic": topic, "partition": partition, "producer_id": producer_id}


class PendingRanges:
    """The key ranges of transactions of one shard: open ones, and those to settle."""

    def __init__(self) -> None:
        self._open: dict[Place, dict[int, Added]] = {}
        self._of_producer: dict[int, dict[Place, None]] = {}
        #: Producers whose transactions have committed, and whose records are not removed.
        self._to_settle: dict[Place, dict[int, Added]] = {}

    def __len__(self) -> int:
        """The number of partitions of open transactions."""
        return sum(len(added) for added in self._open.values())

    def hard_state(self) -> Any:
        return (self._open, self._to_settle)

    def open_at(self, place: Place) -> dict[int, Added]:
        """What open transactions add to a partition, by producer id."""
        return self._open.get(place, {})

    def is_to_settle(self, place: Place, producer_id: int) -> bool:
        return producer_id in self._to_settle.get(place, ())

    def unsettled(self) -> Iterator[tuple[Place, list[int]]]:
        """The partitions and producers of records that are to be settled."""
        for place, added in self._to_settle.items():
            yield place, list(added)

    def groups(self) -> set[str]:
        """The groups with key ranges in open transactions or to settle."""
        return {place.group_id for place in (*self._open, *self._to_settle)}

    def of_group(self, group_id: str) -> Iterator[tuple[Place, int, Added]]:
        """All records of a group."""
        for found in (self._open, self._to_settle):
            for place, added in found.items():
                if place.group_id == group_id:
                    for producer_id, one in added.items():
                        yield place, producer_id, one

    def tombstones(self, place: Place) -> list[Record]:
        """Remove the records of a partition, also those of open transactions."""
        producers = {
            producer_id: None
            for found in (self._open, self._to_settle)
            for producer_id in found.get(place, ())
        }
        return [_tombstone(place, producer_id) for producer_id in producers]

    # Replay.

    def replay(self, key: dict[str, Any], value: dict[str, Any] | None, at: Replayed) -> None:
        place = Place(key["group"], key["topic"], key["partition"])
        producer_id = key["producer_id"]
        if value is None:
            _drop(self._open, place, producer_id)
            _drop(self._to_settle, place, producer_id)
            _drop(self._of_producer, producer_id, place)
        elif at.transactional and at.producer_id == producer_id:
            self._open.setdefault(place, {})[producer_id] = Added(
                individual_commit.added_in(value["key_ranges"]),
                value["leader_epoch"],
                value["metadata"],
                value["commit_timestamp"],
                value["topic_id"],
                at.offset,
            )
            self._of_producer.setdefault(producer_id, {})[place] = None

    def end(self, producer_id: int, committed: bool) -> list[tuple[Place, Added]]:
        """End a transaction. Returns what it added to which partitions."""
        ended = []
        for place in self._of_producer.pop(producer_id, {}):
            added = self._open[place][producer_id]
            _drop(self._open, place, producer_id)
            if committed:
                self._to_settle.setdefault(place, {})[producer_id] = added
            ended.append((place, added))
        return ended


def removed(place: Place, producers: Iterable[int]) -> list[Record]:
    """The tombstones of settled records."""
    return [_tombstone(place, producer_id) for producer_id in producers]


def _tombstone(place: Place, producer_id: int) -> Record:
    return tombstone(RecordType.KEY_RANGES_IN_TRANSACTION, **key_of(place, producer_id))


def _drop(found: dict[Any, dict[Any, Any]], outer: Any, inner: Any) -> None:
    """Remove an entry, and the level above it if it is empty."""
    below = found.get(outer)
    if below is not None:
        below.pop(inner, None)
        if not below:
            del found[outer]
