"""UnregisterBroker: remove the registration of a broker (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.brokers import unregister
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.UnregisterBrokerResponse]:
    return broker.metadata.submit(
        lambda image: unregister(image, request.body.broker_id), _build_response
    )


def _build_response(_: object) -> responses.UnregisterBrokerResponse:
    return {"error_code": ErrorCode.none}
