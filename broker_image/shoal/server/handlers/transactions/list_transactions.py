"""ListTransactions: the transactions of this coordinator (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.patterns import InvalidPattern, compile_pattern
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.transaction.states import TransactionState

if TYPE_CHECKING:
    from shoal.protocol.responses import transactions as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

STATES = tuple(state.title for state in TransactionState)


def handle(broker: Broker, request: Request) -> responses.ListTransactionsResponse:
    body = request.body
    text = getattr(body, "transactional_id_pattern", None) or ""
    try:
        pattern = compile_pattern(text) if text else None
    except InvalidPattern as error:
        raise ApiError(ErrorCode.invalid_regular_expression, f"{text[:40]}: {error}") from None
    permits = authorization.make_checker(broker, request, ResourceType.TRANSACTIONAL_ID)

    def matches(transactional_id: str) -> bool:
        # Permissions first: the time of a match must not depend on ids that the user may not see.
        if not permits(transactional_id):
            return False
        return pattern is None or pattern.fullmatch(transactional_id) is not None

    shards = broker.transactions.get_all_shards()
    unknown = [state for state in body.state_filters if state not in STATES]
    transactions: list[responses.ListTransactionsTransactionState] = []
    # A filter of unknown states alone matches no transaction.
    if len(unknown) < len(body.state_filters) or not body.state_filters:
        for shard in shards:
            transactions += shard.list_transactions(
                states=body.state_filters,
                producer_ids=body.producer_id_filters,
                duration_ms=getattr(body, "duration_filter", -1),
                matches=matches,
                now_ms=broker.clock.now_ms(),
            )
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": unknown,
        "transaction_states": transactions,
    }
