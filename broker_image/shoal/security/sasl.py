"""What all SASL mechanisms have in common: an exchange of tokens that ends in a login.

An exchange lives for one attempt to log in. `server.network.authentication` passes it the client's
tokens and sends its answers. Nonces, credentials and the time are arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
NO_EXTENSIONS: Mapping[str, str] = {}


class LoginRefused(Exception):
    """A login is refused.

    `reason` is for the log. `client_message` is for the client; None means the same text for all
    reasons, so that nobody learns which users there are.
    """

    def __init__(self, reason: str, client_message: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.client_message = client_message


class SaslLogin(NamedTuple):
    """A principal that has logged in, such as `User:alice`, and when its credential expires."""

    principal: str
    expires_ms: int | None = None
    #: Whether a delegation token was used (KIP-48).
    by_token: bool = False
    #: What an OAUTHBEARER client has sent beside its token (KIP-342).
    extensions: Mapping[str, str] = NO_EXTENSIONS


class Exchange(Protocol):
    """The server's side of one attempt to log in."""

    @property
    def user(self) -> str:
        """The name that the client claims, empty until it is known. Nobody has verified it."""

    @property
    def login(self) -> SaslLogin | None:
        """The login, once the exchange is complete."""

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        """Return the answer to a token of the client. Raises `LoginRefused`."""
