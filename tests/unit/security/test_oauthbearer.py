"""The server's side of OAUTHBEARER: messages, the exchange, and tokens without a signature."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from shoal.security.oauthbearer import (
    BearerToken,
    OAuthExchange,
    OAuthMessage,
    TokenRefused,
    parse_message,
    trim_blanks,
)
from shoal.security.sasl import LoginRefused, SaslLogin
from shoal.security.unsecured_jws import UnsecuredValidator

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000


class Validator:
    """Accepts the token "good"."""

    def validate(self, token: str, now_ms: int) -> BearerToken:
        if token == "good":
            return BearerToken("alice", now_ms + 1000)
        if token == "narrow":
            raise TokenRefused("it lacks a scope", '[a, "b"]')
        raise TokenRefused(f"{token} is bad")


def message(token: str = "good", *, authzid: str = "", extensions: str = "") -> bytes:
    return f"n,{authzid},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def test_messages() -> None:
    assert parse_message(message("a.b-c_~+/==")) == OAuthMessage("a.b-c_~+/==", "", {})
    assert parse_message(b"n,a=bob,\x01auth=bearer  x\x01\x01") == OAuthMessage("x", "bob", {})
    found = parse_message(message(extensions="traceId=1 2=3\x01logicalCluster=lkc\x01"))
    assert found.extensions == {"traceId": "1 2=3", "logicalCluster": "lkc"}
    assert parse_message(b"n,,\x01host=h\x01port=1\x01auth=BEARER x\x01\x01").token == "x"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\x01", "malformed"),
        (b"n,,\x01\x01", "no valid 'auth'"),
        (b"n,,\x01auth=Bearer x\x01", "malformed"),
        (b"n,,auth=Bearer x\x01\x01", "malformed"),
        (b"y,,\x01auth=Bearer x\x01\x01", "malformed"),
        (b"p=x,,\x01auth=Bearer x\x01\x01", "malformed"),
        (b"n,a=,\x01auth=Bearer x\x01\x01", "malformed"),
        (b"n,a=b=c,\x01auth=Bearer x\x01\x01", "malformed"),
        (b"n,,\x01auth=Bearer x\x01\x01\n", "malformed"),
        (b"n,,\x01auth=Bearer\x01\x01", "no valid 'auth'"),
        (b"n,,\x01auth=Bearer x y\x01\x01", "no valid 'auth'"),
        (b"n,,\x01auth=Bearer \xc3\xa9\x01\x01", "malformed"),
        (b"n,,\x01auth=Basic x\x01\x01", "scheme other than Bearer"),
        (b"n,,\x01host=h\x01\x01", "no valid 'auth'"),
        (b"n,,\x01auth=Bearer x\x01k1=v\x01\x01", "malformed"),
        (b"n,,\x01auth=Bearer x\x01k=\x01\x01", "malformed"),
        (b"n,,\x01auth=Bearer x\x01k=\x02\x01\x01", "malformed"),
        (b"n,,n=alice,r=abc", "malformed"),
        (b"\0alice\0secret", "malformed"),
    ],
)
def test_malformed_messages(data: bytes, reason: str) -> None:
    exchange = OAuthExchange(Validator())
    with pytest.raises(LoginRefused, match=reason) as refused:
        exchange.evaluate(data, NOW_MS)
    assert refused.value.client_message is None


def test_a_good_token_logs_in() -> None:
    exchange = OAuthExchange(Validator())
    assert exchange.evaluate(message(authzid="a=alice", extensions="x=1\x01"), NOW_MS) == b""
    assert exchange.login == SaslLogin("User:alice", NOW_MS + 1000, extensions={"x": "1"})


def test_another_authorization_id() -> None:
    exchange = OAuthExchange(Validator())
    with pytest.raises(LoginRefused) as refused:
        exchange.evaluate(message(authzid="a=bob"), NOW_MS)
    assert refused.value.client_message == (
        "Authentication failed: Client requested an authorization id (bob) that is different from"
        " the token's principal name (alice)"
    )
    assert exchange.login is None


def test_the_client_acknowledges_an_error() -> None:
    """RFC 7628, section 3.2.3."""
    exchange = OAuthExchange(Validator())
    assert exchange.evaluate(message("x"), NOW_MS) == b'{"status":"invalid_token"}'
    with pytest.raises(LoginRefused, match="x is bad") as refused:
        exchange.evaluate(b"\x01", NOW_MS)
    assert refused.value.client_message == '{"status":"invalid_token"}'


def test_the_client_presents_another_token_after_an_error() -> None:
    exchange = OAuthExchange(Validator())
    assert exchange.evaluate(message("narrow"), NOW_MS) == (
        b'{"status":"insufficient_scope", "scope":"[a, \\"b\\"]"}'
    )
    assert exchange.evaluate(message(), NOW_MS) == b""
    assert exchange.login


def test_an_acknowledgement_without_an_error() -> None:
    with pytest.raises(LoginRefused, match="malformed"):
        OAuthExchange(Validator()).evaluate(b"\x01", NOW_MS)


# Tokens without a signature.


def part(value: Any, *, url: bool = True) -> str:
    data = json.dumps(value).encode()
    return (base64.urlsafe_b64encode if url else base64.b64encode)(data).decode().rstrip("=")


def unsecured(header: Any = None, signature: str = "", **claims: Any) -> str:
    whole = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 60} | claims
    given = {name: value for name, value in whole.items() if value is not None}
    return f"{part(header or {'alg': 'none'})}.{part(given)}.{signature}"


def test_unsecured_tokens() -> None:
    found = UnsecuredValidator({}).validate(unsecured(scope=["a", " b "]), NOW_MS)
    assert found == BearerToken("alice", NOW_MS + 60_000, frozenset({"a", "b"}))
    padded = unsecured().split(".")
    padded[1] += "=" * (-len(padded[1]) % 4)
    assert UnsecuredValidator({}).validate(".".join(padded), NOW_MS).subject == "alice"


def test_options_of_unsecured_tokens() -> None:
    options = {
        "unsecuredValidatorPrincipalClaimName": "email",
        "unsecuredValidatorScopeClaimName": "rights",
        "unsecuredValidatorRequiredScope": "in out",
        "unsecuredValidatorAllowableClockSkewMs": "3000",
    }
    validator = UnsecuredValidator(options)
    token = unsecured(email="zoë", rights=["out", "in"], exp=NOW_S - 2, iat=NOW_S - 9)
    assert validator.validate(token, NOW_MS).subject == "zoë"
    with pytest.raises(TokenRefused, match="expired"):
        validator.validate(token, NOW_MS + 1000)
    with pytest.raises(TokenRefused, match="scope") as refused:
        validator.validate(unsecured(email="x", rights="in"), NOW_MS)
    assert refused.value.missing_scope == "[in, out]"


@pytest.mark.parametrize(
    "options",
    [
        {"unsecuredValidatorAllowableClockSkewMs": "-1"},
        {"unsecuredValidatorAllowableClockSkewMs": "soon"},
        {"unsecuredValidatorRequiredScope": 'a "b"'},
    ],
)
def test_invalid_options(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        UnsecuredValidator(options)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "three parts"),
        ("a.b", "three parts"),
        ("a.b.c.d", "three parts"),
        ("..", "not Base64"),
        ("%.%.", "not Base64"),
        (f"{part(1)}.{part({})}.", "not a JSON object"),
        (f"{part({'alg': 'none'})}.{part([])}.", "not a JSON object"),
        (f"{part({'alg': 'none'})}.e30x.", "not JSON"),
        (f"{part({'alg': 'none'})}.{part({})}.", "no expiry"),
        (unsecured({"typ": "JWT"}), "is signed"),
        (unsecured({"alg": "HS256"}), "is signed"),
        (unsecured({"alg": "RS256"}, "c2ln"), "is signed"),
        (unsecured(signature="c2ln"), "is signed"),
        (unsecured(sub=None), "'sub'"),
        (unsecured(sub=" "), "'sub'"),
        (unsecured(sub=7), "'sub'"),
        (unsecured(exp="soon"), "no number in the claim exp"),
        (unsecured(exp=True), "no number in the claim exp"),
        (unsecured(exp=float("inf")), "no number in the claim exp"),
        (unsecured(exp=float("nan")), "no number in the claim exp"),
        (unsecured(iat="now"), "no number in the claim iat"),
        (unsecured(iat=NOW_S + 1), "in the future"),
        (unsecured(exp=NOW_S), "expired"),
        (unsecured(exp=NOW_S - 5, iat=None), "expired"),
        (unsecured(scope=5), "neither a text nor a list"),
    ],
)
def test_bad_unsecured_tokens(token: str, reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason):
        UnsecuredValidator({}).validate(token, NOW_MS)


def test_deeply_nested_tokens_are_refused() -> None:
    deep = base64.b64encode(b'{"a":' + b"[" * 300_000).decode()
    with pytest.raises(TokenRefused):
        UnsecuredValidator({}).validate(f"{deep}.{deep}.", NOW_MS)


def test_a_subject_loses_the_blanks_that_kafka_removes() -> None:
    """Java's trim. Others are part of the name: " admin" with an em space is not the user admin."""
    assert trim_blanks(" \t\x00admin\r\n") == "admin"
    for name in ("\u2003admin", "admin\xa0", "\u3000admin\u2028"):
        assert trim_blanks(name) == name
