"""Client quotas in force: what clients did, and how long they have to pause for it.

A request is charged when its answer is made: Produce for its own bytes, Fetch and ShareFetch for
those of the answer, every request for the time that it took the broker. Over its quota a client
gets its answer all the same, with the time that it has to wait, and for that time nothing more is
read from its connection (KIP-219): a client that does not wait gains nothing. Where no quota is set
nothing is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.metadata import client_quotas
from shoal.metadata.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Match,
)
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.server.metrics.registry import Samples, label
from shoal.server.network.api import Body, Peer, Request
from shoal.server.quota.rates import Bucket, Rate

if TYPE_CHECKING:
    from shoal.server.broker import Broker

#: Requests among brokers, which no quota is for.
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
#: APIs whose answers come encoded, beside Produce, and from which version on they begin with the
#: throttle time.
_BEGIN_WITH_THROTTLE_TIME: dict[int, int] = {
    ApiKey.METADATA: 3,
    ApiKey.SHARE_FETCH: 1,
    ApiKey.SHARE_ACKNOWLEDGE: 1,
}
QUOTA_EXCEEDED = "The throttling quota has been exceeded."
#: Rates kept at a time; above, those that are idle go.
RATES_MAX = 10_000
#: Kafka's names of what is throttled, by quota.
_NAMES = {
    PRODUCER_BYTE_RATE: "Produce",
    CONSUMER_BYTE_RATE: "Fetch",
    REQUEST_PERCENTAGE: "Request",
}
_Entity = tuple[str, str, str]


class MutationQuota:
    """One request's topic changes under a quota (KIP-599).

    A request of a version that knows the error is `strict`: what is over the quota is refused.
    Others have all they ask for and pause afterwards.
    """

    def __init__(
        self, bucket: Bucket, limit: float, burst_s: float, now_ms: int, strict: bool
    ) -> None:
        self._bucket = bucket
        self._fill_arguments = limit, burst_s, now_ms
        self._strict = strict
        self.throttle_ms = 0

    def allow(self, partitions: int) -> bool:
        """Whether so many partitions may be made or deleted; if so they are charged."""
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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.enabled = False
        self._matches: dict[_Entity, Match | None] = {}
        self._rates: dict[_Entity, Rate] = {}
        self._buckets: dict[_Entity, Bucket] = {}
        self._throttled_ms: dict[_Entity, int] = {}
        config = broker.config
        self._samples: int = config["quota.window.num"]
        self._window_ms: int = config["quota.window.size.seconds"] * 1000
        self._burst_s: float = (
            config["controller.quota.window.num"] * config["controller.quota.window.size.seconds"]
        )
        self._register(broker)

    def update(self) -> None:
        """The quotas of the cluster have changed."""
        self.enabled = bool(self._broker.image.client_quotas)
        self._matches.clear()
        if not self.enabled:
            self._rates.clear()
            self._buckets.clear()

    def charge(self, request: Request, answer_bytes: int) -> int:
        """Note what a request did; the milliseconds that its client has to pause."""
        key = request.header.api_key
        if key in _EXEMPT or _is_follower(request):
            return 0
        throttle_ms = 0
        if key == ApiKey.PRODUCE:
            throttle_ms = self._charge(PRODUCER_BYTE_RATE, request, request.size)
        elif key in _CONSUMED:
            throttle_ms = self._charge(CONSUMER_BYTE_RATE, request, answer_bytes)
        # Of the one loop that serves all, in percent; at most one window's pause for it.
        percent = request.busy_ns / 1e7
        of_time_ms = self._charge(REQUEST_PERCENTAGE, request, percent)
        return max(throttle_ms, min(of_time_ms, self._window_ms))

    def fetch_bytes_max(self, request: Request) -> int | None:
        """Bytes that one fetch may return, so that its pause is no longer than the windows are;
        None for any."""
        if not self.enabled or _is_follower(request):
            return None
        match = self._match(CONSUMER_BYTE_RATE, request.peer, request.header.client_id)
        if match is None:
            return None
        return int(match.limit * max(1, self._samples - 1) * self._window_ms / 1000)

    def mutation_quota(self, request: Request, *, strict: bool) -> MutationQuota | None:
        """The quota on topic changes that a request is under, if it is under one."""
        if not self.enabled:
            return None
        match = self._match(CONTROLLER_MUTATION_RATE, request.peer, request.header.client_id)
        if match is None:
            return None
        now_ms = self._broker.clock.now_ms()
        entity = (CONTROLLER_MUTATION_RATE, *match.sharers)
        bucket = self._buckets.get(entity)
        if bucket is None:
            bucket = self._buckets[entity] = Bucket(match.limit, self._burst_s, now_ms)
        return MutationQuota(bucket, match.limit, self._burst_s, now_ms, strict)

    def _charge(self, key: str, request: Request, value: float) -> int:
        match = self._match(key, request.peer, request.header.client_id)
        if match is None:
            return 0
        now_ms = self._broker.clock.now_ms()
        entity = (key, *match.sharers)
        rate = self._rates.get(entity)
        if rate is None:
            self._drop_idle_rates(now_ms)
            rate = self._rates[entity] = Rate(self._samples, self._window_ms, now_ms)
        rate.add(value, now_ms)
        throttle_ms = rate.throttle_ms(match.limit, now_ms)
        if throttle_ms:
            self._throttled_ms[entity] = self._throttled_ms.get(entity, 0) + throttle_ms
        return throttle_ms

    def _match(self, key: str, peer: Peer, client_id: str | None) -> Match | None:
        user = peer.principal.partition(":")[2]
        entity = (key, user, client_id or "")
        try:
            return self._matches[entity]
        except KeyError:
            if len(self._matches) >= RATES_MAX:
                self._matches.clear()
            found = client_quotas.find(self._broker.image.client_quotas, *entity)
            self._matches[entity] = found
            return found

    def _drop_idle_rates(self, now_ms: int) -> None:
        if len(self._rates) >= RATES_MAX:
            self._rates = {entity: r for entity, r in self._rates.items() if not r.idle(now_ms)}
            self._throttled_ms = {w: ms for w, ms in self._throttled_ms.items() if w in self._rates}

    # Metrics.

    def _register(self, broker: Broker) -> None:
        for key, name in _NAMES.items():
            unit = "request_time" if key == REQUEST_PERCENTAGE else "byte_rate"
            broker.metrics.add(
                f"kafka_server_{name}_{unit}",
                "gauge",
                f"{key} of clients that have such a quota.",
                lambda key=key: list(self._samples_of(key)),  # type: ignore[misc]
            )
            broker.metrics.add(
                f"kafka_server_{name}_throttle_time_total",
                "counter",
                f"Milliseconds of pauses for {key}.",
                lambda key=key: [  # type: ignore[misc]
                    (_labels(entity), ms)
                    for entity, ms in self._throttled_ms.items()
                    if entity[0] == key
                ],
            )

    def _samples_of(self, key: str) -> Samples:
        now_ms = self._broker.clock.now_ms()
        for entity, rate in self._rates.items():
            if entity[0] == key:
                yield _labels(entity), rate.measure(now_ms)[0]


def _labels(entity: _Entity) -> tuple[tuple[str, str], ...]:
    return label(user=entity[1], client_id=entity[2])


def _is_follower(request: Request) -> bool:
    """Whether another broker fetches."""
    if request.header.api_key != ApiKey.FETCH:
        return False
    body = request.body
    state = getattr(body, "replica_state", None)
    replica: int = state.replica_id if state is not None else getattr(body, "replica_id", -1)
    return replica >= 0


def throttle(request: Request, quota: MutationQuota | None) -> int:
    """Pause a client for its topic changes; the milliseconds."""
    if quota is None or not quota.throttle_ms:
        return 0
    request.peer.pause(quota.throttle_ms)
    return quota.throttle_ms


def with_throttle_time(request: Request, body: Body, throttle_ms: int) -> Body:
    """A response with its throttle time, where its layout has one."""
    if isinstance(body, Mapping):
        return {**body, "throttle_time_ms": max(throttle_ms, body.get("throttle_time_ms", 0))}
    key, version = request.header.api_key, request.version
    parts, throttle_time = list(body), throttle_ms.to_bytes(4, "big")
    if key == ApiKey.PRODUCE:
        last = bytes(parts[-1])
        end = len(last) - codec.flexible(key, version)  # its empty tags
        parts[-1] = last[: end - 4] + throttle_time + last[end:]
    elif version >= _BEGIN_WITH_THROTTLE_TIME.get(key, version + 1):
        parts[0] = throttle_time + bytes(parts[0][4:])
    return parts
