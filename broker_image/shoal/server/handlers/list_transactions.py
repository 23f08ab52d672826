"""ListTransactions: the transactions of this coordinator (KIP-664, KIP-994, KIP-1152)."""

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


def handle(broker: Broker, request: Request) -> Answer:
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
