"""ExpireDelegationToken: let a token expire, or remove it (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.delegation_tokens import expire as decide
from shoal.server.handlers.security import token_requests

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.ExpireDelegationTokenResponse]:
    mac, period_ms = request.body.hmac, request.body.expiry_time_period_ms
    about = token_requests.parse_request(broker, request)
    return broker.security_records.submit(
        lambda image: decide(image, about, mac, period_ms), token_requests.answer
    )
