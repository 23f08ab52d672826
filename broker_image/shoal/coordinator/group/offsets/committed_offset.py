"""A committed offset of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.individual_commit import KeyRangePositions, KeyRangeProgress
from shoal.coordinator.group.records import THIS_RECORD

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.record.finished_offsets import FinishedOffsets


class GroupTopicPartition(NamedTuple):
    """A group's partition."""

    group_id: str
    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
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
    range_positions: KeyRangePositions = ()
    #: The offset of the record that replaced all key ranges last, if it is not this one.
    replaced_at: int = THIS_RECORD
    #: Whether transactions have added key ranges that no offset record has yet.
    is_sum: bool = False

    @property
    def replaced_offset(self) -> int:
        """The offset of the record before which transactions have no effect on this offset."""
        return self.record_offset if self.replaced_at == THIS_RECORD else self.replaced_at

    @property
    def progress(self) -> KeyRangePositions:
        return self.range_positions or individual_commit.make_single_range(
            KeyRangeProgress(self.offset)
        )

    @property
    def finished(self) -> FinishedOffsets:
        """Finished offsets above the position of the first key range."""
        return self.progress[0][2].finished

    @property
    def finished_count(self) -> int:
        """Number of finished offsets above the positions of all key ranges."""
        return sum(len(progress.finished) for _, _, progress in self.range_positions)

    @property
    def gap_timestamp_ms(self) -> int:
        """When the oldest gap below finished offsets appeared; -1 without a gap."""
        ages = [p.gap_timestamp_ms for _, _, p in self.range_positions if p.finished.count]
        return min(ages, default=-1)


def is_of_another_topic(offset: OffsetAndMetadata, topic_id: UUID | None) -> bool:
    """Whether both ids are known and differ: the topic was created again."""
    are_both_known = topic_id is not None and offset.topic_id is not None
    return are_both_known and topic_id != offset.topic_id
