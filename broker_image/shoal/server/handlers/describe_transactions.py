"""DescribeTransactions: the state of transactions, by transactional id (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    return {"transaction_states": [_row(broker, i) for i in request.body.transactional_ids]}


def _row(broker: Broker, transactional_id: str) -> Mapping[str, Any]:
    try:
        return broker.transactions.describe(transactional_id)
    except ApiError as refused:
        return {"transactional_id": transactional_id, "error_code": refused.code}
