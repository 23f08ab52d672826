"""Types of responses about the metadata quorum, its controller and the brokers that it knows.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized
    from uuid import UUID


class VotePartitionData(TypedDict, total=False):
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    vote_granted: bool


class VoteTopicData(TypedDict, total=False):
    topic_name: str
    partitions: Sequence[VotePartitionData]


class VoteResponse(TypedDict, total=False):
    error_code: int
    topics: Sequence[VoteTopicData]
    node_endpoints: Sequence[VoteNodeEndpoint]


class VoteNodeEndpoint(TypedDict, total=False):
    node_id: int
    host: str
    port: int


class BeginQuorumEpochPartitionData(TypedDict, total=False):
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int


class BeginQuorumEpochTopicData(TypedDict, total=False):
    topic_name: str
    partitions: Sequence[BeginQuorumEpochPartitionData]


class BeginQuorumEpochResponse(TypedDict, total=False):
    error_code: int
    topics: Sequence[BeginQuorumEpochTopicData]
    node_endpoints: Sequence[BeginQuorumEpochNodeEndpoint]


class BeginQuorumEpochNodeEndpoint(TypedDict, total=False):
    node_id: int
    host: str
    port: int


class EndQuorumEpochPartitionData(TypedDict, total=False):
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int


class EndQuorumEpochTopicData(TypedDict, total=False):
    topic_name: str
    partitions: Sequence[EndQuorumEpochPartitionData]


class EndQuorumEpochResponse(TypedDict, total=False):
    error_code: int
    topics: Sequence[EndQuorumEpochTopicData]
    node_endpoints: Sequence[EndQuorumEpochNodeEndpoint]


class EndQuorumEpochNodeEndpoint(TypedDict, total=False):
    node_id: int
    host: str
    port: int


class FetchSnapshotSnapshotId(TypedDict, total=False):
    end_offset: int
    epoch: int


class FetchSnapshotLeaderIdAndEpoch(TypedDict, total=False):
    leader_id: int
    leader_epoch: int


class FetchSnapshotPartitionSnapshot(TypedDict, total=False):
    index: int
    error_code: int
    snapshot_id: FetchSnapshotSnapshotId
    current_leader: FetchSnapshotLeaderIdAndEpoch
    size: int
    position: int
    unaligned_records: Sized


class FetchSnapshotTopicSnapshot(TypedDict, total=False):
    name: str
    partitions: Sequence[FetchSnapshotPartitionSnapshot]


class FetchSnapshotResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    topics: Sequence[FetchSnapshotTopicSnapshot]
    node_endpoints: Sequence[FetchSnapshotNodeEndpoint]


class FetchSnapshotNodeEndpoint(TypedDict, total=False):
    node_id: int
    host: str
    port: int


class DescribeQuorumReplicaState(TypedDict, total=False):
    replica_id: int
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int
    replica_directory_id: UUID | None


class DescribeQuorumPartitionData(TypedDict, total=False):
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    high_watermark: int
    current_voters: Sequence[DescribeQuorumReplicaState]
    observers: Sequence[DescribeQuorumReplicaState]
    error_message: str | None


class DescribeQuorumTopicData(TypedDict, total=False):
    topic_name: str
    partitions: Sequence[DescribeQuorumPartitionData]


class DescribeQuorumResponse(TypedDict, total=False):
    error_code: int
    topics: Sequence[DescribeQuorumTopicData]
    error_message: str | None
    nodes: Sequence[DescribeQuorumNode]


class DescribeQuorumListener(TypedDict, total=False):
    name: str
    host: str
    port: int


class DescribeQuorumNode(TypedDict, total=False):
    node_id: int
    listeners: Sequence[DescribeQuorumListener]


class AddRaftVoterResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None


class RemoveRaftVoterResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None


class UpdateRaftVoterCurrentLeader(TypedDict, total=False):
    leader_id: int
    leader_epoch: int
    host: str
    port: int


class UpdateRaftVoterResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    current_leader: UpdateRaftVoterCurrentLeader


class AlterPartitionPartitionData(TypedDict, total=False):
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    isr: Sequence[int]
    leader_recovery_state: int
    partition_epoch: int


class AlterPartitionTopicData(TypedDict, total=False):
    topic_id: UUID | None
    partitions: Sequence[AlterPartitionPartitionData]


class AlterPartitionResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    topics: Sequence[AlterPartitionTopicData]


class UpdateFeaturesUpdatableFeatureResult(TypedDict, total=False):
    feature: str
    error_code: int
    error_message: str | None


class UpdateFeaturesResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: Sequence[UpdateFeaturesUpdatableFeatureResult]


class EnvelopeResponse(TypedDict, total=False):
    response_data: bytes | None
    error_code: int


class BrokerRegistrationResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    broker_epoch: int


class BrokerHeartbeatResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class UnregisterBrokerResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None


class UnregisterControllerResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None


class AllocateProducerIdsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    producer_id_start: int
    producer_id_len: int
