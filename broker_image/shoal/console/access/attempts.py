"""Failed logins by address: after some, an address waits before the console looks at another one.

An address may fail `FAILURES_MAX` times at once, and again each `PAUSE_S`. While it waits, its
attempts are refused without a look at the password, the right one included: otherwise guesses would
cost nothing. Users behind one proxy share its address; there, the proxy should log users in.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable

FAILURES_MAX, PAUSE_S = 10, 30.0
#: Addresses that are kept; the one without a failure for longest is forgotten first.
ADDRESSES_MAX = 10_000
#: A host with one address of IPv6 often owns all with this prefix.
_IPV6_PREFIX_BITS = 64


class Attempts:
    """The failed logins of one console."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the failures of an address are forgiven, each `PAUSE_S` after the one before.
        self._forgiven_at_s: OrderedDict[str, float] = OrderedDict()

    def check(self, address: str | None) -> None:
        """Raise HTTP 429 while an address has to wait."""
        ends_s = self._forgiven_at_s.get(_find_network(address), 0.0)
        wait_s = ends_s - self._clock() - (FAILURES_MAX - 1) * PAUSE_S
        if wait_s > 0:
            seconds = math.ceil(wait_s)
            raise web.HTTPTooManyRequests(
                text=f"Too many logins from {address} have failed. Wait {seconds} seconds, then try"
                " again.",
                headers={"Retry-After": str(seconds)},
            )

    def note_failure(self, address: str | None) -> None:
        network = _find_network(address)
        start_s = max(self._clock(), self._forgiven_at_s.get(network, 0.0))
        self._forgiven_at_s[network] = start_s + PAUSE_S
        self._forgiven_at_s.move_to_end(network)
        if len(self._forgiven_at_s) > ADDRESSES_MAX:
            self._forgiven_at_s.popitem(last=False)


def _find_network(text: str | None) -> str:
    try:
        address = ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return text or ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))
    return str(address)
