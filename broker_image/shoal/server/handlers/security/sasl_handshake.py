"""SaslHandshake and SaslAuthenticate where nobody logs in: on a listener without SASL, and in a
session that has no end. Logins are `network.authentication`'s. The answers are Kafka's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(_broker: Broker, _request: Request) -> responses.SaslHandshakeResponse:
    return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []}


def authenticate(_broker: Broker, _request: Request) -> responses.SaslAuthenticateResponse:
    return {
        "error_code": ErrorCode.illegal_sasl_state,
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
    }
