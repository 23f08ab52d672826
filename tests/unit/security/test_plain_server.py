"""The server's side of PLAIN (RFC 4616)."""

from __future__ import annotations

import pytest
from shoal.security.plain import PlainExchange, PlainUsers
from shoal.security.sasl import LoginRefused, SaslLogin

USERS = PlainUsers(
    {"user_alice": "secret", "user_zoë": "pä ss", "user_": "empty", "username": "bob"}, b"process"
)


def test_users_log_in() -> None:
    assert len(USERS) == 3
    for message, name in [
        (b"\0alice\0secret", "alice"),
        (b"alice\0alice\0secret", "alice"),
        ("\0zoë\0pä ss".encode(), "zoë"),
    ]:
        exchange = PlainExchange(USERS)
        assert exchange.evaluate(message, 0) == b""
        assert exchange.login == SaslLogin(f"User:{name}")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0\0\0\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0alice\0secret ", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0secret", "Authentication failed: Invalid username or password"),
        (b"\0name\0bob", "Authentication failed: Invalid username or password"),
        (b"\0\xff\0secret", "Authentication failed: Invalid username or password"),
        (
            b"bob\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from"
            " username",
        ),
        (b"bob\0alice\0wrong", "Authentication failed: Invalid username or password"),
    ],
)
def test_refusals_have_kafkas_texts(message: bytes, reason: str) -> None:
    exchange = PlainExchange(USERS)
    with pytest.raises(LoginRefused) as refused:
        exchange.evaluate(message, 0)
    assert refused.value.client_message == reason
    assert exchange.login is None
