"""Delegation tokens (KIP-48). `tests/compat/oracles/test_security_admin.py` compares with Kafka."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import pytest
from shoal.metadata import delegation_tokens as decisions
from shoal.metadata import delta
from shoal.metadata.delegation_tokens import TokenRequest
from shoal.metadata.image import MetadataImage
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security import delegation_tokens as tokens
from shoal.security.credentials import StoredCredentials
from shoal.security.delegation_tokens import DelegationToken, TokenLifetimes
from shoal.security.scram import SCRAM_MECHANISMS
from shoal.server.handlers.security import token_requests
from shoal.server.listener_security import SecurityProtocol
from shoal.server.network.api import Peer

if TYPE_CHECKING:
    from shoal.metadata.controller import ControllerResult

SECRET = b"secret"
LIFETIMES = TokenLifetimes(1_000, 400)
NOW_MS = 10_000
LONG_MAX = (1 << 63) - 1
REFUSED = ErrorCode.delegation_token_request_not_allowed


def issue(
    max_lifetime_ms: int = -1,
    *,
    token_id: str = "id",
    owner: str = "User:o",
    lifetimes: TokenLifetimes = LIFETIMES,
) -> DelegationToken:
    return tokens.issue(
        token_id,
        owner=owner,
        requester="User:r",
        renewers=["User:w"],
        max_lifetime_ms=max_lifetime_ms,
        lifetimes=lifetimes,
        now_ms=NOW_MS,
    )


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expiry_ms"),
    [
        (-1, 1_000, 400),
        (0, 1_000, 400),
        (-LONG_MAX, 1_000, 400),
        (500, 500, 400),
        (300, 300, 300),
        (5_000, 1_000, 400),
        (LONG_MAX, 1_000, 400),
    ],
)
def test_lifetime_of_a_new_token(asked_ms: int, max_ms: int, expiry_ms: int) -> None:
    token = issue(asked_ms)
    assert token.issue_timestamp_ms == NOW_MS
    assert token.max_timestamp_ms - NOW_MS == max_ms
    assert token.expiry_timestamp_ms - NOW_MS == expiry_ms


def test_lifetimes_without_an_end() -> None:
    token = issue(lifetimes=TokenLifetimes(LONG_MAX, LONG_MAX))
    assert (token.max_timestamp_ms, token.expiry_timestamp_ms) == (LONG_MAX, LONG_MAX)
    again = token.with_renewal(-1, TokenLifetimes(LONG_MAX, LONG_MAX), NOW_MS)
    assert again.expiry_timestamp_ms == LONG_MAX


def test_the_hmac_is_kafkas() -> None:
    expected = hmac.new(SECRET, b"id", hashlib.sha512).digest()
    assert tokens.compute_token_hmac(SECRET, "id") == expected
    one, other = issue(), issue(token_id="other")
    assert tokens.find([one, other], SECRET, expected) is one
    for secret, mac in ((SECRET, b""), (SECRET, expected[:-1]), (b"another", expected)):
        assert tokens.find([one, other], secret, mac) is None


def image_of(*found: DelegationToken) -> MetadataImage:
    image = MetadataImage()
    for token in found:
        image = follow(image, decisions.create(token))
    return image


def follow(image: MetadataImage, decision: ControllerResult) -> MetadataImage:
    return delta.apply(image, decision.records, offset=image.offset + 1, epoch=1)[0]


def request(
    principal: str = "User:o", *, after_ms: int = 0, secret: bytes = SECRET
) -> TokenRequest:
    return TokenRequest(principal, secret, LIFETIMES, NOW_MS + after_ms)


MAC = tokens.compute_token_hmac(SECRET, "id")
MISMATCH = ErrorCode.delegation_token_owner_mismatch
EXPIRED = ErrorCode.delegation_token_expired


@pytest.mark.parametrize(
    ("who", "after_ms", "period_ms", "code", "expiry_ms"),
    [
        ("User:o", 100, -1, ErrorCode.none, 500),
        ("User:w", 100, 0, ErrorCode.none, 500),
        ("User:o", 100, 50, ErrorCode.none, 150),
        ("User:o", 100, LONG_MAX, ErrorCode.none, 500),
        ("User:o", 400, 50, ErrorCode.none, 450),
        ("User:o", 401, 50, EXPIRED, 0),
        ("User:x", 401, 50, EXPIRED, 0),
        ("User:x", 100, 50, MISMATCH, 0),
        ("User:r", 100, 50, MISMATCH, 0),
    ],
)
def test_renewal(who: str, after_ms: int, period_ms: int, code: ErrorCode, expiry_ms: int) -> None:
    image = image_of(issue())
    decision = decisions.renew(image, request(who, after_ms=after_ms), MAC, period_ms)
    check(image, decision, code, expiry_ms)


def test_renewals_end_at_the_maximum() -> None:
    image = image_of(issue())
    for after_ms, expiry_ms in ((300, 700), (650, 1_000), (1_000, 1_000)):
        decision = decisions.renew(image, request(after_ms=after_ms), MAC, -1)
        image = check(image, decision, ErrorCode.none, expiry_ms)
    check(image, decisions.renew(image, request(after_ms=1_001), MAC, -1), EXPIRED, 0)


@pytest.mark.parametrize(
    ("who", "after_ms", "period_ms", "code", "expiry_ms"),
    [
        ("User:o", 100, 0, ErrorCode.none, 100),
        ("User:w", 100, 250, ErrorCode.none, 350),
        ("User:o", 100, LONG_MAX, ErrorCode.none, 1_000),
        ("User:o", 401, 10, EXPIRED, 0),
        ("User:x", 401, 10, MISMATCH, 0),
        ("User:x", 100, -1, MISMATCH, 0),
    ],
)
def test_expiry(who: str, after_ms: int, period_ms: int, code: ErrorCode, expiry_ms: int) -> None:
    image = image_of(issue())
    decision = decisions.expire(image, request(who, after_ms=after_ms), MAC, period_ms)
    check(image, decision, code, expiry_ms)


def check(
    image: MetadataImage, decision: ControllerResult, code: ErrorCode, expiry_ms: int
) -> MetadataImage:
    """Check a response, and the token that it leaves. Return the next image."""
    after = follow(image, decision)
    if code:
        assert (decision.records, decision.response) == ([], (code, 0))
    else:
        assert decision.response == (code, NOW_MS + expiry_ms)
        expected = image.delegation_tokens["id"]._replace(expiry_timestamp_ms=NOW_MS + expiry_ms)
        assert after.delegation_tokens["id"] == expected
    return after


@pytest.mark.parametrize("after_ms", [100, 401])
def test_a_negative_period_removes_the_token(after_ms: int) -> None:
    image = image_of(issue())
    decision = decisions.expire(image, request(after_ms=after_ms), MAC, -1)
    assert decision.response == (ErrorCode.none, NOW_MS + after_ms)
    assert not follow(image, decision).delegation_tokens


@pytest.mark.parametrize("decide", [decisions.renew, decisions.expire])
def test_without_a_token_or_a_secret(decide: object) -> None:
    assert callable(decide)
    unknown = decide(image_of(issue()), request(), b"other", 1)
    assert unknown.response == (ErrorCode.delegation_token_not_found, 0)
    disabled = decide(image_of(issue()), request(secret=b""), MAC, 1)
    assert disabled.response == (ErrorCode.delegation_token_auth_disabled, 0)


def test_expired_tokens_are_removed() -> None:
    image = image_of(issue(), issue(100, token_id="short"))
    for now_ms, left in ((100, {"id", "short"}), (101, {"id"}), (400, {"id"}), (401, set())):
        decision = decisions.remove_expired(image, NOW_MS + now_ms)
        assert follow(image, decision).delegation_tokens.keys() == left
        assert {t.token_id for t in decision.response} == {"id", "short"} - left


def test_a_token_whose_owner_is_no_user_opens_nothing() -> None:
    """An earlier release stored such tokens."""
    image = image_of(issue(owner="Node:own"))
    stored = StoredCredentials(
        dict, lambda: image.delegation_tokens, token_secret=SECRET, process_secret=b"p"
    )
    assert not stored.find_token("id", SCRAM_MECHANISMS["SCRAM-SHA-256"], NOW_MS).is_valid
    check(image, decisions.renew(image, request("Node:own"), MAC, 1), EXPIRED, 0)
    assert not follow(image, decisions.remove_expired(image, NOW_MS)).delegation_tokens


@pytest.mark.parametrize(
    ("protocol", "principal", "by_token", "is_allowed"),
    [
        (SecurityProtocol.PLAINTEXT, "User:a", False, False),
        (SecurityProtocol.SSL, "User:ANONYMOUS", False, False),
        (SecurityProtocol.SSL, "User:CN=a", False, True),
        (SecurityProtocol.SSL, "User:CN=a", True, False),
        (SecurityProtocol.SASL_PLAINTEXT, "User:a", False, True),
        (SecurityProtocol.SASL_PLAINTEXT, "User:a", True, False),
        (SecurityProtocol.SASL_SSL, "User:ANONYMOUS", False, True),
        (SecurityProtocol.SASL_SSL, "User:a", True, False),
    ],
)
def test_connections_for_tokens(
    protocol: SecurityProtocol, principal: str, by_token: bool, is_allowed: bool
) -> None:
    """KIP-48: not without a login, nor with a token."""
    peer = Peer(
        "h", 1, "L", principal, "c", security_protocol=protocol, token_authenticated=by_token
    )
    if is_allowed:
        token_requests.check_connection(peer)
    else:
        with pytest.raises(ApiError) as refused:
            token_requests.check_connection(peer)
        assert refused.value.code is REFUSED
