"""Types of responses about producer ids and transactions.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class InitProducerIdResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int


class AddPartitionsToTxnPartitionResult(TypedDict, total=False):
    partition_index: int
    partition_error_code: int


class AddPartitionsToTxnTopicResult(TypedDict, total=False):
    name: str
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResponse(TypedDict, total=False):
    throttle_time_ms: int
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult]
    error_code: int
    results_by_transaction: Sequence[AddPartitionsToTxnResult]


class AddPartitionsToTxnResult(TypedDict, total=False):
    transactional_id: str
    topic_results: Sequence[AddPartitionsToTxnTopicResult]


class AddOffsetsToTxnResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int


class EndTxnResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int


class WriteTxnMarkersWritableTxnMarkerPartitionResult(TypedDict, total=False):
    partition_index: int
    error_code: int


class WriteTxnMarkersWritableTxnMarkerTopicResult(TypedDict, total=False):
    name: str
    partitions: Sequence[WriteTxnMarkersWritableTxnMarkerPartitionResult]


class WriteTxnMarkersWritableTxnMarkerResult(TypedDict, total=False):
    producer_id: int
    topics: Sequence[WriteTxnMarkersWritableTxnMarkerTopicResult]


class WriteTxnMarkersResponse(TypedDict, total=False):
    markers: Sequence[WriteTxnMarkersWritableTxnMarkerResult]


class TxnOffsetCommitIndividualCommit(TypedDict, total=False):
    stable_offset: int
    error_message: str | None


class TxnOffsetCommitResponsePartition(TypedDict, total=False):
    partition_index: int
    error_code: int
    individual_commit: TxnOffsetCommitIndividualCommit | None


class TxnOffsetCommitResponseTopic(TypedDict, total=False):
    name: str
    partitions: Sequence[TxnOffsetCommitResponsePartition]
    topic_id: UUID | None


class TxnOffsetCommitResponse(TypedDict, total=False):
    throttle_time_ms: int
    topics: Sequence[TxnOffsetCommitResponseTopic]


class DescribeTransactionsTopicData(TypedDict, total=False):
    topic: str
    partitions: Sequence[int]


class DescribeTransactionsTransactionState(TypedDict, total=False):
    error_code: int
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: int
    transaction_start_time_ms: int
    producer_id: int
    producer_epoch: int
    topics: Sequence[DescribeTransactionsTopicData]


class DescribeTransactionsResponse(TypedDict, total=False):
    throttle_time_ms: int
    transaction_states: Sequence[DescribeTransactionsTransactionState]


class ListTransactionsTransactionState(TypedDict, total=False):
    transactional_id: str
    producer_id: int
    transaction_state: str


class ListTransactionsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    unknown_state_filters: Sequence[str]
    transaction_states: Sequence[ListTransactionsTransactionState]
