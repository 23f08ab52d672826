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
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from pathlib import Path
from random import uniform
from typing import Any, NamedTuple

from shoal.client.blocking_calls import run_in_thread
from shoal.client.errors import LoginUnavailable, SecurityError
from shoal.client.secret import NO_SECRET, Secret, SecretBytes
from shoal.client.tls import Store, TlsContexts, TlsSettings

#: Part of a token's lifetime after which it is fetched again, with a random part so that clients
#: do not ask at the same moment (sasl.login.refresh.window.factor, .jitter).
REFRESH_FACTOR, REFRESH_JITTER = 0.8, 0.05
#: Kafka's sasl.login.retry.backoff.ms and sasl.login.retry.backoff.max.ms. The second also bounds
#: all attempts together, as in Kafka.
RETRY_BACKOFF_MS, RETRY_BACKOFF_MS_MAX = 100, 10_000
#: Limit of one request for a token.
TOKEN_TIMEOUT_MS = 10_000
#: Bytes of a token response. Tokens are shorter than the header limits of most servers.
RESPONSE_SIZE_MAX = 1_000_000
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class OAuthSettings(NamedTuple):
    """Where tokens come from. `extensions` are SASL extensions (KIP-342)."""

    token_url: str
    client_id: str = ""
    client_secret: Secret = NO_SECRET
    scope: str = ""
    extensions: tuple[tuple[str, Secret], ...] = ()
    truststore: Store | None = None
    urlencode: bool = False
    timeout_ms: int = TOKEN_TIMEOUT_MS


class Token(NamedTuple):
    """An access token, and the times in seconds since 1970 until which it is fresh, and valid."""

    value: Secret
    fresh_until: float
    valid_until: float


class Tokens:
    """Owns the current token of one client. Concurrent callers share a request."""

    def __init__(self) -> None:
        self._settings: OAuthSettings | None = None
        self._token: Token | None = None
        self._fetching: asyncio.Task[Token] | None = None
        self._tls = TlsContexts()

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


def fetch(settings: OAuthSettings, tls: TlsContexts) -> Token:
    """Read a token from its file, or request it from the provider. It blocks."""
    url = urllib.parse.urlsplit(settings.token_url)
    if url.scheme == "file":
        # A file is read again for each login.
        token = _token(_from_file(Path(urllib.request.url2pathname(url.path))), 0)
        return token._replace(fresh_until=0)
    value, lifetime = _parse(settings.token_url, _request(settings, tls))
    return _token(value, lifetime)


def _from_file(path: Path) -> Secret:
    try:
        return Secret(path.read_text().strip())
    except OSError as error:
        reason = error.strerror
    except ValueError:
        reason = "it is not a text file"
    raise SecurityError(f"the access token in {path} cannot be read: {reason}")


def _token(value: Secret, expires_in_s: float) -> Token:
    """Return a token with its times. They do not need the clocks of both ends to agree."""
    if not _TOKEN.fullmatch(value.reveal()):
        raise SecurityError("the access token contains characters that RFC 6750 does not allow")
    now = time.time()
    lifetime_s = expires_in_s if expires_in_s > 0 else _lifetime_s(_claims(value), now)
    fresh_s = lifetime_s * (REFRESH_FACTOR + uniform(0, REFRESH_JITTER))
    return Token(value, now + fresh_s, now + lifetime_s)


def _lifetime_s(claims: dict[str, Any], now: float) -> float:
    """Return the lifetime in the claims of a JWT, or 0 if it is not known."""
    issued, expires = claims.get("iat", now), claims.get("exp")
    if isinstance(issued, int | float) and isinstance(expires, int | float):
        return max(expires - issued, 0.0)
    return 0.0


def _claims(value: Secret) -> dict[str, Any]:
    """Return the claims of a JWT, whose signature only the broker checks; none of other tokens."""
    parts = value.reveal().split(".")
    if len(parts) not in (2, 3):
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected request would carry the client's secret to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _request(settings: OAuthSettings, tls: TlsContexts) -> SecretBytes:
    """Return the body of the provider's response to a request for a token."""
    url = settings.token_url
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if url.startswith("https:"):
        context = tls.get(TlsSettings(truststore=settings.truststore))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    failure: Exception
    try:
        with urllib.request.build_opener(*handlers).open(
            _post(settings), timeout=settings.timeout_ms / 1000
        ) as response:
            return SecretBytes(response.read(RESPONSE_SIZE_MAX + 1))
    except urllib.error.HTTPError as error:
        failure = _refusal(url, error)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        failure = LoginUnavailable(f"the identity provider at {url} does not answer: {reason}")
    raise failure


def _post(settings: OAuthSettings) -> urllib.request.Request:
    names = (settings.client_id, settings.client_secret.reveal())
    if settings.urlencode:
        names = (urllib.parse.quote_plus(names[0]), urllib.parse.quote_plus(names[1]))
    form = {"grant_type": "client_credentials"}
    if settings.scope:
        form["scope"] = settings.scope
    login = base64.b64encode(":".join(names).encode()).decode()
    return urllib.request.Request(
        settings.token_url,
        urllib.parse.urlencode(form).encode(),
        {"Authorization": f"Basic {login}", "Accept": "application/json"},
    )


def _refusal(url: str, error: urllib.error.HTTPError) -> Exception:
    """Return the error for a status other than 200. Server errors are worth another attempt."""
    if error.code >= 500 or error.code == 429:
        return LoginUnavailable(f"the identity provider at {url} answers {error.code}")
    if 300 <= error.code < 400:
        return SecurityError(f"{url} redirects to another address. Set the address of its target")
    try:
        said = json.loads(error.read(RESPONSE_SIZE_MAX)).get("error")
    except (ValueError, AttributeError, OSError, HTTPException):
        said = None
    detail = f": {said}" if isinstance(said, str) and said.isprintable() else ""
    return SecurityError(f"the identity provider at {url} refuses the client, {error.code}{detail}")


def _parse(url: str, body: SecretBytes) -> tuple[Secret, float]:
    """Return the token in a response, and its lifetime in seconds or 0."""
    if len(body) > RESPONSE_SIZE_MAX:
        raise SecurityError(f"the response of {url} is larger than {RESPONSE_SIZE_MAX} bytes")
    try:
        found = json.loads(body)
        value, lifetime = Secret(found["access_token"]), float(found.get("expires_in") or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        found = None
    else:
        return value, lifetime
    raise SecurityError(f"the response of {url} is not a JSON object with an access_token")
