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

from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.committed_offset import (
    GroupTopicPartition,
    OffsetAndMetadata,
    is_of_another_topic,
)
from shoal.coordinator.group.records import (
    THIS_RECORD,
    RecordType,
    encode_record,
    encode_tombstone,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from shoal.coordinator.contract import CoordinatorRecord, RecordOrigin
    from shoal.coordinator.group.offsets.individual_commit import KeyRangePositions


class TransactionDelta(NamedTuple):
    """What a transaction adds to a partition. Pieces with the position -1 are not part of it."""

    range_positions: KeyRangePositions
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: UUID | None
    record_offset: int

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The key ranges of the transaction."""
        return [(first, last) for first, last, p in self.range_positions if p.stable_offset >= 0]

    def has_overlap(self, ranges: Iterable[tuple[int, int]]) -> bool:
        mine = self.ranges
        return any(a <= last and first <= b for a, b in ranges for first, last in mine)


def make_key(group_partition: GroupTopicPartition, producer_id: int) -> dict[str, Any]:
    """The key of a transaction's record."""
    group_id, topic, partition = group_partition
    return {"group": group_id, "topic": topic, "partition": partition, "producer_id": producer_id}


class PendingRanges:
    """The key ranges of transactions of one shard: open ones, and those to settle."""

    def __init__(self) -> None:
        self._open: dict[GroupTopicPartition, dict[int, TransactionDelta]] = {}
        self._of_producer: dict[int, dict[GroupTopicPartition, None]] = {}
        #: Producers whose transactions have committed, and whose records are not removed.
        self._to_settle: dict[GroupTopicPartition, dict[int, TransactionDelta]] = {}

    def __len__(self) -> int:
        """The number of partitions of open transactions."""
        return sum(len(added) for added in self._open.values())

    def get_hard_state(self) -> Any:
        return (self._open, self._to_settle)

    def get_open(self, group_partition: GroupTopicPartition) -> dict[int, TransactionDelta]:
        """What open transactions add to a partition, by producer id."""
        return self._open.get(group_partition, {})

    def is_to_settle(self, group_partition: GroupTopicPartition, producer_id: int) -> bool:
        return producer_id in self._to_settle.get(group_partition, ())

    def find_unsettled(self) -> Iterator[tuple[GroupTopicPartition, list[int]]]:
        """The partitions and producers of records that are to be settled."""
        for group_partition, by_producer in self._to_settle.items():
            yield group_partition, list(by_producer)

    def get_group_ids(self) -> set[str]:
        """The groups with key ranges in open transactions or to settle."""
        return {group_partition.group_id for group_partition in (*self._open, *self._to_settle)}

    def find_group_deltas(
        self, group_id: str
    ) -> Iterator[tuple[GroupTopicPartition, int, TransactionDelta]]:
        """All records of a group."""
        for by_partition in (self._open, self._to_settle):
            for group_partition, by_producer in by_partition.items():
                if group_partition.group_id == group_id:
                    for producer_id, delta in by_producer.items():
                        yield group_partition, producer_id, delta

    def build_tombstones(self, group_partition: GroupTopicPartition) -> list[CoordinatorRecord]:
        """Remove the records of a partition, also those of open transactions."""
        producers = {
            producer_id: None
            for by_partition in (self._open, self._to_settle)
            for producer_id in by_partition.get(group_partition, ())
        }
        return [_build_tombstone(group_partition, producer_id) for producer_id in producers]

    # Replay.

    def replay(
        self, key: dict[str, Any], value: dict[str, Any] | None, origin: RecordOrigin
    ) -> None:
        group_partition = GroupTopicPartition(key["group"], key["topic"], key["partition"])
        producer_id = key["producer_id"]
        if value is None:
            _drop(self._open, group_partition, producer_id)
            _drop(self._to_settle, group_partition, producer_id)
            _drop(self._of_producer, producer_id, group_partition)
        elif origin.transactional and origin.producer_id == producer_id:
            self._open.setdefault(group_partition, {})[producer_id] = TransactionDelta(
                individual_commit.from_transaction_record(value["key_ranges"]),
                value["leader_epoch"],
                value["metadata"],
                value["commit_timestamp"],
                value["topic_id"],
                origin.offset,
            )
            self._of_producer.setdefault(producer_id, {})[group_partition] = None

    def end(
        self, producer_id: int, committed: bool
    ) -> list[tuple[GroupTopicPartition, TransactionDelta]]:
        """End a transaction. Returns what it added to which partitions."""
        ended = []
        for group_partition in self._of_producer.pop(producer_id, {}):
            delta = self._open[group_partition][producer_id]
            _drop(self._open, group_partition, producer_id)
            if committed:
                self._to_settle.setdefault(group_partition, {})[producer_id] = delta
            ended.append((group_partition, delta))
        return ended


def add_delta(
    current: OffsetAndMetadata | None, delta: TransactionDelta
) -> OffsetAndMetadata | None:
    """Return the offset after a transaction with key ranges; None if it was replaced since."""
    if current is not None and delta.record_offset < current.replaced_offset:
        return None
    if current is not None and is_of_another_topic(current, delta.topic_id):
        current = None
    now_ms = delta.commit_timestamp_ms
    before = None if current is None else current.progress
    commits = individual_commit.as_commits(delta.range_positions)
    range_positions = individual_commit.add_commits(before, commits, now_ms)
    stable = individual_commit.get_stable_offset(range_positions)
    epoch = delta.leader_epoch
    if current is not None and current.offset == stable:
        epoch = current.leader_epoch
    return OffsetAndMetadata(
        stable,
        epoch,
        delta.metadata,
        now_ms,
        -1,
        delta.topic_id,
        -1 if current is None else current.record_offset,
        () if individual_commit.is_plain(range_positions) else range_positions,
        -1 if current is None else current.replaced_offset,
        is_sum=True,
    )


def build_sum_record(
    group_partition: GroupTopicPartition, offset: OffsetAndMetadata, *, is_open: bool
) -> CoordinatorRecord:
    """Return the record of an offset to which transactions have added key ranges. While others are
    open (`is_open`), they are added to this record later."""
    key = {
        "group": group_partition.group_id,
        "topic": group_partition.topic,
        "partition": group_partition.partition,
    }
    value = {
        "offset": offset.offset,
        "leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "commit_timestamp": offset.commit_timestamp_ms,
        "expire_timestamp": -1,
        "topic_id": offset.topic_id,
        "key_ranges": individual_commit.to_wire(offset.progress),
        "replaced_at": offset.replaced_offset if is_open else THIS_RECORD,
    }
    return encode_record(RecordType.OFFSET_COMMIT, key, value)


def build_settled_tombstones(
    group_partition: GroupTopicPartition, producers: Iterable[int]
) -> list[CoordinatorRecord]:
    """The tombstones of settled records."""
    return [_build_tombstone(group_partition, producer_id) for producer_id in producers]


def _build_tombstone(group_partition: GroupTopicPartition, producer_id: int) -> CoordinatorRecord:
    return encode_tombstone(
        RecordType.KEY_RANGES_IN_TRANSACTION, **make_key(group_partition, producer_id)
    )


def _drop(index: dict[Any, dict[Any, Any]], outer: Any, inner: Any) -> None:
    """Remove an entry, and the level above it if it is empty."""
    below = index.get(outer)
    if below is not None:
        below.pop(inner, None)
        if not below:
            del index[outer]
