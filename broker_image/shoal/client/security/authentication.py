"""The SASL login of a connection, and its renewal before the session ends (KIP-152, KIP-368).

A broker may limit sessions (`connections.max.reauth.ms`, or the lifetime of a token). The first
request after most of the session is over starts a new login on the same connection: requests wait,
requests in flight are answered first. An idle connection does not log in. Mechanism and user stay
the same, as brokers require. If the settings now have another user, the connection is closed, and
the next request opens one.
"""

from __future__ import annotations

import base64
import json
import os
from random import uniform
from typing import TYPE_CHECKING, Any

from shoal.client.blocking_calls import run_in_thread
from shoal.client.errors import ConnectionLost, KafkaError, SecurityError
from shoal.client.security.scram import ScramClient
from shoal.client.security.secret import NO_SECRET, Secret, SecretBytes
from shoal.client.security.security import OAUTHBEARER
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from shoal.client.security.security import Security

    Send = Callable[[ApiKey, Mapping[str, Any]], Awaitable[Any]]
    Exchange = Generator[bytes, bytes, None]
#: Part of a session after which the client logs in again, as Java's clients do.
RENEWAL_FACTORS = 0.85, 0.95
#: Seconds between two logins on a connection, which Kafka's brokers require.
INTERVAL_S = 1.0


class SessionLogin:
    """Owns the session of one connection. Times are those of the event loop, in seconds."""

    def __init__(self, peer: str, security: Security) -> None:
        self._peer = peer
        self._security = security
        self._logged_in_at = 0.0
        self._renew_at = float("inf")

    def is_due(self, now: float) -> bool:
        return now >= self._renew_at

    async def log_in(self, send: Send, now: Callable[[], float]) -> None:
        """Log in for the first time. Raises `SecurityError` or an error of the network."""
        lifetime_s = await _authenticate(self._peer, self._security, send) / 1000
        self._logged_in_at = now()
        after_s = lifetime_s * uniform(*RENEWAL_FACTORS)
        if lifetime_s > INTERVAL_S:
            after_s = max(after_s, INTERVAL_S)
        self._renew_at = self._logged_in_at + after_s if lifetime_s else float("inf")

    async def renew(self, send: Send, now: Callable[[], float]) -> None:
        """Log in again. Raises `ConnectionLost` if only a new connection can do it."""
        if now() - self._logged_in_at < INTERVAL_S:
            raise ConnectionLost(
                f"this client closed the connection to {self._peer}, whose session of less than"
                f" {INTERVAL_S:g} s cannot be renewed"
            )
        previous = self._security
        self._security = await run_in_thread(previous.reload)
        if _get_identity(self._security) != _get_identity(previous):
            raise ConnectionLost(
                f"this client closed the connection to {self._peer}, whose user has changed"
            )
        await self.log_in(send, now)


def _get_identity(security: Security) -> tuple[object, ...]:
    client_id = security.oauth.client_id if security.oauth else ""
    return security.mechanism, security.username, security.is_token, client_id


async def _authenticate(peer: str, security: Security, send: Send) -> int:
    """Authenticate. Return the milliseconds until the session ends, or 0."""
    exchange = _make_exchange(security, await _fetch_token(security))
    answer = await send(ApiKey.SASL_HANDSHAKE, {"mechanism": security.mechanism})
    if answer.error_code == ErrorCode.illegal_sasl_state and answer.mechanisms:
        raise KafkaError(answer.error_code, f"the login at {peer}")
    if answer.error_code:
        raise SecurityError(
            f"{peer} does not support {security.mechanism}, only "
            f"{', '.join(answer.mechanisms) or 'connections without SASL'}"
        )
    message = next(exchange)
    while True:
        answer = await send(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": message})
        _check(peer, security, answer)
        try:
            message = exchange.send(answer.auth_bytes)
        except StopIteration:
            lifetime = getattr(answer, "session_lifetime", None)  # None in version 0
            return 0 if lifetime is None else codec.to_ms(lifetime)


def _check(peer: str, security: Security, answer: Any) -> None:
    if answer.error_code == ErrorCode.sasl_authentication_failed:
        if security.mechanism == OAUTHBEARER:
            reason = _parse_status(answer.error_message or "")
            raise SecurityError(f"{peer} refuses the access token: {reason}")
        raise SecurityError(
            f"{peer} refuses user {security.username!r}: "
            f"{answer.error_message or 'authentication failed'}"
        )
    if answer.error_code:
        raise KafkaError(answer.error_code, answer.error_message)


async def _fetch_token(security: Security) -> Secret:
    return await security.get_access_token() if security.mechanism == OAUTHBEARER else NO_SECRET


def _make_exchange(security: Security, token: Secret) -> Exchange:
    """Return the generator of the client's messages, which takes those of the broker."""
    if security.mechanism == "PLAIN":
        return _exchange_plain(security)
    if security.mechanism == OAUTHBEARER:
        return _exchange_oauthbearer(security, token)
    return _exchange_scram(security)


def _exchange_plain(security: Security) -> Exchange:
    yield SecretBytes(f"\0{security.username}\0{security.password.reveal()}".encode())


def _exchange_scram(security: Security) -> Exchange:
    nonce = base64.b64encode(os.urandom(18)).decode()
    scram = ScramClient(
        security.mechanism, security.username, security.password, nonce, security.is_token
    )
    challenge = yield scram.make_first_message()
    scram.verify((yield scram.make_final_message(challenge)))


def _exchange_oauthbearer(security: Security, token: Secret) -> Exchange:
    """RFC 7628. A refusal has its reason as JSON, and the client answers with one byte."""
    refusal = yield _format_bearer(security, token)
    if not refusal:
        return
    yield b"\x01"
    raise SecurityError(f"the broker refuses the access token: {_parse_status(refusal)}")


def _parse_status(refusal: str | bytes) -> str:
    """Return the status in the JSON of a refusal, or the whole text if it has none."""
    try:
        status = json.loads(refusal).get("status")
    except (ValueError, AttributeError):
        status = None
    text = refusal if isinstance(refusal, str) else refusal.decode("utf-8", "replace")
    return str(status or text or "no reason given")


def _format_bearer(security: Security, token: Secret) -> SecretBytes:
    pairs = [("auth", f"Bearer {token.reveal()}")]
    if security.oauth is not None:
        pairs += [(name, value.reveal()) for name, value in security.oauth.extensions]
    fields = "".join(f"{name}={value}\x01" for name, value in pairs)
    return SecretBytes(f"n,,\x01{fields}\x01".encode())
