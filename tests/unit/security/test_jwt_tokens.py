"""Signed bearer tokens: algorithms, keys and claims (RFC 7519, RFC 8725)."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from shoal.security import jwt_tokens
from shoal.security.jwt_tokens import (
    ALGORITHMS,
    JwtKey,
    JwtRules,
    JwtValidator,
    KeySetError,
    UnknownKeyError,
    parse_keys,
)
from shoal.security.oauthbearer import BearerToken, TokenRefused

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


RSA = rsa.generate_private_key(65537, 2048)


@functools.cache
def private_key(algorithm: str = "RS256") -> Any:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm])
    return RSA


def jwk(private: Any, **members: Any) -> dict[str, Any]:
    kind = (
        jwt.algorithms.RSAAlgorithm
        if hasattr(private, "private_numbers") and isinstance(private, rsa.RSAPrivateKey)
        else jwt.algorithms.ECAlgorithm
    )
    return {**json.loads(kind.to_jwk(private.public_key())), "kid": "k1", **members}


class Source:
    """A key set that never changes, and the key ids that it did not have."""

    def __init__(self, *jwks: dict[str, Any]) -> None:
        self.keys: tuple[JwtKey, ...] = parse_keys(json.dumps({"keys": jwks}).encode())
        self.missing: list[str] = []

    def on_key_missing(self, key_id: str, now_ms: int) -> None:
        self.missing.append(key_id)


def claims(**changed: Any) -> dict[str, Any]:
    whole = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 60} | changed
    return {name: value for name, value in whole.items() if value is not None}


def token(
    algorithm: str = "RS256", key: Any = None, headers: dict[str, Any] | None = None, **changed: Any
) -> str:
    return jwt.encode(
        claims(**changed),
        key or private_key(algorithm),
        algorithm,
        headers={"kid": "k1"} if headers is None else headers,
    )


def validate(
    text: str, rules: JwtRules | None = None, source: Source | None = None, now_ms: int = NOW_MS
) -> BearerToken:
    source = source or Source(jwk(private_key()))
    return JwtValidator(source, rules or JwtRules()).validate(text, now_ms)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm(algorithm: str) -> None:
    source = Source(jwk(private_key(algorithm)))
    found = validate(token(algorithm, scope=["a", "b"]), source=source)
    assert found == BearerToken("alice", NOW_MS + 60_000, frozenset({"a", "b"}))


def test_claim_names_and_trimmed_texts() -> None:
    rules = JwtRules(subject_claim="email", scope_claim="scp")
    found = validate(token(email=" zoë ", scp="in out"), rules)
    assert (found.subject, found.scope) == ("zoë", frozenset({"in out"}))


def signed_by_hand(header: dict[str, Any], payload: Any, secret: bytes | None) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in (header, payload)
    ]
    signed = b".".join(parts)
    signature = b"" if secret is None else hmac.digest(secret, signed, hashlib.sha256)
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def test_unsigned_tokens() -> None:
    for name in ("none", "None", "NONE", "nOnE", ""):
        with pytest.raises(TokenRefused, match="not permitted"):
            validate(signed_by_hand({"alg": name, "kid": "k1"}, claims(), None))
    with pytest.raises(TokenRefused, match="not permitted"):
        validate(signed_by_hand({"kid": "k1"}, claims(), None))


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_the_public_key_is_no_secret_of_an_hmac(encoding: Encoding) -> None:
    public = private_key().public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    for name in ("HS256", "HS384", "HS512"):
        with pytest.raises(TokenRefused, match="not permitted"):
            validate(signed_by_hand({"alg": name, "kid": "k1"}, claims(), public))


def test_a_symmetric_key_of_the_set_is_no_key() -> None:
    secret = {"kty": "oct", "kid": "k2", "alg": "HS256", "k": "c2VjcmV0"}
    source = Source(jwk(private_key()), secret)
    text = signed_by_hand({"alg": "HS256", "kid": "k2"}, claims(), b"secret")
    with pytest.raises(TokenRefused, match="not permitted"):
        validate(text, source=source)


def test_signatures_of_other_keys() -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    with pytest.raises(TokenRefused, match="signature is wrong"):
        validate(token(key=stranger))
    for name in ("jwk", "jku", "x5u", "x5c"):
        text = token(key=stranger, headers={"kid": "k1", name: jwk(stranger)})
        with pytest.raises(TokenRefused, match="signature is wrong"):
            validate(text)


def test_changed_tokens() -> None:
    head, _, signature = token().split(".")
    payload = (
        base64.urlsafe_b64encode(json.dumps(claims(sub="admin")).encode()).decode().rstrip("=")
    )
    with pytest.raises(TokenRefused, match="signature is wrong"):
        validate(f"{head}.{payload}.{signature}")
    with pytest.raises(TokenRefused):
        validate(f"{head}.{payload}.")


def test_key_ids() -> None:
    first, second = private_key(), rsa.generate_private_key(65537, 2048)
    source = Source(jwk(first), jwk(second, kid="k2"), jwk(private_key("ES256"), kid="k3"))
    assert validate(token(key=second, headers={"kid": "k2"}), source=source)
    assert validate(token(key=second, headers={}), source=source)
    assert validate(token("ES256", headers={}), source=source)
    assert not source.missing
    for headers in ({"kid": "k9"}, {"kid": "k3"}):
        with pytest.raises(UnknownKeyError):
            validate(token(key=first, headers=headers), source=source)
    assert source.missing == ["k9", "k3"]
    with pytest.raises(TokenRefused, match="signature is wrong"):
        validate(token(key=second), source=source)
    text = signed_by_hand({"alg": "RS256", "kid": "k" * 1001}, claims(), b"x")
    with pytest.raises(TokenRefused, match="no short text"):
        validate(text, source=source)
    assert len(source.missing) == 2


def test_a_key_serves_its_own_algorithms() -> None:
    source = Source(jwk(private_key(), alg="RS512"))
    assert validate(token("RS512"), source=source)
    with pytest.raises(UnknownKeyError):
        validate(token("RS256"), source=source)
    with pytest.raises(UnknownKeyError):
        validate(token("ES256"), source=Source(jwk(private_key("ES384"))))


def test_critical_headers_are_refused() -> None:
    with pytest.raises(TokenRefused):
        validate(token(headers={"kid": "k1", "crit": ["exp2"], "exp2": 1}))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": None}, "exp"),
        ({"exp": NOW_S}, "expired"),
        ({"exp": NOW_S - 1}, "expired"),
        ({"exp": "2030"}, "no number in the claim exp"),
        ({"exp": True}, "no number in the claim exp"),
        ({"exp": 1e300}, "no date"),
        ({"exp": -5}, "no date"),
        ({"iat": None}, "iat"),
        ({"iat": NOW_S + 1}, "future"),
        ({"iat": "now"}, "no number in the claim iat"),
        ({"nbf": NOW_S + 1}, "not valid yet"),
        ({"nbf": "now"}, "no number in the claim nbf"),
        ({"sub": None}, "'sub'"),
        ({"sub": ""}, "'sub'"),
        ({"sub": " "}, "'sub'"),
        ({"sub": 7}, "'sub'"),
        ({"aud": "other"}, "audience, which is empty|expected.audience, which is empty"),
        ({"scope": ["a", "a "]}, "a value twice"),
        ({"scope": [""]}, "an empty value"),
        ({"scope": " "}, "an empty value"),
    ],
)
def test_claims(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason):
        validate(token(**changed))


def test_the_clock_skew() -> None:
    """It is allowed in both directions, and ends exactly."""
    rules = JwtRules(clock_skew_s=30)
    late, early = token(exp=NOW_S - 29, iat=NOW_S - 60), token(iat=NOW_S + 30, nbf=NOW_S + 30)
    assert validate(late, rules)
    assert validate(early, rules)
    with pytest.raises(TokenRefused, match="expired"):
        validate(late, rules, now_ms=NOW_MS + 1000)
    with pytest.raises(TokenRefused, match="not valid yet"):
        validate(early, rules, now_ms=NOW_MS - 1)
    with pytest.raises(TokenRefused, match="expires before it begins"):
        validate(token(exp=NOW_S - 1, iat=NOW_S), rules)


def test_issuer_and_audience() -> None:
    rules = JwtRules(issuer="https://idp", audiences=("queue", "other"))
    good: dict[str, Any] = {"iss": "https://idp", "aud": ["x", "queue"]}
    assert validate(token(**good), rules)
    assert validate(token(**good | {"aud": "other"}), rules)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"iss": "https://idp/"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "Queue"}, "expected.audience"),
        ({"aud": []}, "expected.audience"),
        ({"aud": None}, "no audience"),
        ({"aud": [1]}, "neither a text nor a list"),
        ({"aud": {"queue": 1}}, "neither a text nor a list"),
    ]
    for changed, reason in refused:
        with pytest.raises(TokenRefused, match=reason):
            validate(token(**good | changed), rules)


@pytest.mark.parametrize(
    "text",
    ["", "x", "a.b.c", "...", "é.é.é", "e30.e30.", "e30.e30.e30", "W10.W10.W10", f"{'e30.' * 5}x"],
)
def test_texts_that_are_no_tokens(text: str) -> None:
    with pytest.raises(TokenRefused):
        validate(text)


def test_deeply_nested_tokens_are_refused() -> None:
    deep = base64.urlsafe_b64encode(b'{"alg":"RS256","a":' + b"[" * 300_000).decode().rstrip("=")
    with pytest.raises(TokenRefused):
        validate(f"{deep}.{deep}.{deep}")


def test_claims_that_are_no_object() -> None:
    text = jwt.api_jws.PyJWS().encode(b"[1]", private_key(), "RS256", headers={"kid": "k1"})
    with pytest.raises(TokenRefused, match="no JSON object"):
        validate(text)


# Key sets.


def test_keys_that_serve_no_token_are_left_out() -> None:
    good = jwk(private_key())
    weak = jwk(rsa.generate_private_key(65537, 1024), kid="weak")
    edwards = {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": "AAAA"}
    assert ed25519  # Its algorithm, EdDSA, is not one of Kafka's.
    others = [
        7,
        None,
        {},
        {"kty": "RSA"},
        good | {"kid": 7},
        good | {"use": "enc"},
        good | {"key_ops": ["encrypt"]},
        good | {"key_ops": 7},
        good | {"alg": "RSA-OAEP"},
        good | {"n": "%"},
        good | {"n": 5},
        good | {"e": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        jwk(ec.generate_private_key(ec.SECP256K1()), kid="k"),
        weak,
        edwards,
    ]
    (found,) = parse_keys(json.dumps({"keys": [*others, good]}).encode())
    assert (found.key_id, found.algorithms[:1]) == ("k1", ("RS256",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"<html>",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[7]}',
        b"\xff",
        b'{"keys":' + b"[" * 300_000,
    ],
)
def test_texts_that_are_no_key_set(data: bytes) -> None:
    with pytest.raises(KeySetError):
        parse_keys(data)


def test_a_private_key_in_the_set_is_read_as_public() -> None:
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private_key()))
    del private["key_ops"]
    (found,) = parse_keys(json.dumps({"keys": [private]}).encode())
    assert isinstance(found.public_key, rsa.RSAPublicKey)


def test_the_number_of_keys_is_bounded() -> None:
    keys = [jwk(private_key(), kid=str(n)) for n in range(jwt_tokens.KEYS_MAX + 5)]
    assert len(parse_keys(json.dumps({"keys": keys}).encode())) == jwt_tokens.KEYS_MAX
