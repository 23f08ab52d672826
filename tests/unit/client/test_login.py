"""When the client logs in again, on the time of a test."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from shoal.client.errors import ConnectionLost, KafkaError, SecurityError
from shoal.client.security.authentication import SessionLogin
from shoal.client.security.secret import Secret
from shoal.client.security.security import Security
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

USER = Security("SASL_PLAINTEXT", "PLAIN", "ann", Secret("pw"))


class HandshakeAnswer(NamedTuple):
    error_code: int = 0
    mechanisms: tuple[str, ...] = ()


class TokenAnswer(NamedTuple):
    session_lifetime: timedelta
    error_code: int = 0
    auth_bytes: bytes = b""


class Broker:
    """Accepts every login, for sessions of `lifetime_s`."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self.now_s = 100.0
        self.tokens: list[bytes] = []
        self.handshake = HandshakeAnswer()

    async def send(self, api_key: ApiKey, body: Mapping[str, Any]) -> Any:
        if api_key is ApiKey.SASL_HANDSHAKE:
            return self.handshake
        self.tokens.append(bytes(body["auth_bytes"]))
        return TokenAnswer(timedelta(seconds=self.lifetime_s))

    def now(self) -> float:
        return self.now_s

    def log_in(self, security: Security = USER) -> SessionLogin:
        login = SessionLogin("peer", security)
        asyncio.run(login.log_in(self.send, self.now))
        return login

    def renew(self, login: SessionLogin) -> None:
        asyncio.run(login.renew(self.send, self.now))


def test_most_of_a_session_is_used() -> None:
    broker = Broker(100)
    login = broker.log_in()
    assert not login.is_due(100 + 84)
    assert login.is_due(100 + 96)
    broker.now_s += 90
    broker.renew(login)
    assert not login.is_due(190 + 84)
    assert login.is_due(190 + 96)
    assert broker.tokens == [b"\0ann\0pw"] * 2


def test_a_session_without_an_end() -> None:
    assert not Broker(0).log_in().is_due(1e9)


def test_logins_are_at_least_a_second_apart() -> None:
    """Kafka's brokers refuse others."""
    broker = Broker(1.1)
    login = broker.log_in()
    assert not login.is_due(100.99)
    assert login.is_due(101.05)
    broker = Broker(0.5)
    login = broker.log_in()
    broker.now_s += 0.48
    assert login.is_due(broker.now_s)
    with pytest.raises(ConnectionLost, match="cannot be renewed"):
        broker.renew(login)


def test_another_user_needs_another_connection() -> None:
    found = [USER, Security("SASL_PLAINTEXT", "PLAIN", "bob", Secret("pw"))]
    broker = Broker(10)
    login = broker.log_in(Security("SASL_PLAINTEXT", "PLAIN", "ann", _source=lambda: found[0]))
    broker.now_s += 9
    broker.renew(login)
    assert broker.tokens[1:] == [b"\0ann\0pw"], "the new password"
    found[0] = found[1]
    broker.now_s += 9
    with pytest.raises(ConnectionLost, match="whose user has changed"):
        broker.renew(login)


def test_refused_handshakes() -> None:
    broker = Broker(10)
    for code, mechanisms, kind, said in (
        (ErrorCode.unsupported_sasl_mechanism, ("GSSAPI",), SecurityError, "only GSSAPI"),
        (ErrorCode.illegal_sasl_state, (), SecurityError, "only connections without SASL"),
        (ErrorCode.illegal_sasl_state, ("PLAIN",), KafkaError, "the login at peer"),
    ):
        broker.handshake = HandshakeAnswer(code, mechanisms)
        with pytest.raises(kind, match=said):
            broker.log_in()
