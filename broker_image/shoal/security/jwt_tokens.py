"""Signed JSON Web Tokens as bearer tokens (RFC 7519, RFC 8725, KIP-768).

Only asymmetric algorithms are permitted, and a key serves only the algorithms of its own type. A
token is refused if it is not signed, or signed by HMAC with a public key as the secret. Keys come
from the key set alone. Headers that name a key (`jwk`, `jku`, `x5u`) have no effect.

The rules are those of Kafka's broker, and of jose4j below it. `exp`, `iat` and the subject are
required. A token with `aud` is refused unless an expected audience is among its own. In addition,
`iat` must not lie in the future.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shoal.security.oauthbearer import BearerToken, TokenRefused, trim_blanks

if TYPE_CHECKING:
    from jwt.types import Options

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = (*_RSA, *_CURVES.values())
#: The members of a public key; those of a private key are not read.
_PUBLIC_MEMBERS = ("kty", "n", "e", "crv", "x", "y")
#: RFC 7518 requires keys of 2048 bits or more.
RSA_BITS_MIN = 2048
#: A key beyond this size makes the verification of a signature costly.
RSA_BITS_MAX = 16384
#: Keys of one set that are read. Tokens without a key id are tried with each.
KEYS_MAX = 100
#: `check_claims` checks the claims, with the time as an argument.
_SIGNATURE_ONLY: Options = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
#: Characters of a key id in the log, and of the longest one that is looked up.
KEY_ID_SIZE_MAX = 1000


class JwtKey(NamedTuple):
    """A public key and the algorithms that it serves."""

    key_id: str | None
    algorithms: tuple[str, ...]
    public_key: Any


class KeySetError(Exception):
    """A key set cannot be read."""


class UnknownKeyError(TokenRefused):
    """No key of the set has the token's key id. `key_id` is empty if the token has none."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"the key set has no key {key_id[:60]!r} for the token's algorithm")
        self.key_id = key_id


