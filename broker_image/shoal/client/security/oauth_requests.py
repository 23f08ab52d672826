"""Requests to identity providers for access tokens (`oauth`), with Python's HTTP client."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from shoal.client.errors import LoginUnavailable, SecurityError
from shoal.client.security.secret import Secret, SecretBytes
from shoal.client.security.tls import TlsContextCache, TlsSettings

if TYPE_CHECKING:
    from shoal.client.security.oauth_settings import OAuthSettings

#: Bytes of a token response. Tokens are shorter than the header limits of most servers.
RESPONSE_SIZE_MAX = 1_000_000


def request_token(settings: OAuthSettings, tls: TlsContextCache) -> tuple[Secret, float]:
    """Return the provider's token for a client, and its lifetime in seconds or 0. It blocks."""
    return _parse_response(settings.token_url, _request(settings, tls))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected request would carry the client's secret to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _request(settings: OAuthSettings, tls: TlsContextCache) -> SecretBytes:
    """Return the body of the provider's response to a request for a token."""
    url = settings.token_url
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if url.startswith("https:"):
        context = tls.get(TlsSettings(truststore=settings.truststore))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    failure: Exception
    try:
        with urllib.request.build_opener(*handlers).open(
            _build_request(settings), timeout=settings.timeout_ms / 1000
        ) as response:
            return SecretBytes(response.read(RESPONSE_SIZE_MAX + 1))
    except urllib.error.HTTPError as error:
        failure = _make_refusal_error(url, error)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        failure = LoginUnavailable(f"the identity provider at {url} does not answer: {reason}")
    raise failure


def _build_request(settings: OAuthSettings) -> urllib.request.Request:
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


def _make_refusal_error(url: str, error: urllib.error.HTTPError) -> Exception:
    """Return the error for a status other than 200. Server errors are worth another attempt."""
    if error.code >= 500 or error.code == 429:
        return LoginUnavailable(f"the identity provider at {url} answers {error.code}")
    if 300 <= error.code < 400:
        return SecurityError(f"{url} redirects to another address. Set the address of its target")
    try:
        reason = json.loads(error.read(RESPONSE_SIZE_MAX)).get("error")
    except (ValueError, AttributeError, OSError, HTTPException):
        reason = None
    detail = f": {reason}" if isinstance(reason, str) and reason.isprintable() else ""
    return SecurityError(f"the identity provider at {url} refuses the client, {error.code}{detail}")


def _parse_response(url: str, body: SecretBytes) -> tuple[Secret, float]:
    """Return the token in a response, and its lifetime in seconds or 0."""
    if len(body) > RESPONSE_SIZE_MAX:
        raise SecurityError(f"the response of {url} is larger than {RESPONSE_SIZE_MAX} bytes")
    try:
        fields = json.loads(body)
        value, lifetime = Secret(fields["access_token"]), float(fields.get("expires_in") or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        fields = None
    else:
        return value, lifetime
    raise SecurityError(f"the response of {url} is not a JSON object with an access_token")
