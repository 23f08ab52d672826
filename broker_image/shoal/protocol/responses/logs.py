"""Types of responses about the records of partitions.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized
    from uuid import UUID


class ListOffsetsPartitionResponse(TypedDict, total=False):
    partition_index: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int


class ListOffsetsTopicResponse(TypedDict, total=False):
    name: str
    partitions: Sequence[ListOffsetsPartitionResponse]


class ListOffsetsResponse(TypedDict, total=False):
    topics: Sequence[ListOffsetsTopicResponse]
    throttle_time_ms: int


class OffsetForLeaderEpochEpochEndOffset(TypedDict, total=False):
    error_code: int
    partition: int
    leader_epoch: int
    end_offset: int


class OffsetForLeaderEpochOffsetForLeaderTopicResult(TypedDict, total=False):
    topic: str
    partitions: Sequence[OffsetForLeaderEpochEpochEndOffset]


class OffsetForLeaderEpochResponse(TypedDict, total=False):
    throttle_time_ms: int
    topics: Sequence[OffsetForLeaderEpochOffsetForLeaderTopicResult]


class FetchAbortedTransaction(TypedDict, total=False):
    producer_id: int
    first_offset: int


class FetchPartitionData(TypedDict, total=False):
    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: Sequence[FetchAbortedTransaction] | None
    records: Sized | None
    next_offset: int
    error_message: str
    log_start_offset: int
    preferred_read_replica: int
    diverging_epoch: FetchEpochEndOffset
    current_leader: FetchLeaderIdAndEpoch
    snapshot_id: FetchSnapshotId


class FetchableTopicResponse(TypedDict, total=False):
    topic: str
    partitions: Sequence[FetchPartitionData]
    topic_id: UUID | None


class FetchResponse(TypedDict, total=False):
    throttle_time_ms: int
    responses: Sequence[FetchableTopicResponse]
    error_code: int
    session_id: int
    node_endpoints: Sequence[FetchNodeEndpoint]


class FetchEpochEndOffset(TypedDict, total=False):
    epoch: int
    end_offset: int


class FetchLeaderIdAndEpoch(TypedDict, total=False):
    leader_id: int
    leader_epoch: int


class FetchSnapshotId(TypedDict, total=False):
    end_offset: int
    epoch: int


class FetchNodeEndpoint(TypedDict, total=False):
    node_id: int
    host: str
    port: int
    rack: str | None
