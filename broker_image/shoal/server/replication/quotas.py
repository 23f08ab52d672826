"""Quotas for replication: the bytes sent to and fetched for throttled replicas (KIP-73).

A topic lists its throttled replicas, as partition:broker or `*`, separately for leaders and
followers. A broker has one rate for each side. In-sync replicas are counted but never delayed: a
quota slows replicas that catch up, as in a reassignment, and never shrinks an ISR.

Each side is a token bucket that fills at the rate, up to one sample of
`replication.quota.window.size.seconds`. It may owe the bytes of at most
`replication.quota.window.num` samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.image import ConfigResourceType, MetadataImage
from shoal.server.quota.rates import TokenBucket

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.node import Node

LEADER, FOLLOWER = "leader", "follower"
_REPLICAS = {
    LEADER: "leader.replication.throttled.replicas",
    FOLLOWER: "follower.replication.throttled.replicas",
}
_RATES = {
    LEADER: "leader.replication.throttled.rate",
    FOLLOWER: "follower.replication.throttled.rate",
}
#: Longest wait, because the rate may change meanwhile.
WAIT_MAX_MS = 1_000
_ALL = "*"


class ReplicationQuota:
    """The quota of one side: `LEADER` for sent bytes, `FOLLOWER` for fetched bytes."""

    def __init__(
        self, node: Node, cache: MetadataCache, metrics: MetricRegistry, side: str
    ) -> None:
        self._node = node
        self._cache = cache
        self._side = side
        #: By topic: the partitions whose replica here is throttled, None for all.
        self._throttled: dict[str, frozenset[int] | None] = {}
        self._bucket: TokenBucket | None = None
        self.bytes_total = 0
        metrics.add(
            f"kafka_server_{side.capitalize()}Replication_throttled_byte_total",
            "counter",
            f"Bytes of throttled replicas that this broker has counted as their {side}.",
            lambda: [((), self.bytes_total)],
        )

    def start(self) -> None:
        """Follow the metadata, which has been read."""
        self.apply_configs(self._cache.image)
        self._cache.subscribe(self._on_metadata_changed)

    def _on_metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.configs or delta.broker_config_changed:
            self.apply_configs(image)

    def apply_configs(self, image: MetadataImage) -> None:
        """Apply changed configs of topics or brokers."""
        name, own_id = _REPLICAS[self._side], str(self._node.id)
        self._throttled = {}
        for (kind, topic), own in image.configs.items():
            if kind != ConfigResourceType.TOPIC or name not in own:
                continue
            listed = image.resolve_topic_config(topic)[name]
            if listed == (_ALL,):
                self._throttled[topic] = None
                continue
            pairs = [pair.split(":") for pair in listed]
            indexes = frozenset(int(index) for index, broker in pairs if broker == own_id)
            if indexes:
                self._throttled[topic] = indexes
        if not self._throttled:
            self._bucket = None

    @property
    def active(self) -> bool:
        """Whether any replica of this broker is throttled."""
        return bool(self._throttled)

    def is_throttled(self, partition: Partition) -> bool:
        """Whether this broker's replica of the partition is throttled."""
        if partition.topic not in self._throttled:
            return False
        indexes = self._throttled[partition.topic]
        return indexes is None or partition.index in indexes

    def get_wait_ms(self, now_ms: int) -> int:
        """Return how long throttled replicas out of sync must wait now, in milliseconds."""
        if not self._throttled:
            return 0
        rate, window_s, samples = self._get_limits()
        if rate <= 0:
            return WAIT_MAX_MS
        if self._bucket is None:
            self._bucket = TokenBucket(rate, window_s, now_ms)
        wait_ms = self._bucket.fill(rate, window_s, now_ms, debt_s=window_s * samples)
        return min(wait_ms, WAIT_MAX_MS)

    def get_available_bytes(self, now_ms: int) -> int:
        """Return the bytes that a throttled replica may transfer now."""
        return 0 if self.get_wait_ms(now_ms) or self._bucket is None else int(self._bucket.tokens)

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were sent to, or fetched for, a throttled replica."""
        self.bytes_total += size_bytes
        self.get_wait_ms(now_ms)
        if self._bucket is not None:
            self._bucket.take(size_bytes)

    def _get_limits(self) -> tuple[int, int, int]:
        config = self._cache.image.broker_config
        return (
            config[_RATES[self._side]],
            config["replication.quota.window.size.seconds"],
            config["replication.quota.window.num"],
        )
