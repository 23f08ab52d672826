"""Types of responses about groups of consumers, their members and offsets.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class FindCoordinatorResponse(TypedDict, total=False):
    error_code: int
    node_id: int
    host: str
    port: int
    throttle_time_ms: int
    error_message: str | None
    coordinators: Sequence[FindCoordinatorCoordinator]


class FindCoordinatorCoordinator(TypedDict, total=False):
    key: str
    node_id: int
    host: str
    port: int
    error_code: int
    error_message: str | None


class JoinGroupResponseMember(TypedDict, total=False):
    member_id: str
    metadata: bytes
    group_instance_id: str | None


class JoinGroupResponse(TypedDict, total=False):
    error_code: int
    generation_id: int
    protocol_name: str | None
    leader: str
    member_id: str
    members: Sequence[JoinGroupResponseMember]
    throttle_time_ms: int
    protocol_type: str | None
    skip_assignment: bool


class HeartbeatResponse(TypedDict, total=False):
    error_code: int
    throttle_time_ms: int


class LeaveGroupResponse(TypedDict, total=False):
    error_code: int
    throttle_time_ms: int
    members: Sequence[LeaveGroupMemberResponse]


class LeaveGroupMemberResponse(TypedDict, total=False):
    member_id: str
    group_instance_id: str | None
    error_code: int


class SyncGroupResponse(TypedDict, total=False):
    error_code: int
    assignment: bytes
    throttle_time_ms: int
    protocol_type: str | None
    protocol_name: str | None


class DescribeGroupsDescribedGroupMember(TypedDict, total=False):
    member_id: str
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes
    group_instance_id: str | None


class DescribeGroupsDescribedGroup(TypedDict, total=False):
    error_code: int
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: Sequence[DescribeGroupsDescribedGroupMember]
    authorized_operations: int
    error_message: str | None


class DescribeGroupsResponse(TypedDict, total=False):
    groups: Sequence[DescribeGroupsDescribedGroup]
    throttle_time_ms: int


class ListGroupsListedGroup(TypedDict, total=False):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResponse(TypedDict, total=False):
    error_code: int
    groups: Sequence[ListGroupsListedGroup]
    throttle_time_ms: int


class DeleteGroupsDeletableGroupResult(TypedDict, total=False):
    group_id: str
    error_code: int
    error_message: str | None


class DeleteGroupsResponse(TypedDict, total=False):
    throttle_time_ms: int
    results: Sequence[DeleteGroupsDeletableGroupResult]


class OffsetCommitIndividualCommit(TypedDict, total=False):
    stable_offset: int
    error_message: str | None


class OffsetCommitResponsePartition(TypedDict, total=False):
    partition_index: int
    error_code: int
    individual_commit: OffsetCommitIndividualCommit | None


class OffsetCommitResponseTopic(TypedDict, total=False):
    name: str
    partitions: Sequence[OffsetCommitResponsePartition]
    topic_id: UUID | None


class OffsetCommitResponse(TypedDict, total=False):
    topics: Sequence[OffsetCommitResponseTopic]
    throttle_time_ms: int


class OffsetFetchResponsePartition(TypedDict, total=False):
    partition_index: int
    committed_offset: int
    metadata: str | None
    error_code: int
    committed_leader_epoch: int


class OffsetFetchResponseTopic(TypedDict, total=False):
    name: str
    partitions: Sequence[OffsetFetchResponsePartition]


class OffsetFetchResponse(TypedDict, total=False):
    topics: Sequence[OffsetFetchResponseTopic]
    error_code: int
    throttle_time_ms: int
    groups: Sequence[OffsetFetchResponseGroup]


class OffsetFetchKeyRange(TypedDict, total=False):
    first_hash: int
    last_hash: int
    position: int
    finished: bytes
    gap_timestamp: int


class OffsetFetchResponsePartitions(TypedDict, total=False):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str | None
    error_code: int
    key_ranges: Sequence[OffsetFetchKeyRange]


class OffsetFetchResponseTopics(TypedDict, total=False):
    name: str
    partitions: Sequence[OffsetFetchResponsePartitions]
    topic_id: UUID | None


class OffsetFetchResponseGroup(TypedDict, total=False):
    group_id: str
    topics: Sequence[OffsetFetchResponseTopics]
    error_code: int
    ranges_max: int


class OffsetDeleteResponsePartition(TypedDict, total=False):
    partition_index: int
    error_code: int


class OffsetDeleteResponseTopic(TypedDict, total=False):
    name: str
    partitions: Sequence[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(TypedDict, total=False):
    error_code: int
    throttle_time_ms: int
    topics: Sequence[OffsetDeleteResponseTopic]


class ConsumerGroupHeartbeatTopicPartitions(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[int]


class ConsumerGroupHeartbeatFetchedKeyRange(TypedDict, total=False):
    first_hash: int
    last_hash: int


class ConsumerGroupHeartbeatSharedPartition(TypedDict, total=False):
    topic_id: UUID | None
    partition: int
    ranges: Sequence[ConsumerGroupHeartbeatFetchedKeyRange]


class ConsumerGroupHeartbeatAssignment(TypedDict, total=False):
    topic_partitions: Sequence[ConsumerGroupHeartbeatTopicPartitions]
    key_ranges: Sequence[ConsumerGroupHeartbeatSharedPartition]


class ConsumerGroupHeartbeatResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ConsumerGroupHeartbeatAssignment | None


class ConsumerGroupDescribeTopicPartitions(TypedDict, total=False):
    topic_id: UUID | None
    topic_name: str
    partitions: Sequence[int]


class ConsumerGroupDescribeAssignment(TypedDict, total=False):
    topic_partitions: Sequence[ConsumerGroupDescribeTopicPartitions]


class ConsumerGroupDescribeFetchedKeyRange(TypedDict, total=False):
    first_hash: int
    last_hash: int


class ConsumerGroupDescribeSharedPartition(TypedDict, total=False):
    topic_id: UUID | None
    partition: int
    ranges: Sequence[ConsumerGroupDescribeFetchedKeyRange]


class ConsumerGroupDescribeMember(TypedDict, total=False):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str]
    subscribed_topic_regex: str | None
    assignment: ConsumerGroupDescribeAssignment
    target_assignment: ConsumerGroupDescribeAssignment
    key_ranges: Sequence[ConsumerGroupDescribeSharedPartition]
    member_type: int


class ConsumerGroupDescribeDescribedGroup(TypedDict, total=False):
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: Sequence[ConsumerGroupDescribeMember]
    authorized_operations: int


class ConsumerGroupDescribeResponse(TypedDict, total=False):
    throttle_time_ms: int
    groups: Sequence[ConsumerGroupDescribeDescribedGroup]


class StreamsGroupHeartbeatStatus(TypedDict, total=False):
    status_code: int
    status_detail: str


class StreamsGroupHeartbeatTaskIds(TypedDict, total=False):
    subtopology_id: str
    partitions: Sequence[int]


class StreamsGroupHeartbeatEndpoint(TypedDict, total=False):
    host: str
    port: int


class StreamsGroupHeartbeatTopicPartition(TypedDict, total=False):
    topic: str
    partitions: Sequence[int]


class StreamsGroupHeartbeatEndpointToPartitions(TypedDict, total=False):
    user_endpoint: StreamsGroupHeartbeatEndpoint
    active_partitions: Sequence[StreamsGroupHeartbeatTopicPartition]
    standby_partitions: Sequence[StreamsGroupHeartbeatTopicPartition]


class StreamsGroupHeartbeatResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    acceptable_recovery_lag: int
    task_offset_interval_ms: int
    status: Sequence[StreamsGroupHeartbeatStatus] | None
    active_tasks: Sequence[StreamsGroupHeartbeatTaskIds] | None
    standby_tasks: Sequence[StreamsGroupHeartbeatTaskIds] | None
    warmup_tasks: Sequence[StreamsGroupHeartbeatTaskIds] | None
    endpoint_information_epoch: int
    partitions_by_user_endpoint: Sequence[StreamsGroupHeartbeatEndpointToPartitions] | None
    topology_description_required: bool


class StreamsGroupDescribeKeyValue(TypedDict, total=False):
    key: str
    value: str


class StreamsGroupDescribeTopicInfo(TypedDict, total=False):
    name: str
    partitions: int
    replication_factor: int
    topic_configs: Sequence[StreamsGroupDescribeKeyValue]


class StreamsGroupDescribeSubtopology(TypedDict, total=False):
    subtopology_id: str
    source_topics: Sequence[str]
    repartition_sink_topics: Sequence[str]
    state_changelog_topics: Sequence[StreamsGroupDescribeTopicInfo]
    repartition_source_topics: Sequence[StreamsGroupDescribeTopicInfo]


class StreamsGroupDescribeTopology(TypedDict, total=False):
    epoch: int
    subtopologies: Sequence[StreamsGroupDescribeSubtopology] | None


class StreamsGroupDescribeEndpoint(TypedDict, total=False):
    host: str
    port: int


class StreamsGroupDescribeTaskOffset(TypedDict, total=False):
    subtopology_id: str
    partition: int
    offset: int


class StreamsGroupDescribeTaskIds(TypedDict, total=False):
    subtopology_id: str
    partitions: Sequence[int]


class StreamsGroupDescribeAssignment(TypedDict, total=False):
    active_tasks: Sequence[StreamsGroupDescribeTaskIds]
    standby_tasks: Sequence[StreamsGroupDescribeTaskIds]
    warmup_tasks: Sequence[StreamsGroupDescribeTaskIds]


class StreamsGroupDescribeMember(TypedDict, total=False):
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    user_endpoint: StreamsGroupDescribeEndpoint | None
    client_tags: Sequence[StreamsGroupDescribeKeyValue]
    task_offsets: Sequence[StreamsGroupDescribeTaskOffset]
    task_end_offsets: Sequence[StreamsGroupDescribeTaskOffset]
    assignment: StreamsGroupDescribeAssignment
    target_assignment: StreamsGroupDescribeAssignment
    is_classic: bool


class StreamsGroupDescribeDescribedGroup(TypedDict, total=False):
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    topology: StreamsGroupDescribeTopology | None
    members: Sequence[StreamsGroupDescribeMember]
    authorized_operations: int
    topology_description: StreamsGroupDescribeTopologyDescription | None
    topology_description_status: int
    assignor_name: str | None


class StreamsGroupDescribeResponse(TypedDict, total=False):
    throttle_time_ms: int
    groups: Sequence[StreamsGroupDescribeDescribedGroup]


class StreamsGroupDescribeTopologyDescriptionNode(TypedDict, total=False):
    name: str
    node_type: int
    source_topics: Sequence[str]
    sink_topic: str | None
    stores: Sequence[str]
    successors: Sequence[str]


class StreamsGroupDescribeTopologyDescriptionSubtopology(TypedDict, total=False):
    subtopology_id: str
    nodes: Sequence[StreamsGroupDescribeTopologyDescriptionNode]


class StreamsGroupDescribeTopologyDescriptionGlobalStore(TypedDict, total=False):
    source: StreamsGroupDescribeTopologyDescriptionNode
    processor: StreamsGroupDescribeTopologyDescriptionNode


class StreamsGroupDescribeTopologyDescription(TypedDict, total=False):
    subtopologies: Sequence[StreamsGroupDescribeTopologyDescriptionSubtopology]
    global_stores: Sequence[StreamsGroupDescribeTopologyDescriptionGlobalStore]


class StreamsGroupTopologyDescriptionUpdateResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
