"""The records of an offset commit that is being decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.offsets import individual_commit, pending_ranges
from shoal.coordinator.group.offsets.committed_offset import GroupTopicPartition
from shoal.coordinator.group.records import THIS_RECORD, RecordType, encode_record
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.contract import CoordinatorRecord
    from shoal.coordinator.group.groups import CommitCheck
    from shoal.coordinator.group.offsets.individual_commit import KeyRangePositions
    from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit

#: The most bytes of finished offsets that the records of one request have together, so that they
#: fit into one batch.
_FINISHED_BYTES_MAX = 512 << 10


class CommitDraft:
    """The records of a commit that is being decided."""

    def __init__(
        self, request: CommitRequest, check: CommitCheck | None, now_ms: int, expire_ms: int
    ) -> None:
        self.request, self.check, self.now_ms, self.expire_ms = request, check, now_ms, expire_ms
        self.records: list[CoordinatorRecord] = []
        self._finished_bytes = 0

    def add(
        self,
        topic: TopicCommit,
        p: PartitionCommit,
        offset: int,
        key_ranges: Sequence[Mapping[str, Any]] = (),
        replaced_at: int = THIS_RECORD,
    ) -> None:
        """Add the record of one partition."""
        value = {
            "offset": offset,
            "leader_epoch": p.leader_epoch,
            "metadata": p.metadata or "",
            "commit_timestamp": self.now_ms,
            "expire_timestamp": self.expire_ms,
            "topic_id": topic.topic_id,
            "key_ranges": key_ranges,
            "replaced_at": replaced_at,
        }
        # Only version 1 has an expiry of its own, for clients before KIP-211.
        version = None if self.expire_ms < 0 else 1
        key = {"group": self.request.group_id, "topic": topic.name, "partition": p.partition}
        self.records.append(encode_record(RecordType.OFFSET_COMMIT, key, value, version))

    def add_range_positions(
        self,
        topic: TopicCommit,
        p: PartitionCommit,
        range_positions: KeyRangePositions,
        replaced_at: int = THIS_RECORD,
    ) -> None:
        """Add the record of an individual commit. Raises `ApiError` if the finished offsets do not
        fit into the batch."""
        key_ranges = individual_commit.to_wire(range_positions)
        self._check_size(topic, p, key_ranges)
        self.add(
            topic, p, individual_commit.get_stable_offset(range_positions), key_ranges, replaced_at
        )

    def add_in_transaction(
        self, topic: TopicCommit, p: PartitionCommit, range_positions: KeyRangePositions
    ) -> None:
        """Add the record of key ranges that a transaction commits. Raises `ApiError`."""
        assert self.request.producer is not None
        key_ranges = individual_commit.to_transaction_wire(range_positions)
        self._check_size(topic, p, key_ranges)
        group_partition = GroupTopicPartition(self.request.group_id, topic.name, p.partition)
        value = {
            "key_ranges": key_ranges,
            "leader_epoch": p.leader_epoch,
            "metadata": p.metadata or "",
            "commit_timestamp": self.now_ms,
            "topic_id": topic.topic_id,
        }
        key = pending_ranges.make_key(group_partition, self.request.producer.producer_id)
        self.records.append(encode_record(RecordType.KEY_RANGES_IN_TRANSACTION, key, value))

    def _check_size(
        self, topic: TopicCommit, p: PartitionCommit, key_ranges: Sequence[Mapping[str, Any]]
    ) -> None:
        added = sum(len(stored["finished"]) for stored in key_ranges)
        if self._finished_bytes and self._finished_bytes + added > _FINISHED_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_commit_offset_size,
                f"The partitions of the request have more than {_FINISHED_BYTES_MAX} bytes of "
                f"finished offsets. Commit {topic.name}-{p.partition} in another request.",
            )
        self._finished_bytes += added
