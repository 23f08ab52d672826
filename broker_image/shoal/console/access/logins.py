"""Logins by a proxy in front of the console, and by client certificates."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections import OrderedDict
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.client.security.secret import Secret
from shoal.console.access.security import BEARER, DELEGATION, TOKEN, USER, Bearer
from shoal.console.login_files import InvalidAccess
from shoal.security import distinguished_names
from shoal.security.principal_mapping import NoMatchingRule, PrincipalMapper

if TYPE_CHECKING:
    from collections.abc import Iterable

    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Users whose newest access token is kept.
USERS_MAX = 1_000
#: Characters of a user's name. Kafka has no limit; headers and certificates need one.
NAME_CHARS_MAX = 500
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_HEADER = re.compile(r"[A-Za-z0-9-]+")


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse addresses and networks of proxies. Raises `InvalidAccess`."""
    networks = []
    for text in texts:
        try:
            network = ipaddress.ip_network(text)
        except ValueError:
            raise InvalidAccess(
                f"--trusted-proxy must be an address or a network, such as 10.0.0.7 or 10.1.0.0/16,"
                f" not {text!r}"
            ) from None
        if network.prefixlen == 0:
            raise InvalidAccess(
                f"--trusted-proxy {text} would trust every host: each could log in as anyone. Name"
                " the addresses of the proxies"
            )
        networks.append(network)
    return tuple(networks)


def is_in(text: str, networks: Iterable[Network]) -> bool:
    """Whether an address is in one of the networks."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


class ProxyLogin:
    """The user is in a header of a proxy that logs users in, from trusted addresses only.

    The proxy must remove these headers from the requests of browsers.
    """

    def __init__(
        self, user_header: str, trusted: tuple[Network, ...], token_header: str = ""
    ) -> None:
        """`token_header` has the user's access token. Raises `InvalidAccess`."""
        for header in filter(None, (user_header, token_header)):
            if not _HEADER.fullmatch(header):
                raise InvalidAccess(f"{header!r} is not the name of an HTTP header")
        if not trusted:
            raise InvalidAccess(
                "--proxy-user-header needs --trusted-proxy: without it, each host could log in as"
                " anyone. Name the addresses of the proxies"
            )
        self._user_header, self._token_header, self._trusted = user_header, token_header, trusted
        self._bearers: OrderedDict[str, Bearer] = OrderedDict()

    @property
    def acts_by(self) -> str:
        return TOKEN if self._token_header else DELEGATION

    async def admit(self, request: web.Request) -> None:
        """Take the user and the token from the headers. Raises HTTP 401 and 403."""
        if not is_in(request.remote or "", self._trusted):
            raise web.HTTPForbidden(
                text=f"{request.remote} is not a trusted proxy of this console. Open the console by"
                " the address of its proxy."
            )
        user = self._get_single_header(request, self._user_header)
        if not _is_name(user):
            raise web.HTTPUnauthorized(
                text=f"The proxy did not send the name of one user in the header"
                f" {self._user_header}. Log in at the proxy."
            )
        request[USER] = user
        if self._token_header:
            text = self._get_single_header(request, self._token_header)
            token = text.removeprefix("Bearer ").strip()
            if _TOKEN.fullmatch(token):
                request[BEARER] = self._keep_bearer(user, Secret(token))

    async def close(self) -> None:
        self._bearers.clear()

    @staticmethod
    def _get_single_header(request: web.Request, header: str) -> str:
        """Return the value of a header that is there once, else an empty text."""
        values = request.headers.getall(header, [])
        return values[0].strip() if len(values) == 1 else ""

    def _keep_bearer(self, user: str, token: Secret) -> Bearer:
        bearer = self._bearers.setdefault(user, Bearer(f"proxy {user}", token))
        bearer.value = token
        self._bearers.move_to_end(user)
        if len(self._bearers) > USERS_MAX:
            self._bearers.popitem(last=False)
        return bearer


class CertificateLogin:
    """The user is the subject of a client certificate, as brokers map it to a principal."""

    acts_by = DELEGATION

    def __init__(self, rules: str = "DEFAULT") -> None:
        """`rules` are those of `ssl.principal.mapping.rules`. Raises `InvalidAccess`."""
        try:
            self._mapper = PrincipalMapper(rules)
        except ValueError as error:
            raise InvalidAccess(f"--client-principal-mapping: {error}") from None

    async def admit(self, request: web.Request) -> None:
        """Take the user from the certificate. Raises HTTP 401 and 403."""
        connection = request.get_extra_info("ssl_object")
        certificate = None
        if isinstance(connection, ssl.SSLObject):
            # TLS has verified it. Without a certificate, the handshake succeeds for this page.
            certificate = connection.getpeercert(binary_form=True)
        if certificate is None:
            raise web.HTTPUnauthorized(
                text="Log in with a client certificate. Install one of this console's authority in"
                " your browser, and open the page in a new window."
            )
        try:
            subject = distinguished_names.read_subject(certificate)
            user = self._mapper.map_subject(subject)
        except (NoMatchingRule, ValueError):
            user = ""
        if not _is_name(user):
            raise web.HTTPForbidden(
                text="The subject of your certificate is not the name of a user. Ask an"
                " administrator for --client-principal-mapping of this console."
            )
        request[USER] = user

    async def close(self) -> None:
        pass


def request_client_certs(context: ssl.SSLContext, authorities: str) -> None:
    """Let a server ask for client certificates of the authorities in a PEM file.

    Raises `OSError` and `ssl.SSLError`.
    """
    context.load_verify_locations(authorities)
    context.verify_mode = ssl.CERT_OPTIONAL


def _is_name(text: str) -> bool:
    return bool(text) and len(text) <= NAME_CHARS_MAX and text.isprintable()
