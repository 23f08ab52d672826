"""UnregisterBroker: remove the registration of a broker (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.brokers import unregister
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    return broker.metadata.submit(
        lambda image: unregister(image, request.body.broker_id),
        lambda _: {"error_code": ErrorCode.none},
    )
