"""WriteTxnMarkers: end a transaction in partitions that this broker leads (KIP-98, KIP-664).

The coordinator on another broker sends it, or an admin client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.coordinators.transaction_markers import COMMIT_TIMEOUT_MS, TransactionMarker

if TYPE_CHECKING:
    from shoal.protocol.responses import transactions as responses
    from shoal.replication.pending_append import PendingAppend
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

    _PartitionResult = responses.WriteTxnMarkersWritableTxnMarkerPartitionResult
    _Waiting = tuple[PendingAppend, _PartitionResult]


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.WriteTxnMarkersResponse]:
    waiting: list[_Waiting] = []
    response: responses.WriteTxnMarkersResponse = {
        "markers": [_write_marker(broker, marker, waiting) for marker in request.body.markers]
    }

    def check_committed() -> responses.WriteTxnMarkersResponse | None:
        for written, result in waiting:
            if written.is_lost:
                result["error_code"] = ErrorCode.not_leader_or_follower
            elif not written.is_committed:
                return None
        return response

    def expire() -> responses.WriteTxnMarkersResponse:
        for written, result in waiting:
            if not written.is_committed:
                result["error_code"] = ErrorCode.request_timed_out
        return response

    if check_committed() is not None:
        return response
    return broker.purgatory.park(
        keys=[written.partition.key for written, _ in waiting],
        attempt=check_committed,
        expire=expire,
        deadline_ms=broker.clock.now_ms() + COMMIT_TIMEOUT_MS,
    )


def _write_marker(
    broker: Broker, requested: Any, waiting: list[_Waiting]
) -> responses.WriteTxnMarkersWritableTxnMarkerResult:
    """The results of one marker. Those that wait for their commit are added to `waiting`."""
    marker = TransactionMarker(
        requested.producer_id,
        requested.producer_epoch,
        requested.transaction_result,
        requested.coordinator_epoch,
        getattr(requested, "transaction_version", 0),
    )
    topics: list[responses.WriteTxnMarkersWritableTxnMarkerTopicResult] = []
    for topic in requested.topics:
        results: list[_PartitionResult] = []
        for index in topic.partition_indexes:
            result: _PartitionResult = {"partition_index": index, "error_code": ErrorCode.none}
            try:
                written = broker.transactions.markers.append(topic.name, index, marker)
                waiting.append((written, result))
            except ApiError as refused:
                result["error_code"] = refused.code
            results.append(result)
        topics.append({"name": topic.name, "partitions": results})
    return {"producer_id": requested.producer_id, "topics": topics}


def refuse(
    request: Request, code: ErrorCode, _message: str | None
) -> responses.WriteTxnMarkersResponse:
    """The error of the whole request, for every partition."""
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": code}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.body.markers
        ]
    }
