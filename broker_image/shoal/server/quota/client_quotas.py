"""Client quotas: measures what clients do, and throttles those that exceed a quota.

A request is charged when its response is made: Produce for the bytes of the request, Fetch and
ShareFetch for the bytes of the response, and every request for the time that the broker spent on
it. A client over its quota gets its response with a throttle time. For that time, the broker reads
nothing from the connection (KIP-219), so a client that ignores the throttle time gains nothing.
Without quotas, nothing is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shoal.metadata import client_quotas
from shoal.metadata.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaMatch,
)
from shoal.protocol.api import ApiKey
from shoal.server.metrics.registry import MetricRegistry, Samples, label
from shoal.server.quota.rates import Rate, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.protocol.frames import RequestHeader
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: Requests between brokers, which no quota applies to.
_EXEMPT = frozenset(
    {
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
_CONSUMED = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
QUOTA_EXCEEDED = "The throttling quota has been exceeded."
#: The number of rates kept. Above it, idle rates are dropped.
RATES_MAX = 10_000
#: The names of the quotas in Kafka's metrics.
_NAMES = {
    PRODUCER_BYTE_RATE: "Produce",
    CONSUMER_BYTE_RATE: "Fetch",
    REQUEST_PERCENTAGE: "Request",
}
_Entity = tuple[str, str, str]


class QuotaClient(Protocol):
    """The sender of a request."""

    principal: str

    @property
    def pause(self) -> Callable[[int], None]:
        """Stops reading from the connection for some milliseconds."""


class ClientRequest(Protocol):
    """A request that counts against its sender's quotas."""

    #: The size of its frame in bytes, and the nanoseconds spent on it.
    size: int
    busy_ns: int
    body: Any

    @property
    def header(self) -> RequestHeader: ...
    @property
    def peer(self) -> QuotaClient: ...


class MutationQuota:
    """The quota on the topic changes of one request (KIP-599).

    If the version of the request has THROTTLING_QUOTA_EXCEEDED, the quota is `strict`: changes over
    the quota are refused. Otherwise all changes are made, and the client is throttled afterwards.
    """

    def __init__(
        self, bucket: TokenBucket, limit: float, burst_s: float, now_ms: int, strict: bool
    ) -> None:
        self._bucket = bucket
        self._fill_arguments = limit, burst_s, now_ms
        self._strict = strict
        self.throttle_ms = 0

    def allow(self, partitions: int) -> bool:
        """Whether `partitions` may be created or deleted. If so, they are charged."""
        wait_ms = self._bucket.fill(*self._fill_arguments)
        if wait_ms and self._strict:
            self.throttle_ms = max(self.throttle_ms, wait_ms)
            return False
        self._bucket.take(partitions)
        if not self._strict:
            self.throttle_ms = self._bucket.fill(*self._fill_arguments)
        return True


