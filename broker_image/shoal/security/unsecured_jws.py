"""Tokens without a signature, for tests and development (KIP-255): anyone can make one.

Kafka uses them for OAUTHBEARER unless another handler is configured. This broker uses them only if
`sasl.server.callback.handler.class` names Kafka's class for them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

from shoal.security.oauthbearer import BearerToken, TokenRefused, trim_blanks

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "unsecuredValidator"
_SCOPE_ITEM = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class UnsecuredValidator:
    """`oauthbearer.TokenValidator` for unsecured tokens. `options` are those of the JAAS config."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `ValueError` for an invalid option."""
        self._subject_claim = options.get(f"{_PREFIX}PrincipalClaimName", "").strip() or "sub"
        self._scope_claim = options.get(f"{_PREFIX}ScopeClaimName", "").strip() or "scope"
        self._required = options.get(f"{_PREFIX}RequiredScope", "").split()
        for item in self._required:
            if not _SCOPE_ITEM.fullmatch(item):
                raise ValueError(f"{_PREFIX}RequiredScope has an invalid value")
        skew = options.get(f"{_PREFIX}AllowableClockSkewMs", "").strip() or "0"
        if not skew.isascii() or not skew.isdigit():
            raise ValueError(f"{_PREFIX}AllowableClockSkewMs is not a number of milliseconds")
        self._skew_ms = int(skew)

    def validate(self, token: str, now_ms: int) -> BearerToken:
        """Return what a token says. Raises `TokenRefused`."""
        parts = token.split(".")
        if len(parts) != 3:
            raise TokenRefused("the token does not have three parts")
        header, claims = _decode_part(parts[0]), _decode_part(parts[1])
        if header.get("alg") != "none" or parts[2]:
            raise TokenRefused("the token is signed, and only unsecured tokens are accepted")
        expires_s, issued_s = _parse_date(claims, "exp"), _parse_date(claims, "iat")
        if expires_s is None:
            raise TokenRefused("the token has no expiry (exp)")
        subject = claims.get(self._subject_claim)
        if not isinstance(subject, str) or not trim_blanks(subject):
            raise TokenRefused(f"the claim {self._subject_claim!r} has no text for the subject")
        if issued_s is not None and 1000 * issued_s > now_ms + self._skew_ms:
            raise TokenRefused("the token is issued in the future (iat)")
        if now_ms - self._skew_ms >= 1000 * expires_s:
            raise TokenRefused("the token has expired")
        if issued_s is not None and expires_s <= issued_s:
            raise TokenRefused("the token expires before it begins")
        scope = self._parse_scope(claims)
        if not scope.issuperset(self._required):
            raise TokenRefused("the token lacks a required scope", f"[{', '.join(self._required)}]")
        return BearerToken(subject, round(expires_s * 1000), scope)

    def _parse_scope(self, claims: Mapping[str, Any]) -> frozenset[str]:
        value = claims.get(self._scope_claim, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list):
            raise TokenRefused(f"the claim {self._scope_claim!r} is neither a text nor a list")
        return frozenset(trim_blanks(text) for text in map(str, values) if trim_blanks(text))


def _decode_part(part: str) -> dict[str, Any]:
    """Decode a part of a token: Base64URL, or Base64 as Kafka reads it, with or without padding."""
    if not re.fullmatch(r"[A-Za-z0-9+/_\-]+={0,2}", part):
        raise TokenRefused("a part of the token is not Base64")
    stem = part.rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
    try:
        decoded = json.loads(base64.b64decode(stem + "=" * (-len(stem) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise TokenRefused("a part of the token is not JSON") from None
    if not isinstance(decoded, dict):
        raise TokenRefused("a part of the token is not a JSON object")
    return decoded


def _parse_date(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e14:
        raise TokenRefused(f"the token has no number in the claim {name}")
    return value
