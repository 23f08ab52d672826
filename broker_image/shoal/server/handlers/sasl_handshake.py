"""SaslHandshake: refused on a listener without SASL, as in Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(_broker: Broker, _request: Request) -> Answer:
    return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []}
