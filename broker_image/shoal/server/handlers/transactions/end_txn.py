"""EndTxn: commit or abort a transaction. Since version 5 it bumps the epoch (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.server.network.responses import downgrade_epoch_error
from shoal.transaction.shard import ProducerIdentity
from shoal.transaction.transactions import TV_0, TV_2

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.errors import ErrorCode
    from shoal.protocol.responses import transactions as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

FENCED_SINCE = 2
EPOCH_BUMP_SINCE = 5


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.EndTxnResponse]:
    body = request.body
    return broker.transactions.end(
        ProducerIdentity(body.transactional_id, body.producer_id, body.producer_epoch),
        committed=body.committed,
        version=TV_2 if request.version >= EPOCH_BUMP_SINCE else TV_0,
    )


def refuse(request: Request, error: ErrorCode, _message: str | None) -> responses.EndTxnResponse:
    return {"error_code": downgrade_epoch_error(error, request.version, FENCED_SINCE)}
