"""What the console asks of an OpenID provider: its metadata, its keys, and tokens.

Sources: OpenID Connect Discovery 1.0 section 4, RFC 6749 sections 2.3, 4.1 and 6, RFC 7009, RFC
8414. Redirects are not followed, because the requests have secrets. Addresses need HTTPS, except on
a loopback address.
"""

from __future__ import annotations

import json
import logging
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_plus, urlsplit

import aiohttp

from shoal.client.security.secret import NO_SECRET, Secret
from shoal.console.access.security import is_loopback
from shoal.console.login_files import InvalidAccess
from shoal.security import strict_verification
from shoal.security.jwt_tokens import (
    JwtKey,
    KeySetError,
    UnknownKeyError,
    parse_keys,
    verify_signature,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("shoal.console")
#: Seconds for one answer of the provider, and bytes of it.
ANSWER_S_MAX, ANSWER_BYTES_MAX = 10.0, 1 << 20
#: Seconds for which metadata stay in use, and the shortest time between two requests for keys.
METADATA_S, KEYS_S_MIN = 3_600.0, 5.0
_MEMBERS = {
    "issuer": str,
    "client_id": str,
    "client_secret": str,
    "scopes": list,
    "user_claim": str,
    "ca": str,
}


class ProviderRefusal(Exception):
    """The provider refuses a request, or the console refuses its answer."""


class ProviderError(Exception):
    """The provider does not answer as it should: a clause with its address."""


@dataclass(frozen=True, slots=True)
class OpenIdSettings:
    """The provider and this console as its client. `url` is the address that browsers use."""

    issuer: str
    client_id: str
    url: str
    client_secret: Secret = NO_SECRET
    scopes: tuple[str, ...] = ("openid",)
    user_claim: str = "sub"
    ca: str = ""


class ProviderMetadata(NamedTuple):
    """The provider's addresses; the last two are optional. `names_itself`: its answers have its
    issuer (RFC 9207)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str
    revocation_endpoint: str
    names_itself: bool
    has_basic: bool


class TokenResponse(NamedTuple):
    """An answer of the token endpoint. A lifetime of 0 is unknown."""

    access_token: Secret
    id_token: Secret
    refresh_token: Secret
    lifetime_s: float


def parse_openid(text: str, name: str, url: str) -> OpenIdSettings:
    """Parse a JSON object with the provider. Raises `InvalidAccess` without the secret."""
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidAccess(f"{name} is not JSON") from None
    if not isinstance(settings, dict):
        raise InvalidAccess(f"{name} must be a JSON object")
    for member, value in settings.items():
        if member not in _MEMBERS:
            raise InvalidAccess(f"{name} has {member!r:.60}. Use {', '.join(_MEMBERS)}")
        if not isinstance(value, _MEMBERS[member]) or not value:
            kind = "list of texts" if member == "scopes" else "text"
            raise InvalidAccess(f"{member} of {name} must be a {kind}")
    for member in ("issuer", "client_id"):
        if member not in settings:
            raise InvalidAccess(f"{name} has no {member}")
    scopes = settings.get("scopes", ["openid"])
    if "openid" not in scopes or not all(isinstance(scope, str) for scope in scopes):
        raise InvalidAccess(f'scopes of {name} must be a list of texts with "openid"')
    _check_url(settings["issuer"], f"issuer of {name}")
    if not url:
        raise InvalidAccess(
            "--openid needs --url, the address of the console to which the provider sends browsers"
            " back, for example https://queues.example"
        )
    return OpenIdSettings(
        settings["issuer"],
        settings["client_id"],
        url,
        Secret(settings.get("client_secret", "")),
        tuple(scopes),
        settings.get("user_claim", "sub"),
        settings.get("ca", ""),
    )


def parse_url(text: str) -> str:
    """Return the address that browsers use, without a slash at its end. Raises `InvalidAccess`."""
    _check_url(text, "--url")
    parts = urlsplit(text)
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise InvalidAccess(f"--url must be scheme, host and port only, not {text!r}")
    return f"{parts.scheme}://{parts.netloc}"


def _check_url(text: str, label: str) -> None:
    """Raise `InvalidAccess` if an address is not safe from listeners on the network."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise InvalidAccess(f"{label} must be an address with https://, not {text!r:.200}")
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidAccess(f"{label} must have https://, because {host} is not a loopback address")


class Provider:
    """One provider. Metadata and keys are read when they are needed first."""

    def __init__(self, settings: OpenIdSettings) -> None:
        self._settings = settings
        self._http: aiohttp.ClientSession | None = None
        self._metadata: ProviderMetadata | None = None
        self._metadata_at_s = 0.0
        self._keys: tuple[JwtKey, ...] = ()
        self._keys_at_s = float("-inf")

    @property
    def end_session_url(self) -> str:
        return self._metadata.end_session_endpoint if self._metadata is not None else ""

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def read_metadata(self) -> ProviderMetadata:
        """Return the provider's metadata. Raises `ProviderError`."""
        now_s = time.monotonic()
        if self._metadata is not None and now_s - self._metadata_at_s < METADATA_S:
            return self._metadata
        url = self._settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
        status, document = await self._request_json("GET", url)
        if status != 200 or document.get("issuer") != self._settings.issuer:
            raise ProviderError(f"{url} is not the metadata of {self._settings.issuer}")
        required = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        names = (*required, "end_session_endpoint", "revocation_endpoint")
        addresses = [str(document.get(name) or "") for name in names]
        try:
            for name, address in zip(names, addresses, strict=True):
                if address or name in required:
                    _check_url(address, name)
        except InvalidAccess as error:
            raise ProviderError(f"{url} cannot be used: {error}") from None
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        self._metadata = ProviderMetadata(
            addresses[0],
            addresses[1],
            addresses[2],
            addresses[3],
            addresses[4],
            document.get("authorization_response_iss_parameter_supported") is True,
            isinstance(methods, list) and "client_secret_basic" in methods,
        )
        self._metadata_at_s = now_s
        return self._metadata

    async def request_tokens(self, form: dict[str, str]) -> TokenResponse:
        """Return tokens for a grant. Raises `ProviderRefusal` and `ProviderError`."""
        metadata = await self.read_metadata()
        url = metadata.token_endpoint
        status, document = await self._request_json("POST", url, **self._identify(form, metadata))
        if status != 200:
            raise ProviderRefusal(format_reported_error(document, str(status)))
        values = [document.get(name, "") for name in ("access_token", "id_token", "refresh_token")]
        if not all(isinstance(value, str) for value in values) or not values[0]:
            raise ProviderError(f"the answer of {url} has no access_token")
        lifetime = document.get("expires_in")
        lifetime_s = float(lifetime) if isinstance(lifetime, int) and lifetime > 0 else 0.0
        return TokenResponse(Secret(values[0]), Secret(values[1]), Secret(values[2]), lifetime_s)

    async def revoke(self, refresh_token: Secret) -> None:
        """Revoke a refresh token, if the provider can. Raises `ProviderRefusal` and
        `ProviderError`."""
        metadata = await self.read_metadata()
        url = metadata.revocation_endpoint
        if not url:
            return
        form = {"token": refresh_token.reveal(), "token_type_hint": "refresh_token"}
        # The answer to a success has no body that matters.
        status, body = await self._request("POST", url, **self._identify(form, metadata))
        if status != 200:
            raise ProviderRefusal(format_reported_error(_parse(url, status, body), str(status)))

    def _identify(self, form: dict[str, str], metadata: ProviderMetadata) -> dict[str, Any]:
        """Return a form and headers by which the provider recognizes this console."""
        settings = self._settings
        if settings.client_secret and metadata.has_basic:
            pair = (quote_plus(settings.client_id), quote_plus(settings.client_secret.reveal()))
            return {"data": form, "headers": {"Authorization": aiohttp.encode_basic_auth(*pair)}}
        form = {**form, "client_id": settings.client_id}
        if settings.client_secret:
            form["client_secret"] = settings.client_secret.reveal()
        return {"data": form}

    async def verify_claims(self, id_token: Secret) -> dict[str, Any]:
        """Return the claims of an ID token that a key of the provider has signed.

        Raises `TokenRefused` and `ProviderError`.
        """
        if not self._keys:
            await self._read_keys()
        try:
            return verify_signature(id_token.reveal(), self._keys)
        except UnknownKeyError:
            # The provider may have a new key.
            if time.monotonic() - self._keys_at_s < KEYS_S_MIN:
                raise
            await self._read_keys()
            return verify_signature(id_token.reveal(), self._keys)

    async def _read_keys(self) -> None:
        url = (await self.read_metadata()).jwks_uri
        status, document = await self._request_json("GET", url)
        self._keys_at_s = time.monotonic()
        try:
            if status != 200:
                raise KeySetError(f"status {status}")
            self._keys = parse_keys(json.dumps(document).encode())
        except KeySetError as error:
            raise ProviderError(f"the keys at {url} cannot be read: {error}") from None

    async def _request_json(self, method: str, url: str, **more: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON object of an answer. Raises `ProviderError`."""
        status, body = await self._request(method, url, **more)
        return status, _parse(url, status, body)

    async def _request(self, method: str, url: str, **more: Any) -> tuple[int, bytes]:
        """Return the status and the body of an answer. Raises `ProviderError`."""
        if self._http is None:
            self._http = self._open_session()
        body = b""
        try:
            async with self._http.request(method, url, allow_redirects=False, **more) as answer:
                async for piece in answer.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        raise ProviderError(f"the answer of {url} is too large")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or "no answer in time"
            why = (
                f"{reason}.{remedy}"
                if (remedy := strict_verification.find_remedy(error))
                else reason
            )
            raise ProviderError(f"{url} does not answer: {why}") from None
        return answer.status, body

    def _open_session(self) -> aiohttp.ClientSession:
        context = ssl.create_default_context()
        if self._settings.ca:
            try:
                context.load_verify_locations(self._settings.ca)
            except (OSError, ssl.SSLError) as error:
                raise ProviderError(f"{self._settings.ca} cannot be used: {error}") from None
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
            headers={"Accept": "application/json"},
        )


def format_reported_error(answer: Mapping[str, object], otherwise: str = "") -> str:
    """Return a clause with the error in an answer (RFC 6749, section 5.2)."""
    error = str(answer.get("error") or otherwise)[:60]
    description = str(answer.get("error_description") or "")[:200]
    return f"it reports {error!r}" + (f": {description!r}" if description else "")


def _parse(url: str, status: int, body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises `ProviderError`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if status >= 500 or not isinstance(document, dict):
        raise ProviderError(f"{url} answers {status} without a JSON object")
    return document
