"""WriteTxnMarkers: end a transaction in partitions that this broker leads (KIP-98, KIP-664).

The coordinator on another broker sends it, or an admin client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.coordinators.transaction_markers import COMMIT_TIMEOUT_MS, Marker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.replication.pending_append import PendingAppend
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

Result = dict[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    waiting: list[tuple[PendingAppend, Result]] = []
    response = {"markers": [_written(broker, asked, waiting) for asked in request.body.markers]}

    def committed() -> Body | None:
        for written, result in waiting:
            if written.is_lost:
                result["error_code"] = ErrorCode.not_leader_or_follower
            elif not written.is_committed:
                return None
        return response

    def timed_out() -> Body:
        for written, result in waiting:
            if not written.is_committed:
                result["error_code"] = ErrorCode.request_timed_out
        return response

    if committed() is not None:
        return response
    return broker.purgatory.park(
        keys=[written.partition.key for written, _ in waiting],
        attempt=committed,
        expire=timed_out,
        deadline_ms=broker.clock.now_ms() + COMMIT_TIMEOUT_MS,
    )


def _written(
    broker: Broker, asked: Any, waiting: list[tuple[PendingAppend, Result]]
) -> Mapping[str, Any]:
    """The results of one marker. Those that wait for their commit are added to `waiting`."""
    marker = Marker(
        asked.producer_id,
        asked.producer_epoch,
        asked.transaction_result,
        asked.coordinator_epoch,
        getattr(asked, "transaction_version", 0),
    )
    topics = []
    for topic in asked.topics:
        results = []
        for index in topic.partition_indexes:
            result: Result = {"partition_index": index, "error_code": ErrorCode.none}
            try:
                written = broker.transactions.markers.append(topic.name, index, marker)
                waiting.append((written, result))
            except ApiError as refused:
                result["error_code"] = refused.code
            results.append(result)
        topics.append({"name": topic.name, "partitions": results})
    return {"producer_id": asked.producer_id, "topics": topics}


def refuse(request: Request, code: ErrorCode, _message: str | None) -> Body:
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
