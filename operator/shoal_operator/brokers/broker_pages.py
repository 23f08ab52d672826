"""What brokers serve by HTTP: their health checks and their metrics."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, NamedTuple

from shoal.monitoring.http_page import HttpPage, get_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.client.settings import Settings

TIMEOUT_SECONDS = 2.0
_OK, _FORBIDDEN = 200, 403


class Health(NamedTuple):
    """The answers to the health checks: the brokers' versions, and which of them serve clients."""

    versions: Mapping[int, str]
    serving: frozenset[int]


class BrokerPages:
    """The HTTP listeners of one cluster's brokers.

    `make_settings` returns the client's settings of now, and `get_properties` the properties of TLS
    that they have: the operator shows its certificate.
    """

    def __init__(
        self,
        make_settings: Callable[[], Settings],
        get_properties: Callable[[], Mapping[str, str]],
    ) -> None:
        self._make_settings, self._get_properties = make_settings, get_properties
        self._context: ssl.SSLContext | None = None
        #: The properties of TLS that `_context` has.
        self._properties: Mapping[str, str] = {}

    async def check_health(self, urls: Mapping[int, str]) -> Health:
        """Ask the brokers with these base URLs by id; those that do not answer are left out.

        The version is in the `Server` header of each response.
        """
        versions, serving = {}, set()
        for broker_id, url in urls.items():
            with contextlib.suppress(OSError, ValueError):
                # Health checks are served without TLS everywhere.
                page = await self._get(url.replace("https:", "http:", 1) + "readyz")
                name, _, version = page.headers.get("server", "").partition("/")
                if name != "shoal":
                    continue
                versions[broker_id] = version
                if page.status == _OK:
                    serving.add(broker_id)
        return Health(versions, frozenset(serving))

    async def fetch_metrics(self, urls: Mapping[int, str]) -> dict[int, str]:
        """Return `/metrics` of each broker. Raises `OSError` or `ValueError` unless all answer."""
        return {broker: await self._fetch_page(f"{url}metrics") for broker, url in urls.items()}

    async def _fetch_page(self, url: str) -> str:
        """Return the page at a URL. A broker that has not restarted since `spec.metrics.tls`
        changed is asked with or without TLS, as it still serves the page."""
        scheme, _, address = url.partition("://")
        try:
            page = await self._get(url)
            if page.status != _FORBIDDEN or scheme == "https":
                return _require_text(url, page)
        except OSError:
            if scheme == "http":
                raise
        other_url = f"{'http' if scheme == 'https' else 'https'}://{address}"
        return _require_text(other_url, await self._get(other_url))

    async def _get(self, url: str) -> HttpPage:
        context = await self._make_context() if url.startswith("https:") else None
        return await get_page(url, context=context, timeout_s=TIMEOUT_SECONDS)

    async def _make_context(self) -> ssl.SSLContext:
        properties = dict(self._get_properties())
        if self._context is None or self._properties != properties:
            if properties:
                context = await self._make_settings().security.make_https_context()
            else:
                # Nothing says whom to trust, and metrics are no secret to who asks for them.
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._context, self._properties = context, properties
        return self._context


def _require_text(url: str, page: HttpPage) -> str:
    if page.status != _OK:
        raise ValueError(f"{url} answers with the status {page.status}")
    return page.text
