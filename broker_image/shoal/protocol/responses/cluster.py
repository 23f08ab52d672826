"""Types of responses about brokers, topics, log directories, producers, configs and telemetry.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class MetadataResponseBroker(TypedDict, total=False):
    node_id: int
    host: str
    port: int
    rack: str | None


class MetadataResponsePartition(TypedDict, total=False):
    error_code: int
    partition_index: int
    leader_id: int
    replica_nodes: Sequence[int]
    isr_nodes: Sequence[int]
    offline_replicas: Sequence[int]
    leader_epoch: int


class MetadataResponseTopic(TypedDict, total=False):
    error_code: int
    name: str | None
    partitions: Sequence[MetadataResponsePartition]
    is_internal: bool
    topic_authorized_operations: int
    topic_id: UUID | None


class MetadataResponse(TypedDict, total=False):
    brokers: Sequence[MetadataResponseBroker]
    topics: Sequence[MetadataResponseTopic]
    controller_id: int
    cluster_id: str | None
    throttle_time_ms: int
    cluster_authorized_operations: int
    error_code: int


class ApiVersionsApiVersion(TypedDict, total=False):
    api_key: int
    min_version: int
    max_version: int


class ApiVersionsResponse(TypedDict, total=False):
    error_code: int
    api_keys: Sequence[ApiVersionsApiVersion]
    throttle_time_ms: int
    supported_features: Sequence[ApiVersionsSupportedFeatureKey]
    finalized_features_epoch: int
    finalized_features: Sequence[ApiVersionsFinalizedFeatureKey]
    zk_migration_ready: bool


class ApiVersionsSupportedFeatureKey(TypedDict, total=False):
    name: str
    min_version: int
    max_version: int


class ApiVersionsFinalizedFeatureKey(TypedDict, total=False):
    name: str
    max_version_level: int
    min_version_level: int


class DescribeConfigsSynonym(TypedDict, total=False):
    name: str
    value: str | None
    source: int


class DescribeConfigsResourceResult(TypedDict, total=False):
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool
    synonyms: Sequence[DescribeConfigsSynonym]
    config_type: int
    documentation: str | None


class DescribeConfigsResult(TypedDict, total=False):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: Sequence[DescribeConfigsResourceResult]


class DescribeConfigsResponse(TypedDict, total=False):
    throttle_time_ms: int
    results: Sequence[DescribeConfigsResult]


class DescribeLogDirsPartition(TypedDict, total=False):
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


class DescribeLogDirsTopic(TypedDict, total=False):
    name: str
    partitions: Sequence[DescribeLogDirsPartition]


class DescribeLogDirsResult(TypedDict, total=False):
    error_code: int
    log_dir: str
    topics: Sequence[DescribeLogDirsTopic]
    total_bytes: int
    usable_bytes: int
    is_cordoned: bool


class DescribeLogDirsResponse(TypedDict, total=False):
    throttle_time_ms: int
    results: Sequence[DescribeLogDirsResult]
    error_code: int


class DescribeClusterBroker(TypedDict, total=False):
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class DescribeClusterResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    cluster_id: str
    controller_id: int
    brokers: Sequence[DescribeClusterBroker]
    cluster_authorized_operations: int
    endpoint_type: int


class DescribeProducersProducerState(TypedDict, total=False):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class DescribeProducersPartitionResponse(TypedDict, total=False):
    partition_index: int
    error_code: int
    error_message: str | None
    active_producers: Sequence[DescribeProducersProducerState]


class DescribeProducersTopicResponse(TypedDict, total=False):
    name: str
    partitions: Sequence[DescribeProducersPartitionResponse]


class DescribeProducersResponse(TypedDict, total=False):
    throttle_time_ms: int
    topics: Sequence[DescribeProducersTopicResponse]


class ListConfigResourcesConfigResource(TypedDict, total=False):
    resource_name: str
    resource_type: int


class ListConfigResourcesResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    config_resources: Sequence[ListConfigResourcesConfigResource]


class DescribeTopicPartitionsResponsePartition(TypedDict, total=False):
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: Sequence[int]
    isr_nodes: Sequence[int]
    eligible_leader_replicas: Sequence[int] | None
    last_known_elr: Sequence[int] | None
    offline_replicas: Sequence[int]


class DescribeTopicPartitionsResponseTopic(TypedDict, total=False):
    error_code: int
    name: str | None
    topic_id: UUID | None
    is_internal: bool
    partitions: Sequence[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: int


class DescribeTopicPartitionsCursor(TypedDict, total=False):
    topic_name: str
    partition_index: int


class DescribeTopicPartitionsResponse(TypedDict, total=False):
    throttle_time_ms: int
    topics: Sequence[DescribeTopicPartitionsResponseTopic]
    next_cursor: DescribeTopicPartitionsCursor | None


class GetTelemetrySubscriptionsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    client_instance_id: UUID | None
    subscription_id: int
    accepted_compression_types: Sequence[int]
    push_interval_ms: int
    telemetry_max_bytes: int
    delta_temporality: bool
    requested_metrics: Sequence[str]


class PushTelemetryResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
