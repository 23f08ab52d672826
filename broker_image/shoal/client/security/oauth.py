"""Access tokens for OAUTHBEARER (RFC 6749, RFC 6750, KIP-768, KIP-1139).

A token comes from a file, or from an identity provider for a client's id and secret (grant type
`client_credentials`). It is used until 80 % of its lifetime are over, and then fetched again. If
the provider does not answer, the token is used until it expires. The requests run in threads.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from pathlib import Path
from random import uniform
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from shoal.client.blocking_calls import run_in_thread
from shoal.client.errors import LoginUnavailable, SecurityError
from shoal.client.security.secret import Secret
from shoal.client.security.tls import TlsContextCache

if TYPE_CHECKING:
    from shoal.client.security.oauth_settings import OAuthSettings

#: Part of a token's lifetime after which it is fetched again, with a random part so that clients
#: do not ask at the same moment (sasl.login.refresh.window.factor, .jitter).
REFRESH_FACTOR, REFRESH_JITTER = 0.8, 0.05
#: Kafka's sasl.login.retry.backoff.ms and sasl.login.retry.backoff.max.ms. The second also bounds
#: all attempts together, as in Kafka.
RETRY_BACKOFF_MS, RETRY_BACKOFF_MS_MAX = 100, 10_000
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class Token(NamedTuple):
    """An access token, and the times in seconds since 1970 until which it is fresh, and valid."""

    value: Secret
    fresh_until: float
    valid_until: float


class TokenCache:
    """Owns the current token of one client. Concurrent callers share a request."""

    def __init__(self) -> None:
        self._settings: OAuthSettings | None = None
        self._token: Token | None = None
        self._fetching: asyncio.Task[Token] | None = None
        self._tls = TlsContextCache()

    async def get(self, settings: OAuthSettings) -> Secret:
        """Return a valid token. Raises `SecurityError` or `LoginUnavailable`."""
        if settings != self._settings:
            self._settings, self._token, self._fetching = settings, None, None
        token = self._token
        if token is not None and time.time() < token.fresh_until:
            return token.value
        fetching = self._fetching
        loop = asyncio.get_running_loop()
        if fetching is None or fetching.done() or fetching.get_loop() is not loop:
            fetching = self._fetching = loop.create_task(self._fetch(settings))
            fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait((fetching,))
        error = fetching.exception()
        if error is None:
            fresh = fetching.result()
            self._token = fresh
            return fresh.value
        if token is not None and time.time() < token.valid_until:
            return token.value
        raise error

    async def _fetch(self, settings: OAuthSettings) -> Token:
        """Fetch a token; try again while the provider does not answer."""
        deadline = time.monotonic() + RETRY_BACKOFF_MS_MAX / 1000
        pause_s = RETRY_BACKOFF_MS / 1000
        while True:
            try:
                async with asyncio.timeout(settings.timeout_ms / 1000):
                    return await run_in_thread(lambda: fetch(settings, self._tls))
            except TimeoutError:
                late = LoginUnavailable(
                    f"the identity provider at {settings.token_url} does not answer within"
                    f" {settings.timeout_ms} ms"
                )
            except LoginUnavailable as error:
                late = error
            if time.monotonic() + pause_s > deadline:
                raise late
            await asyncio.sleep(pause_s)
            pause_s *= 2


def fetch(settings: OAuthSettings, tls: TlsContextCache) -> Token:
    """Read a token from its file, or request it from the provider. It blocks."""
    url = urlsplit(settings.token_url)
    if url.scheme == "file":
        # A file is read again for each login.
        token = _make_token(_read_token_file(Path(unquote(url.path))), 0)
        return token._replace(fresh_until=0)
    from shoal.client.security import oauth_requests  # Python's HTTP client takes a megabyte.

    return _make_token(*oauth_requests.request_token(settings, tls))


def _read_token_file(path: Path) -> Secret:
    try:
        return Secret(path.read_text().strip())
    except OSError as error:
        reason = error.strerror
    except ValueError:
        reason = "it is not a text file"
    raise SecurityError(f"the access token in {path} cannot be read: {reason}")


def _make_token(value: Secret, expires_in_s: float) -> Token:
    """Return a token with its times. They do not need the clocks of both ends to agree."""
    if not _TOKEN.fullmatch(value.reveal()):
        raise SecurityError("the access token contains characters that RFC 6750 does not allow")
    now = time.time()
    lifetime_s = (
        expires_in_s if expires_in_s > 0 else _compute_lifetime_s(_parse_claims(value), now)
    )
    fresh_s = lifetime_s * (REFRESH_FACTOR + uniform(0, REFRESH_JITTER))
    return Token(value, now + fresh_s, now + lifetime_s)


def _compute_lifetime_s(claims: dict[str, Any], now: float) -> float:
    """Return the lifetime in the claims of a JWT, or 0 if it is not known."""
    issued, expires = claims.get("iat", now), claims.get("exp")
    if isinstance(issued, int | float) and isinstance(expires, int | float):
        return max(expires - issued, 0.0)
    return 0.0


def _parse_claims(value: Secret) -> dict[str, Any]:
    """Return the claims of a JWT, whose signature only the broker checks; none of other tokens."""
    parts = value.reveal().split(".")
    if len(parts) not in (2, 3):
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}
