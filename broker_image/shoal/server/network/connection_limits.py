"""Limits on the number of connections and on the rate of new ones.

* A connection above `max.connections` or `max.connections.per.ip` is closed at once. Kafka lets
  connections above `max.connections` wait; here the client can try another broker immediately.
* Above `max.connection.creation.rate`, new connections are served with a delay.
* An address above its quota `connection_creation_rate` waits for at most one window of the quota,
  then its connection is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata.client_quotas import find_connection_rate
from shoal.metadata.config_keys import parse_counts_by_address
from shoal.server.quota.rates import Rate

if TYPE_CHECKING:
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: The default of max.connection.creation.rate. At this value, no rate is measured.
_NO_LIMIT = 2**31 - 1
#: The number of addresses with a rate. Above it, idle rates are dropped.
RATES_MAX = 10_000


class ConnectionThrottle(NamedTuple):
    """How long a new connection waits, and whether it is closed after that."""

    delay_ms: int
    refused: bool = False


class ConnectionLimits:
    """Owns the rates of new connections: of all, and by address."""

    def __init__(self, node: Node, cache: MetadataCache) -> None:
        self._clock = node.clock
        self._cache = cache
        self._samples: int = node.config["quota.window.num"]
        self._window_ms: int = node.config["quota.window.size.seconds"] * 1000
        self._rate: Rate | None = None
        self._rates_by_host: dict[str, Rate] = {}
        self._overrides: tuple[str, dict[str, int]] = ("", {})

    def allows(self, host: str, total: int, from_host: int) -> bool:
        """Whether `host` may connect, with `total` connections open and `from_host` of them its
        own."""
        config = self._cache.image.broker_config
        text = config["max.connections.per.ip.overrides"]
        if text != self._overrides[0]:
            self._overrides = text, parse_counts_by_address(text)
        most = self._overrides[1].get(host, config["max.connections.per.ip"])
        return total < config["max.connections"] and from_host < most

    def throttle(self, host: str) -> ConnectionThrottle:
        """Count a new connection from `host`, and return its delay."""
        image = self._cache.image
        now_ms = self._clock.now_ms()
        quota = find_connection_rate(image.client_quotas, host) if image.client_quotas else None
        if quota is not None:
            rate = self._get_rate(host, now_ms)
            rate.add(1, now_ms)
            if delay_ms := rate.compute_throttle_ms(quota, now_ms):
                rate.add(-1, now_ms)  # A refused connection does not count.
                return ConnectionThrottle(min(delay_ms, self._window_ms), refused=True)
        limit = image.broker_config["max.connection.creation.rate"]
        if limit >= _NO_LIMIT:
            self._rate = None
            return ConnectionThrottle(0)
        if self._rate is None:
            self._rate = Rate(self._samples, self._window_ms, now_ms)
        self._rate.add(1, now_ms)
        return ConnectionThrottle(self._rate.compute_throttle_ms(max(limit, 1e-3), now_ms))

    def _get_rate(self, host: str, now_ms: int) -> Rate:
        rate = self._rates_by_host.get(host)
        if rate is None:
            if len(self._rates_by_host) >= RATES_MAX:
                self._rates_by_host = {
                    h: r for h, r in self._rates_by_host.items() if not r.is_idle(now_ms)
                }
            rate = self._rates_by_host[host] = Rate(self._samples, self._window_ms, now_ms)
        return rate
