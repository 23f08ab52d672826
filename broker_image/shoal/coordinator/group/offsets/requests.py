"""What clients ask of committed offsets: commits and queries, as handlers hand them over."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.group.offsets.commit_order import NO_RECORD
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.coordinator.contract import ProducerIdAndEpoch
    from shoal.coordinator.group.groups import CommitCheck, Group
    from shoal.coordinator.group.offsets.individual_commit import KeyRangeRequest


#: Since this version of TxnOffsetCommit, a group that does not exist and the epoch of a member that
#: is not the present one have errors of their own (KIP-1319).
TXN_NEWER_ERRORS_SINCE = 6


class PartitionCommit(NamedTuple):
    """The commit of one partition. With `key_ranges` it is individual, and `offset` is ignored."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    key_ranges: Sequence[KeyRangeRequest] = ()
    #: The offset of the first record of a transaction that commits in the order of the partition.
    first_offset: int = NO_RECORD


class TopicCommit(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: Sequence[PartitionCommit]


class CommitRequest(NamedTuple):
    """OffsetCommit, or TxnOffsetCommit with a `producer`."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    generation_id_or_member_epoch: int
    topics: Sequence[TopicCommit]
    api_version: int
    retention_time_ms: int = -1
    producer: ProducerIdAndEpoch | None = None
    #: How long a transaction may wait for its turn, and the connection whose end ends that.
    order_timeout_ms: int = -1
    connection_id: str = ""

    @property
    def is_transactional(self) -> bool:
        return self.producer is not None

    @property
    def is_individual(self) -> bool:
        return any(p.key_ranges for topic in self.topics for p in topic.partitions)

    @property
    def is_ordered(self) -> bool:
        """Whether it waits for its turn in the order of a partition (`ordered_commits`)."""
        return self.is_transactional and any(
            p.first_offset != NO_RECORD for topic in self.topics for p in topic.partitions
        )


class TopicQuery(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: Sequence[int]


def check_member(group: Group, request: CommitRequest) -> CommitCheck | None:
    """Return the check of each partition that the member commits. Raises `ApiError` to refuse
    it."""
    try:
        return group.check_offset_commit(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id_or_member_epoch=request.generation_id_or_member_epoch,
            transactional=request.is_transactional,
            api_version=request.api_version,
        )
    except ApiError as error:
        if error.code is not ErrorCode.stale_member_epoch or not request.is_transactional:
            raise
        if request.api_version >= TXN_NEWER_ERRORS_SINCE:
            raise
        raise ApiError(ErrorCode.illegal_generation, error.message) from None
