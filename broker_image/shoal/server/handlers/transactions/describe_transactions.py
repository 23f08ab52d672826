"""DescribeTransactions: the state of transactions, by transactional id (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from shoal.protocol.responses import transactions as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> responses.DescribeTransactionsResponse:
    permits = authorization.make_checker(broker, request, ResourceType.TRANSACTIONAL_ID)
    describes = authorization.make_checker(broker, request, ResourceType.TOPIC)
    return {
        "transaction_states": [
            _build_result(broker, i, describes)
            if permits(i)
            else {
                "transactional_id": i,
                "error_code": ErrorCode.transactional_id_authorization_failed,
            }
            for i in request.body.transactional_ids
        ]
    }


def _build_result(
    broker: Broker, transactional_id: str, describes: authorization.Permits
) -> responses.DescribeTransactionsTransactionState:
    """One transaction, without topics that the client may not describe."""
    try:
        result = broker.transactions.describe(transactional_id)
        return {**result, "topics": [t for t in result.get("topics", ()) if describes(t["topic"])]}
    except ApiError as refused:
        return {"transactional_id": transactional_id, "error_code": refused.code}