class ClientQuotas:
    """Owns the rates of clients that have quotas."""

    def __init__(self, node: Node, cache: MetadataCache, metrics: MetricRegistry) -> None:
        self._clock = node.clock
        self._cache = cache
        self.enabled = False
        self._matches: dict[_Entity, QuotaMatch | None] = {}
        self._rates: dict[_Entity, Rate] = {}
        self._buckets: dict[_Entity, TokenBucket] = {}
        self._throttled_ms: dict[_Entity, int] = {}
        config = node.config
        self._samples: int = config["quota.window.num"]
        self._window_ms: int = config["quota.window.size.seconds"] * 1000
        self._burst_s: float = (
            config["controller.quota.window.num"] * config["controller.quota.window.size.seconds"]
        )
        self._register(metrics)

    def start(self) -> None:
        """Enforce the quotas of the image, and follow their changes."""
        self._update()
        self._cache.subscribe(self._on_image_changed)

    def _on_image_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.client_quotas:
            self._update()

    def _update(self) -> None:
        self.enabled = bool(self._cache.image.client_quotas)
        self._matches.clear()
        if not self.enabled:
            self._rates.clear()
            self._buckets.clear()

    def charge(self, request: ClientRequest, answer_bytes: int) -> int:
        """Charge a request. Return its throttle time in milliseconds."""
        key = request.header.api_key
        if key in _EXEMPT or _is_follower(request):
            return 0
        throttle_ms = 0
        if key == ApiKey.PRODUCE:
            throttle_ms = self._charge(PRODUCER_BYTE_RATE, request, request.size)
        elif key in _CONSUMED:
            throttle_ms = self._charge(CONSUMER_BYTE_RATE, request, answer_bytes)
        # In percent of the event loop's time, which all clients share. The throttle time for this
        # quota is at most one window.
        percent = request.busy_ns / 1e7
        of_time_ms = self._charge(REQUEST_PERCENTAGE, request, percent)
        return max(throttle_ms, min(of_time_ms, self._window_ms))

    def compute_fetch_bytes_max(self, request: ClientRequest) -> int | None:
        """Return how many bytes one fetch may return, so that its throttle time does not exceed the
        windows; None without a quota."""
        if not self.enabled or _is_follower(request):
            return None
        match = self._match(CONSUMER_BYTE_RATE, request.peer, request.header.client_id)
        if match is None:
            return None
        return int(match.limit * max(1, self._samples - 1) * self._window_ms / 1000)

    def make_mutation_quota(self, request: ClientRequest, *, strict: bool) -> MutationQuota | None:
        """Return the quota on the topic changes of a request, or None without one."""
        if not self.enabled:
            return None
        match = self._match(CONTROLLER_MUTATION_RATE, request.peer, request.header.client_id)
        if match is None:
            return None
        now_ms = self._clock.now_ms()
        entity = (CONTROLLER_MUTATION_RATE, *match.sharers)
        bucket = self._buckets.get(entity)
        if bucket is None:
            bucket = self._buckets[entity] = TokenBucket(match.limit, self._burst_s, now_ms)
        return MutationQuota(bucket, match.limit, self._burst_s, now_ms, strict)

    def _charge(self, key: str, request: ClientRequest, value: float) -> int:
        match = self._match(key, request.peer, request.header.client_id)
        if match is None:
            return 0
        now_ms = self._clock.now_ms()
        entity = (key, *match.sharers)
        rate = self._rates.get(entity)
        if rate is None:
            self._drop_idle_rates(now_ms)
            rate = self._rates[entity] = Rate(self._samples, self._window_ms, now_ms)
        rate.add(value, now_ms)
        throttle_ms = rate.compute_throttle_ms(match.limit, now_ms)
        if throttle_ms:
            self._throttled_ms[entity] = self._throttled_ms.get(entity, 0) + throttle_ms
        return throttle_ms

    def _match(self, key: str, peer: QuotaClient, client_id: str | None) -> QuotaMatch | None:
        user = peer.principal.partition(":")[2]
        entity = (key, user, client_id or "")
        try:
            return self._matches[entity]
        except KeyError:
            if len(self._matches) >= RATES_MAX:
                self._matches.clear()
            match = client_quotas.find_quota(self._cache.image.client_quotas, *entity)
            self._matches[entity] = match
            return match

    def _drop_idle_rates(self, now_ms: int) -> None:
        if len(self._rates) >= RATES_MAX:
            self._rates = {entity: r for entity, r in self._rates.items() if not r.is_idle(now_ms)}
            self._throttled_ms = {w: ms for w, ms in self._throttled_ms.items() if w in self._rates}

    # Metrics.

    def _register(self, metrics: MetricRegistry) -> None:
        for key, name in _NAMES.items():
            unit = "request_time" if key == REQUEST_PERCENTAGE else "byte_rate"
            metrics.add(
                f"kafka_server_{name}_{unit}",
                "gauge",
                f"{key} of clients that have this quota.",
                lambda key=key: list(self._iterate_samples(key)),  # type: ignore[misc]
            )
            metrics.add(
                f"kafka_server_{name}_throttle_time_total",
                "counter",
                f"Milliseconds of throttle time for {key}.",
                lambda key=key: [  # type: ignore[misc]
                    (_make_labels(entity), ms)
                    for entity, ms in self._throttled_ms.items()
                    if entity[0] == key
                ],
            )

    def _iterate_samples(self, key: str) -> Samples:
        now_ms = self._clock.now_ms()
        for entity, rate in self._rates.items():
            if entity[0] == key:
                yield _make_labels(entity), rate.measure(now_ms)[0]


def _make_labels(entity: _Entity) -> tuple[tuple[str, str], ...]:
    return label(user=entity[1], client_id=entity[2])


def _is_follower(request: ClientRequest) -> bool:
    """Whether the request is the fetch of a follower."""
    if request.header.api_key != ApiKey.FETCH:
        return False
    body = request.body
    state = getattr(body, "replica_state", None)
    replica: int = state.replica_id if state is not None else getattr(body, "replica_id", -1)
    return replica >= 0


def throttle(request: ClientRequest, quota: MutationQuota | None) -> int:
    """Throttle a client for its topic changes. Return the throttle time in milliseconds."""
    if quota is None or not quota.throttle_ms:
        return 0
    request.peer.pause(quota.throttle_ms)
    return quota.throttle_ms