def parse_keys(data: bytes) -> tuple[JwtKey, ...]:
    """Return the usable keys of a JWK set (RFC 7517). Raises `KeySetError`.

    Keys of other types, for encryption, and RSA keys that are too small or too large are left out.
    """
    try:
        keys = json.loads(data)["keys"]
        if not isinstance(keys, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeySetError("the key set is not a JSON object with a list 'keys'") from None
    usable = tuple(key for key in map(_parse_key, keys[:KEYS_MAX]) if key is not None)
    if not usable:
        raise KeySetError("the key set has no key for the signature of a token")
    return usable


def _parse_key(jwk: object) -> JwtKey | None:
    """Return a key of a set, or None if it is not for the signature of tokens."""
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
        return None
    operations, key_id = jwk.get("key_ops", ["verify"]), jwk.get("kid")
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    public = {name: jwk[name] for name in _PUBLIC_MEMBERS if name in jwk}
    try:
        reader = jwt.algorithms.RSAAlgorithm if jwk["kty"] == "RSA" else jwt.algorithms.ECAlgorithm
        key = reader.from_jwk(public)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    algorithms = _find_algorithms(key)
    if "alg" in jwk:
        algorithms = tuple(name for name in algorithms if name == jwk["alg"])
    if not algorithms or not isinstance(key_id, str | None):
        return None
    return JwtKey(key_id, algorithms, key)


def _find_algorithms(key: object) -> tuple[str, ...]:
    """Return the algorithms that a public key serves."""
    if isinstance(key, rsa.RSAPublicKey) and RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
        return _RSA
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return (_CURVES[key.curve.name],)
    return ()


class KeySource(Protocol):
    """Where the current keys are."""

    @property
    def keys(self) -> tuple[JwtKey, ...]:
        """The keys of the newest set that was read."""

    def on_key_missing(self, key_id: str, now_ms: int) -> None:
        """Note that a token named a key that `keys` does not have."""


class JwtRules(NamedTuple):
    """What a token must say. No issuer means that any is accepted. Without audiences, a token may
    name one only with `any_audience`."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    any_audience: bool = False
    clock_skew_s: int = 0
    subject_claim: str = "sub"
    scope_claim: str = "scope"


class JwtValidator:
    """`oauthbearer.TokenValidator` for signed tokens."""

    def __init__(self, keys: KeySource, rules: JwtRules) -> None:
        self._keys = keys
        self._rules = rules

    def validate(self, token: str, now_ms: int) -> BearerToken:
        """Return what a token says. Raises `TokenRefused`."""
        try:
            claims = verify_signature(token, self._keys.keys)
        except UnknownKeyError as error:
            self._keys.on_key_missing(error.key_id, now_ms)
            raise
        return check_claims(claims, self._rules, now_ms / 1000)


def verify_signature(token: str, keys: tuple[JwtKey, ...]) -> dict[str, Any]:
    """Return the claims of a token whose signature is right; nothing else of them is checked.

    Raises `TokenRefused`, and `UnknownKeyError` if no key has the token's key id.
    """
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefused("the token is no signed JSON Web Token") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenRefused(f"the token's algorithm {str(algorithm)[:20]!r} is not permitted")
    if "crit" in header:
        raise TokenRefused("the token has a critical header that is not known")
    if not isinstance(key_id, str | None) or len(key_id or "") > KEY_ID_SIZE_MAX:
        raise TokenRefused("the token's key id is no short text")
    fitting = [
        key
        for key in keys
        if algorithm in key.algorithms and (key_id is None or key.key_id == key_id)
    ]
    if not fitting:
        raise UnknownKeyError(key_id or "")
    for key in fitting:
        try:
            claims: dict[str, Any] = jwt.decode(
                token, key.public_key, algorithms=[algorithm], options=_SIGNATURE_ONLY
            )
        except jwt.InvalidSignatureError:
            continue
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise TokenRefused("the token's claims are no JSON object") from None
        return claims
    raise TokenRefused("the token's signature is wrong")


def check_claims(claims: dict[str, Any], rules: JwtRules, now_s: float) -> BearerToken:
    """Check the claims of a verified token. Raises `TokenRefused`."""
    expires_s = _parse_date(claims, "exp", required=True)
    issued_s = _parse_date(claims, "iat", required=True)
    begins_s = _parse_date(claims, "nbf", required=False)
    assert expires_s is not None
    assert issued_s is not None
    skew_s = rules.clock_skew_s
    if now_s - skew_s >= expires_s:
        raise TokenRefused("the token has expired")
    if begins_s is not None and now_s + skew_s < begins_s:
        raise TokenRefused("the token is not valid yet (nbf)")
    if now_s + skew_s < issued_s:
        raise TokenRefused("the token is issued in the future (iat)")
    if expires_s < issued_s or (begins_s is not None and expires_s < begins_s):
        raise TokenRefused("the token expires before it begins")
    _check_issuer(claims, rules)
    _check_audience(claims, rules)
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not trim_blanks(subject):
        raise TokenRefused(f"the claim {rules.subject_claim!r} has no text for the subject")
    return BearerToken(
        trim_blanks(subject), int(expires_s * 1000), _parse_scope(claims, rules.scope_claim)
    )


def _check_issuer(claims: dict[str, Any], rules: JwtRules) -> None:
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("the token's issuer is not sasl.oauthbearer.expected.issuer")


def _check_audience(claims: dict[str, Any], rules: JwtRules) -> None:
    if rules.any_audience and not rules.audiences:
        return
    audience = claims.get("aud")
    if audience is None:
        if rules.audiences:
            raise TokenRefused("the token has no audience (aud)")
        return
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or not all(isinstance(name, str) for name in audiences):
        raise TokenRefused("the token's audience is neither a text nor a list of texts")
    if not set(audiences) & set(rules.audiences):
        raise TokenRefused(
            "the token's audience is not in sasl.oauthbearer.expected.audience"
            + ("" if rules.audiences else ", which is empty")
        )


def _parse_date(claims: dict[str, Any], name: str, *, required: bool) -> float | None:
    value = claims.get(name)
    if value is None and not required:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"the token has no number in the claim {name}")
    if not math.isfinite(value) or not 0 <= value < 1e14:
        raise TokenRefused(f"the token's claim {name} is no date")
    return value


def _parse_scope(claims: dict[str, Any], name: str) -> frozenset[str]:
    """Return the scope: a text is one value, as in Kafka, and a list has many."""
    value = claims.get(name)
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if not all(isinstance(v, str) and trim_blanks(v) for v in values):
        raise TokenRefused(f"the claim {name!r} has an empty value")
    scope = frozenset(map(trim_blanks, values))
    if len(scope) < len(values):
        raise TokenRefused(f"the claim {name!r} has a value twice")
    return scope
