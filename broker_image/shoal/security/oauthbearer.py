"""OAUTHBEARER (RFC 7628, KIP-255, KIP-342): a bearer token as the credential of a client.

A token that is refused gets an answer in JSON. The client then sends the byte 0x01, and the
exchange ends with the same JSON as the error message.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.security.sasl import LoginRefused, SaslLogin

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[\-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_AUTH_KEY = "auth"
#: What Java's `String.trim` takes for blanks. Python's `strip` takes others, too: a subject of
#: U+00A0 and `admin` would be `admin`.
_BLANKS = "".join(map(chr, range(0x21)))
#: What a client sends after it has received an error.
_ACKNOWLEDGEMENT = b"\x01"


class BearerToken(NamedTuple):
    """A token that has been verified: who its bearer is, until when, and with which scope."""

    subject: str
    expires_ms: int
    scope: frozenset[str] = frozenset()


class TokenRefused(Exception):
    """A bearer token is refused. The message, which has no part of the token, is for the log.

    `missing_scope` names the scope that it lacks, if that is the reason.
    """

    def __init__(self, reason: str, missing_scope: str = "") -> None:
        super().__init__(reason)
        self.missing_scope = missing_scope


class TokenValidator(Protocol):
    """Verifies bearer tokens."""

    def validate(self, token: str, now_ms: int) -> BearerToken:
        """Return what a token says. Raises `TokenRefused`."""


class OAuthMessage(NamedTuple):
    """The client's first message."""

    token: str
    authzid: str
    extensions: Mapping[str, str]


def trim_blanks(text: str) -> str:
    """Return the value of a claim without the blanks around it that Kafka removes."""
    return text.strip(_BLANKS)


def parse_message(data: bytes) -> OAuthMessage:
    """Parse the client's first message. Raises `LoginRefused`."""
    match = _CLIENT_FIRST.fullmatch(data.decode(errors="replace"))
    if match is None:
        raise LoginRefused("the client's OAUTHBEARER message is malformed")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01")[:-1])
    auth = _AUTH.fullmatch(pairs.pop(_AUTH_KEY, ""))
    if auth is None:
        raise LoginRefused("the client's OAUTHBEARER message has no valid 'auth'")
    if auth["scheme"].lower() != "bearer":
        raise LoginRefused("the client's OAUTHBEARER message has a scheme other than Bearer")
    return OAuthMessage(auth["token"], match["authzid"] or "", pairs)


class OAuthExchange:
    """One exchange, in which the client may present a token again after an error."""

    def __init__(self, validator: TokenValidator) -> None:
        self.user = ""
        self.login: SaslLogin | None = None
        self._validator = validator
        self._error = ""
        self._reason = ""

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        """Return the answer to a token of the client. Raises `LoginRefused`."""
        error, self._error = self._error, ""
        if token == _ACKNOWLEDGEMENT and error:
            raise LoginRefused(self._reason, error)
        message = parse_message(token)
        try:
            bearer = self._validator.validate(message.token, now_ms)
        except TokenRefused as refused:
            self._error = _format_error(refused.missing_scope)
            self._reason = str(refused)
            return self._error.encode()
        self.user = bearer.subject
        if message.authzid not in ("", bearer.subject):
            raise LoginRefused(
                "the authorization id differs from the token's subject",
                f"Authentication failed: Client requested an authorization id ({message.authzid})"
                f" that is different from the token's principal name ({bearer.subject})",
            )
        self.login = SaslLogin(
            f"User:{bearer.subject}", bearer.expires_ms, extensions=message.extensions
        )
        return b""


def _format_error(missing_scope: str) -> str:
    """Return the error of RFC 7628, section 3.2.2, as Kafka writes it."""
    if not missing_scope:
        return '{"status":"invalid_token"}'
    return f'{{"status":"insufficient_scope", "scope":{json.dumps(missing_scope)}}}'
