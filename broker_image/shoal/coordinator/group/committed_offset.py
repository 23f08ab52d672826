"""A committed offset of a group, and how transactions with key ranges change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group import individual_commit
from shoal.coordinator.group.individual_commit import Pieces, Progress
from shoal.coordinator.group.records import THIS_RECORD, RecordType, record

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.coordinator.contract import Record
    from shoal.coordinator.group.pending_ranges import Added, Place
    from shoal.record.finished_offsets import FinishedOffsets


class Offset(NamedTuple):
    """A committed offset. `record_offset` is the offset of its record in the log."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: UUID | None
    record_offset: int
    #: Positions of key ranges and finished offsets above them. Without any, all records below
    #: `offset` are finished, and no others.
    pieces: Pieces = ()
    #: The offset of the record that replaced all key ranges last, if it is not this one.
    replaced_at: int = THIS_RECORD
    #: Whether transactions have added key ranges that no offset record has yet.
    is_sum: bool = False

    @property
    def replaced_offset(self) -> int:
        """The offset of the record before which transactions have no effect on this offset."""
        return self.record_offset if self.replaced_at == THIS_RECORD else self.replaced_at

    @property
    def progress(self) -> Pieces:
        return self.pieces or individual_commit.whole(Progress(self.offset))

    @property
    def finished(self) -> FinishedOffsets:
        """Finished offsets above the position of the first key range."""
        return self.progress[0][2].finished

    @property
    def finished_count(self) -> int:
        """Number of finished offsets above the positions of all key ranges."""
        return sum(len(progress.finished) for _, _, progress in self.pieces)

    @property
    def gap_timestamp_ms(self) -> int:
        """When the oldest gap below finished offsets appeared; -1 without a gap."""
        ages = [p.gap_timestamp_ms for _, _, p in self.pieces if p.finished.count]
        return min(ages, default=-1)


def of_another_topic(offset: Offset, topic_id: UUID | None) -> bool:
    """Whether both ids are known and differ: the topic was created again."""
    known = topic_id is not None and offset.topic_id is not None
    return known and topic_id != offset.topic_id


def with_key_ranges(current: Offset | None, added: Added) -> Offset | None:
    """Return the offset after a transaction with key ranges; None if it was replaced since."""
    if current is not None and added.record_offset < current.replaced_offset:
        return None
    if current is not None and of_another_topic(current, added.topic_id):
        current = None
    now_ms = added.commit_timestamp_ms
    before = None if current is None else current.progress
    commits = individual_commit.as_commits(added.pieces)
    pieces = individual_commit.added(before, commits, now_ms)
    stable = individual_commit.stable_offset(pieces)
    epoch = added.leader_epoch
    if current is not None and current.offset == stable:
        epoch = current.leader_epoch
    return Offset(
        stable,
        epoch,
        added.metadata,
        now_ms,
        -1,
        added.topic_id,
        -1 if current is None else current.record_offset,
        () if individual_commit.is_plain(pieces) else pieces,
        -1 if current is None else current.replaced_offset,
        is_sum=True,
    )


def settled(place: Place, offset: Offset, *, is_open: bool) -> Record:
    """Return the record of an offset to which transactions have added key ranges. While others are
    open (`is_open`), they are added to this record later."""
    key = {"group": place.group_id, "topic": place.topic, "partition": place.partition}
    value = {
        "offset": offset.offset,
        "leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "commit_timestamp": offset.commit_timestamp_ms,
        "expire_timestamp": -1,
        "topic_id": offset.topic_id,
        "key_ranges": individual_commit.on_wire(offset.progress),
        "replaced_at": offset.replaced_offset if is_open else THIS_RECORD,
    }
    return record(RecordType.OFFSET_COMMIT, key, value)
