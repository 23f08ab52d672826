"""Types of responses about share groups and the state of share partitions.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class ShareGroupHeartbeatTopicPartitions(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[int]


class ShareGroupHeartbeatAssignment(TypedDict, total=False):
    topic_partitions: Sequence[ShareGroupHeartbeatTopicPartitions]


class ShareGroupHeartbeatResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ShareGroupHeartbeatAssignment | None


class ShareGroupDescribeTopicPartitions(TypedDict, total=False):
    topic_id: UUID | None
    topic_name: str
    partitions: Sequence[int]


class ShareGroupDescribeAssignment(TypedDict, total=False):
    topic_partitions: Sequence[ShareGroupDescribeTopicPartitions]


class ShareGroupDescribeMember(TypedDict, total=False):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str]
    assignment: ShareGroupDescribeAssignment


class ShareGroupDescribeDescribedGroup(TypedDict, total=False):
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: Sequence[ShareGroupDescribeMember]
    authorized_operations: int


class ShareGroupDescribeResponse(TypedDict, total=False):
    throttle_time_ms: int
    groups: Sequence[ShareGroupDescribeDescribedGroup]


class InitializeShareGroupStatePartitionResult(TypedDict, total=False):
    partition: int
    error_code: int
    error_message: str | None


class InitializeShareGroupStateInitializeStateResult(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[InitializeShareGroupStatePartitionResult]


class InitializeShareGroupStateResponse(TypedDict, total=False):
    results: Sequence[InitializeShareGroupStateInitializeStateResult]


class ReadShareGroupStateStateBatch(TypedDict, total=False):
    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ReadShareGroupStateDelay(TypedDict, total=False):
    first_offset: int
    last_offset: int
    delivery_count: int
    available_timestamp: int


class ReadShareGroupStatePartitionResult(TypedDict, total=False):
    partition: int
    error_code: int
    error_message: str | None
    state_epoch: int
    start_offset: int
    state_batches: Sequence[ReadShareGroupStateStateBatch]
    delays: Sequence[ReadShareGroupStateDelay]


class ReadShareGroupStateReadStateResult(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[ReadShareGroupStatePartitionResult]


class ReadShareGroupStateResponse(TypedDict, total=False):
    results: Sequence[ReadShareGroupStateReadStateResult]


class WriteShareGroupStatePartitionResult(TypedDict, total=False):
    partition: int
    error_code: int
    error_message: str | None


class WriteShareGroupStateWriteStateResult(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[WriteShareGroupStatePartitionResult]


class WriteShareGroupStateResponse(TypedDict, total=False):
    results: Sequence[WriteShareGroupStateWriteStateResult]


class DeleteShareGroupStatePartitionResult(TypedDict, total=False):
    partition: int
    error_code: int
    error_message: str | None


class DeleteShareGroupStateDeleteStateResult(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[DeleteShareGroupStatePartitionResult]


class DeleteShareGroupStateResponse(TypedDict, total=False):
    results: Sequence[DeleteShareGroupStateDeleteStateResult]


class ReadShareGroupStateSummaryDelay(TypedDict, total=False):
    first_offset: int
    last_offset: int
    delivery_count: int
    available_timestamp: int


class ReadShareGroupStateSummaryPartitionResult(TypedDict, total=False):
    partition: int
    error_code: int
    error_message: str | None
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delays: Sequence[ReadShareGroupStateSummaryDelay]
    delivery_complete_count: int


class ReadShareGroupStateSummaryReadStateSummaryResult(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[ReadShareGroupStateSummaryPartitionResult]


class ReadShareGroupStateSummaryTenantLoan(TypedDict, total=False):
    name: bytes
    lent: int
    kept: int
    per_second: float


class ReadShareGroupStateSummaryResponse(TypedDict, total=False):
    results: Sequence[ReadShareGroupStateSummaryReadStateSummaryResult]
    tenant_loans: Sequence[ReadShareGroupStateSummaryTenantLoan]


class DescribeShareGroupOffsetsHeldOffsets(TypedDict, total=False):
    first_offset: int
    last_offset: int
    delivery_count: int


class DescribeShareGroupOffsetsInFlight(TypedDict, total=False):
    first_offset: int
    last_offset: int
    state: int
    delivery_count: int
    member_id: str
    time_left_ms: int
    failure: str


class DescribeShareGroupOffsetsResponsePartition(TypedDict, total=False):
    partition_index: int
    start_offset: int
    leader_epoch: int
    error_code: int
    error_message: str | None
    held_offsets: Sequence[DescribeShareGroupOffsetsHeldOffsets]
    in_flight: Sequence[DescribeShareGroupOffsetsInFlight]
    next_offset: int
    lag: int


class DescribeShareGroupOffsetsResponseTopic(TypedDict, total=False):
    topic_name: str
    topic_id: UUID | None
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition]


class DescribeShareGroupOffsetsResponseGroup(TypedDict, total=False):
    group_id: str
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic]
    error_code: int
    error_message: str | None


class DescribeShareGroupOffsetsResponse(TypedDict, total=False):
    throttle_time_ms: int
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup]


class AlterShareGroupOffsetsCancelledRecords(TypedDict, total=False):
    first_offset: int
    last_offset: int
    outcome: int


class AlterShareGroupOffsetsResponsePartition(TypedDict, total=False):
    partition_index: int
    error_code: int
    error_message: str | None
    cancelled: Sequence[AlterShareGroupOffsetsCancelledRecords]


class AlterShareGroupOffsetsResponseTopic(TypedDict, total=False):
    topic_name: str
    topic_id: UUID | None
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition]


class AlterShareGroupOffsetsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: Sequence[AlterShareGroupOffsetsResponseTopic]


class DeleteShareGroupOffsetsResponseTopic(TypedDict, total=False):
    topic_name: str
    topic_id: UUID | None
    error_code: int
    error_message: str | None


class DeleteShareGroupOffsetsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic]
