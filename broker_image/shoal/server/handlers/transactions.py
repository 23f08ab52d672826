"""DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.api import Answer, Request
from shoal.transaction.states import State

if TYPE_CHECKING:
    from shoal.server.broker import Broker

STATES = tuple(state.title for state in State)


def describe(broker: Broker, request: Request) -> Answer:
    return {"transaction_states": [_row(broker, i) for i in request.body.transactional_ids]}


def _row(broker: Broker, transactional_id: str) -> Mapping[str, Any]:
    service = broker.transactions
    try:
        if not transactional_id:
            raise ApiError(ErrorCode.invalid_request)
        partition = service.partition_for(transactional_id)
        if partition is None:
            raise ApiError(ErrorCode.transactional_id_not_found)
        return service.runtime.read(partition).describe(transactional_id)
    except ApiError as refused:
        return {"transactional_id": transactional_id, "error_code": refused.code}


def list_(broker: Broker, request: Request) -> Answer:
    body, service = request.body, broker.transactions
    text = getattr(body, "transactional_id_pattern", None)
    try:
        pattern = re.compile(text) if text else None
    except re.error as error:
        raise ApiError(ErrorCode.invalid_regular_expression, f"{text}: {error}") from None
    if service.runtime.loading_partitions:
        raise ApiError(ErrorCode.coordinator_load_in_progress)
    unknown = [state for state in body.state_filters if state not in STATES]
    rows: list[Mapping[str, Any]] = []
    # A filter that names unknown states alone lets nothing pass.
    if len(unknown) < len(body.state_filters) or not body.state_filters:
        for _, shard in service.shards():
            rows += shard.list_transactions(
                states=body.state_filters,
                producer_ids=body.producer_id_filters,
                duration_ms=getattr(body, "duration_filter", -1),
                pattern=pattern,
                now_ms=broker.clock.now_ms(),
            )
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": unknown,
        "transaction_states": rows,
    }
