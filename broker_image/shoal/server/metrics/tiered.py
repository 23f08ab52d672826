"""Metrics of tiered storage, under Kafka's names where it has them (KIP-405, KIP-963).

Families exist also without tiered storage, and have no samples then. Gauges cover the partitions
that this broker leads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.server.metrics.registry import MetricRegistry, Samples, label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TOPICS = "kafka_server_BrokerTopicMetrics_Remote"


class RemoteTopicMeter:
    """Counts of one topic since the start."""

    __slots__ = (
        "copied_bytes",
        "copies",
        "copy_errors",
        "delete_errors",
        "deletes",
        "fetch_errors",
        "fetched_bytes",
        "fetches",
        "rebuild_errors",
        "rebuilds",
    )

    def __init__(self) -> None:
        self.copied_bytes = self.copies = self.copy_errors = 0
        self.deletes = self.delete_errors = 0
        self.fetched_bytes = self.fetches = self.fetch_errors = 0
        self.rebuilds = self.rebuild_errors = 0


class RemoteMeters:
    """Owns the meters of all tiered topics of a broker."""

    def __init__(self) -> None:
        self.topics: dict[str, RemoteTopicMeter] = {}

    def get_meter(self, topic: str) -> RemoteTopicMeter:
        meter = self.topics.get(topic)
        if meter is None:
            meter = self.topics[topic] = RemoteTopicMeter()
        return meter

    def forget(self, topic: str) -> None:
        self.topics.pop(topic, None)


class RemoteState(NamedTuple):
    """What one partition led here has in the store, and what is still to be copied and deleted."""

    topic: str
    segments: int
    size_bytes: int
    copy_lag_segments: int
    copy_lag_bytes: int
    delete_lag_segments: int
    delete_lag_bytes: int


class StoreCounts(Protocol):
    """Requests to the store, by operation."""

    attempts_total: dict[str, int]
    failures_total: dict[str, int]
    bytes_total: dict[str, int]


class CacheCounts(Protocol):
    """The cache of chunks."""

    hits_total: int
    misses_total: int
    size_bytes: int


class TieredPort(Protocol):
    """The tiered storage of one broker."""

    meters: RemoteMeters

    @property
    def store_counts(self) -> StoreCounts: ...
    @property
    def cache_counts(self) -> CacheCounts: ...
    def get_states(self) -> Sequence[RemoteState]:
        """Return the state of each tiered partition led here."""

    def get_totals(self) -> Mapping[str, int]:
        """Return the numbers of `_TOTALS` and `_NUMBERS` by name."""


_METERS = (
    ("CopyBytesPerSec", "copied_bytes", "Bytes copied to the object store."),
    ("CopyRequestsPerSec", "copies", "Segments whose copy was begun."),
    ("CopyErrorsPerSec", "copy_errors", "Copies of segments that failed."),
    ("FetchBytesPerSec", "fetched_bytes", "Bytes of records read from the object store."),
    ("FetchRequestsPerSec", "fetches", "Chunks of segments whose download was begun."),
    ("FetchErrorsPerSec", "fetch_errors", "Downloads of chunks that failed."),
    ("DeleteRequestsPerSec", "deletes", "Remote segments whose deletion was begun."),
    ("DeleteErrorsPerSec", "delete_errors", "Deletions of remote segments that failed."),
)
_REBUILDS = (
    (
        "BuildRemoteLogAuxStateRequestsPerSec",
        "rebuilds",
        "Replicas that began to take leader epochs and producer states from the object store.",
    ),
    (
        "BuildRemoteLogAuxStateErrorsPerSec",
        "rebuild_errors",
        "Attempts of replicas to take their state from the object store that failed.",
    ),
)
_STATES = (
    ("LogMetadataCount", "segments", "Remote segments of the partitions led by this broker."),
    ("LogSizeBytes", "size_bytes", "Size of these segments."),
    ("CopyLagSegments", "copy_lag_segments", "Closed segments that are not copied yet."),
    ("CopyLagBytes", "copy_lag_bytes", "Size of the closed segments that are not copied yet."),
    ("DeleteLagSegments", "delete_lag_segments", "Remote segments that are to be deleted."),
    ("DeleteLagBytes", "delete_lag_bytes", "Size of the remote segments that are to be deleted."),
)
_TOTALS = (
    ("manifest_writes", "Manifests of partitions written to the object store."),
    ("segments_rebuilt", "Remote segments whose lost metadata was written again."),
    ("orphans_deleted", "Objects deleted that no metadata named."),
    ("backups", "Backups of metadata and of internal topics written to the object store."),
    ("backup_failures", "Backups that were not written. The next interval tries again."),
    ("cleanings", "Cleanings of the remote segments of compacted partitions."),
    ("copies_throttled", "Times that a copy waited for its quota."),
    ("fetches_throttled", "Times that a download waited for its quota."),
)
_NUMBERS = (
    ("orphans", "Objects that no metadata names, at the last check of each partition led here."),
    ("orphan_bytes", "Size of these objects."),
    ("missing_objects", "Remote segments without a whole object, at the last check."),
    ("failing_partitions", "Tiered partitions led here whose last copy or deletion failed."),
)
_REQUESTS = (
    ("requests", "attempts_total", "Requests to the object store, repeated ones included."),
    (
        "failures",
        "failures_total",
        "Requests to the object store that failed. A missing object is an answer.",
    ),
    ("bytes", "bytes_total", "Bytes sent to the object store, and received from it."),
)
_CACHE = (
    ("hits_total", "counter", "hits_total", "Reads of chunks that were in the cache."),
    ("misses_total", "counter", "misses_total", "Reads of chunks that were not in the cache."),
    ("bytes", "gauge", "size_bytes", "Size of the cached chunks."),
)


def register(metrics: MetricRegistry, tiered: Callable[[], TieredPort | None]) -> None:
    """Add the families. They have no samples without tiered storage."""

    # Both look at every tiered partition.
    states = metrics.cache_per_exposition(
        lambda: () if (source := tiered()) is None else source.get_states()
    )
    totals = metrics.cache_per_exposition(
        lambda: {} if (source := tiered()) is None else source.get_totals()
    )

    def add(name: str, kind: str, description: str, read: Callable[[TieredPort], Samples]) -> None:
        def collect() -> Samples:
            source = tiered()
            return [] if source is None else read(source)

        metrics.add(name, kind, description, collect)

    for name, attribute, text in _METERS:
        add(f"{_TOPICS}{name}_total", "counter", text, partial(_collect_meters, attribute))
    for name, attribute, text in _REBUILDS:
        read = partial(_collect_meters, attribute)
        add(f"kafka_server_BrokerTopicMetrics_{name}_total", "counter", text, read)
    for name, attribute, text in _STATES:
        metrics.add(f"{_TOPICS}{name}", "gauge", text, partial(_collect_states, attribute, states))
    for name, text in _TOTALS:
        metrics.add(
            f"shoal_remote_{name}_total", "counter", text, partial(_collect_totals, name, totals)
        )
    for name, text in _NUMBERS:
        metrics.add(f"shoal_remote_{name}", "gauge", text, partial(_collect_totals, name, totals))
    for name, attribute, text in _REQUESTS:
        add(
            f"shoal_remote_store_{name}_total",
            "counter",
            text,
            partial(_collect_requests, attribute),
        )
    for name, kind, attribute, text in _CACHE:
        add(f"shoal_remote_chunk_cache_{name}", kind, text, partial(_collect_cache, attribute))


def _collect_meters(attribute: str, source: TieredPort) -> Samples:
    topics = source.meters.topics.items()
    return [(label(topic=topic), getattr(meter, attribute)) for topic, meter in topics]


def _collect_states(attribute: str, states: Callable[[], Sequence[RemoteState]]) -> Samples:
    sums: dict[str, int] = {}
    for state in states():
        sums[state.topic] = sums.get(state.topic, 0) + getattr(state, attribute)
    return [(label(topic=topic), value) for topic, value in sums.items()]


def _collect_totals(name: str, totals: Callable[[], Mapping[str, int]]) -> Samples:
    values = totals()
    return [((), values[name])] if values else []


def _collect_requests(attribute: str, source: TieredPort) -> Samples:
    counts = getattr(source.store_counts, attribute)
    return [(label(operation=operation), n) for operation, n in counts.items()]


def _collect_cache(attribute: str, source: TieredPort) -> Samples:
    return [((), getattr(source.cache_counts, attribute))]
