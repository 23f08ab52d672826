"""Where access tokens of OAUTHBEARER come from (`oauth`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.security.secret import NO_SECRET, Secret

if TYPE_CHECKING:
    from shoal.client.security.tls import TlsStore

#: Limit of one request for a token.
TOKEN_TIMEOUT_MS = 10_000


class OAuthSettings(NamedTuple):
    """Where tokens come from. `extensions` are SASL extensions (KIP-342)."""

    token_url: str
    client_id: str = ""
    client_secret: Secret = NO_SECRET
    scope: str = ""
    extensions: tuple[tuple[str, Secret], ...] = ()
    truststore: TlsStore | None = None
    urlencode: bool = False
    timeout_ms: int = TOKEN_TIMEOUT_MS
