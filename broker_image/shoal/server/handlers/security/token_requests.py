"""What the requests for delegation tokens have in common (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import delegation_tokens
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ANONYMOUS
from shoal.security.delegation_tokens import TokenLifetimes
from shoal.server.listener_security import SecurityProtocol

if TYPE_CHECKING:
    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.config import BrokerConfig
    from shoal.server.network.api import Peer, Request


def check_connection(peer: Peer) -> None:
    """Raise `ApiError` unless a client may use tokens over this connection.

    It may not without a login, because tokens are passwords, nor with a token, because the life of
    tokens would have no end.
    """
    if (
        peer.token_authenticated
        or peer.security_protocol is SecurityProtocol.PLAINTEXT
        or (peer.security_protocol is SecurityProtocol.SSL and peer.principal == ANONYMOUS)
    ):
        raise ApiError(ErrorCode.delegation_token_request_not_allowed)


def admit(_broker: Broker, request: Request) -> None:
    """Check a client's request. Raises `ApiError`."""
    check_connection(request.peer)


def get_secret(config: BrokerConfig) -> bytes:
    """Return the key of the HMACs; empty if tokens are disabled."""
    return (config["delegation.token.secret.key"] or "").encode()


def get_lifetimes(config: BrokerConfig) -> TokenLifetimes:
    """Return how long tokens live."""
    return TokenLifetimes(
        config["delegation.token.max.lifetime.ms"], config["delegation.token.expiry.time.ms"]
    )


def parse_request(broker: Broker, request: Request) -> delegation_tokens.TokenRequest:
    """Return what the decisions need to know of a request."""
    config = broker.config
    return delegation_tokens.TokenRequest(
        request.peer.principal, get_secret(config), get_lifetimes(config), broker.clock.now_ms()
    )


def answer(outcome: tuple[ErrorCode, int]) -> responses.RenewDelegationTokenResponse:
    """Return the response of RenewDelegationToken and ExpireDelegationToken."""
    code, expiry_ms = outcome
    return {"error_code": code, "expiry_timestamp_ms": expiry_ms}


def refuse(
    _request: Request, code: int, _message: str | None
) -> responses.RenewDelegationTokenResponse:
    return {"error_code": code, "expiry_timestamp_ms": -1}
