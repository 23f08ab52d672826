"""Types of responses about topics, their partitions and configs.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class CreateTopicsCreatableTopicResult(TypedDict, total=False):
    name: str
    error_code: int
    error_message: str | None
    topic_config_error_code: int
    num_partitions: int
    replication_factor: int
    configs: Sequence[CreateTopicsCreatableTopicConfigs] | None
    topic_id: UUID | None


class CreateTopicsResponse(TypedDict, total=False):
    throttle_time_ms: int
    topics: Sequence[CreateTopicsCreatableTopicResult]


class CreateTopicsCreatableTopicConfigs(TypedDict, total=False):
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool


class DeleteTopicsDeletableTopicResult(TypedDict, total=False):
    name: str | None
    error_code: int
    error_message: str | None
    topic_id: UUID | None


class DeleteTopicsResponse(TypedDict, total=False):
    throttle_time_ms: int
    responses: Sequence[DeleteTopicsDeletableTopicResult]


class DeleteRecordsPartitionResult(TypedDict, total=False):
    partition_index: int
    low_watermark: int
    error_code: int


class DeleteRecordsTopicResult(TypedDict, total=False):
    name: str
    partitions: Sequence[DeleteRecordsPartitionResult]


class DeleteRecordsResponse(TypedDict, total=False):
    throttle_time_ms: int
    topics: Sequence[DeleteRecordsTopicResult]


class CreatePartitionsTopicResult(TypedDict, total=False):
    name: str
    error_code: int
    error_message: str | None


class CreatePartitionsResponse(TypedDict, total=False):
    throttle_time_ms: int
    results: Sequence[CreatePartitionsTopicResult]


class ElectLeadersPartitionResult(TypedDict, total=False):
    partition_id: int
    error_code: int
    error_message: str | None


class ElectLeadersReplicaElectionResult(TypedDict, total=False):
    topic: str
    partition_result: Sequence[ElectLeadersPartitionResult]


class ElectLeadersResponse(TypedDict, total=False):
    throttle_time_ms: int
    replica_election_results: Sequence[ElectLeadersReplicaElectionResult]
    error_code: int


class AlterConfigsResourceResponse(TypedDict, total=False):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class AlterConfigsResponse(TypedDict, total=False):
    throttle_time_ms: int
    responses: Sequence[AlterConfigsResourceResponse]


class IncrementalAlterConfigsAlterConfigsResourceResponse(TypedDict, total=False):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class IncrementalAlterConfigsResponse(TypedDict, total=False):
    throttle_time_ms: int
    responses: Sequence[IncrementalAlterConfigsAlterConfigsResourceResponse]


class AlterPartitionReassignmentsReassignablePartitionResponse(TypedDict, total=False):
    partition_index: int
    error_code: int
    error_message: str | None


class AlterPartitionReassignmentsReassignableTopicResponse(TypedDict, total=False):
    name: str
    partitions: Sequence[AlterPartitionReassignmentsReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: Sequence[AlterPartitionReassignmentsReassignableTopicResponse]
    allow_replication_factor_change: bool


class ListPartitionReassignmentsOngoingPartitionReassignment(TypedDict, total=False):
    partition_index: int
    replicas: Sequence[int]
    adding_replicas: Sequence[int]
    removing_replicas: Sequence[int]


class ListPartitionReassignmentsOngoingTopicReassignment(TypedDict, total=False):
    name: str
    partitions: Sequence[ListPartitionReassignmentsOngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    topics: Sequence[ListPartitionReassignmentsOngoingTopicReassignment]
