"""Limits on the bytes per second that this broker copies to the object store, or reads from there.

The rates are measured as Kafka's (KIP-956): a transfer counts when it begins, and while the rate is
above the limit, the next one waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.server.quota.rates import Rate

if TYPE_CHECKING:
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

COPY, FETCH = "copy", "fetch"
#: The default of both limits: none.
_UNLIMITED = (1 << 63) - 1


class TransferQuota:
    """The rate of one direction, `COPY` or `FETCH`, and its limit, which may change."""

    def __init__(self, node: Node, cache: MetadataCache, side: str) -> None:
        self._clock = node.clock
        self._cache = cache
        prefix = f"remote.log.manager.{side}"
        self._limit = f"{prefix}.max.bytes.per.second"
        samples = node.config[f"{prefix}.quota.window.num"]
        window_ms = 1000 * node.config[f"{prefix}.quota.window.size.seconds"]
        self._rate = Rate(samples, window_ms, node.clock.now_ms())
        self.throttled_total = 0

    def compute_throttle_ms(self) -> int:
        """Return the milliseconds until the next transfer may begin, 0 if it may now."""
        limit = self._cache.image.broker_config[self._limit]
        if limit == _UNLIMITED:
            return 0
        wait_ms = self._rate.compute_throttle_ms(limit, self._clock.now_ms())
        self.throttled_total += wait_ms > 0
        return wait_ms

    def record(self, size: int) -> None:
        """Count a transfer of `size` bytes that begins now."""
        self._rate.add(size, self._clock.now_ms())
