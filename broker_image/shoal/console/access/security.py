"""Who may reach the console: addresses, host names, a login, and the headers of all responses."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from aiohttp import web

from shoal.console.access.attempts import Attempts
from shoal.console.login_files import InvalidAccess
from shoal.console.reading.masks import NO_MASKS, Masks
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.typedefs import Handler, Middleware

    from shoal.client.security.secret import Secret
    from shoal.console.reading.registries import RegistrySettings
    from shoal.console.sampling.kubernetes import KubernetesSettings
    from shoal.console.sampling.prometheus import PrometheusSettings

log = logging.getLogger("shoal.console")
#: Nothing from elsewhere, nothing inline, no frame around the page.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer, browsers send forms without their origin, which `Sessions.check` needs.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Without the versions of Python and aiohttp.
    "Server": "shoal console",
}
#: The codes with which brokers refuse a request for lack of a permission.
NO_RIGHT = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)
#: The name of the logged-in user; "" without a login.
USER = web.RequestKey("user", str)


@dataclass(slots=True)
class Bearer:
    """An access token of a user. A newer one replaces `value`. `key` names the user's session."""

    key: str
    value: Secret


#: The access token of the logged-in user, if the login has one.
BEARER = web.RequestKey("bearer", Bearer)


class ExpiringLogin(ABC):
    """A login that ends: a page that is open then gets no more updates."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the login has ended."""

    @abstractmethod
    async def renew(self) -> None:
        """Renew what ends before the login. An open page calls it before each update."""


#: The login of a request, if it ends.
LOGIN = web.RequestKey("login", ExpiringLogin)
#: Seconds until the answer to a wrong password.
REFUSAL_DELAY_S = 0.5


class ConsoleLogin(Protocol):
    """A way to log in without a password of the console's own."""

    @property
    def acts_by(self) -> str:
        """How users act: `TOKEN`, by their access tokens, or `DELEGATION`."""

    async def admit(self, request: web.Request) -> web.StreamResponse | None:
        """Set `USER`, and `BEARER` if there is one. Return a response if the login begins.

        Raises HTTP 401 and 403.
        """

    async def close(self) -> None:
        """Release what the login holds."""


TOKEN, DELEGATION = "token", "delegation"


@dataclass(frozen=True, slots=True)
class ConsoleAccess:
    """Where the console listens and who may use it. `users` maps names to hashed passwords, `login`
    is another way to log in; without both everyone may. `url` is the address that browsers use.
    `allow_actions` lets users change the cluster. `masks` limits what they
    see of records."""

    host: str = "127.0.0.1"
    port: int = 9080
    is_encrypted: bool = False
    users: Mapping[str, bytes] = field(default_factory=dict)
    allow_actions: bool = False
    masks: Masks = NO_MASKS
    login: ConsoleLogin | None = None
    url: str = ""
    registry: RegistrySettings | None = None
    kubernetes: KubernetesSettings | None = None
    prometheus: PrometheusSettings | None = None

    @property
    def has_login(self) -> bool:
        return bool(self.users) or self.login is not None

    @property
    def acts_by(self) -> str:
        """How several users act; empty if actions have the rights of the console's connection."""
        if self.login is not None:
            return self.login.acts_by
        return DELEGATION if len(self.users) > 1 else ""

    @property
    def hosts(self) -> frozenset[str]:
        """The names, with ports, by which browsers reach the console besides its own address."""
        return frozenset({urlsplit(self.url).netloc} if self.url else ())

    def check(self, *, insecure: bool) -> None:
        """Raise `InvalidAccess` if other hosts could reach the console without encryption or login.

        `insecure` allows it.
        """
        if is_loopback(self.host) or insecure or (self.has_login and self.is_encrypted):
            return
        raise InvalidAccess(
            f"other hosts reach {self.host}, and the console shows records. Give it --login and"
            " --certificate, or allow everyone with --insecure, for example behind a proxy that"
            " logs users in"
        )


def parse_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT. Raises `InvalidAccess`."""
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.port is not None and not parts.path:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise InvalidAccess(f"--listen must be HOST:PORT, not {text!r}")


def parse_users(text: str, name: str) -> dict[str, bytes]:
    """Parse lines of USER:PASSWORD; empty lines and those with # are skipped.

    Raises `InvalidAccess` without the passwords.
    """
    users = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.partition(":")
        if not colon or not user or not password:
            raise InvalidAccess(f"line {number} of {name} must be USER:PASSWORD")
        users[user] = _hash(password)
    if not users:
        raise InvalidAccess(f"{name} has no users. Add a line USER:PASSWORD for each")
    return users


def is_loopback(host: str) -> bool:
    """Whether only this host reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _hash(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


def guard(access: ConsoleAccess) -> Middleware:
    """Return the middleware that refuses foreign host names and users without a login."""
    attempts = Attempts()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        # A page of another site, whose name its DNS server maps to 127.0.0.1, has that site's name.
        name = _find_host_name(request.host)
        is_own = is_loopback(name) or request.host in access.hosts
        if is_loopback(access.host) and not is_own:
            name = name[:100] or "this name"
            raise web.HTTPMisdirectedRequest(
                text=f"The console listens on {access.host} only, not as {name}."
            )
        if access.login is not None:
            begun = await access.login.admit(request)
            return await handler(request) if begun is None else begun
        tries = bool(access.users) and "Authorization" in request.headers
        if tries:
            attempts.check(request.remote)
        user = _authenticate(access.users, request.headers.get("Authorization", ""))
        if access.users and user is None:
            if tries:
                log.warning("login from %s failed", request.remote)
                attempts.note_failure(request.remote)
                await asyncio.sleep(REFUSAL_DELAY_S)
            raise web.HTTPUnauthorized(
                text="Log in to see the console.",
                headers={"WWW-Authenticate": 'Basic realm="Shoal console", charset="UTF-8"'},
            )
        request[USER] = user or ""
        return await handler(request)

    return check


def _find_host_name(host: str) -> str:
    """Return the name in a Host header, empty for a text that is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authenticate(users: Mapping[str, bytes], header: str) -> str | None:
    """Return the user who logs in by a header of basic authentication, or None."""
    scheme, _, text = header.partition(" ")
    try:
        user, _, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    # Compare also for an unknown user, so that the time does not show which users exist.
    expected = users.get(user, b"\0" * 32)
    is_right = hmac.compare_digest(expected, _hash(password)) and scheme.lower() == "basic"
    return user if is_right else None


@web.middleware
async def with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add `HEADERS` to each response. An event stream, which is sent already, has them."""
    response = await handler(request)
    if not response.prepared:
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
    return response
