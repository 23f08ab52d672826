"""Metrics of share groups that Kafka has too, under Kafka's names (`ShareGroupMetricsRegistry`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shoal.coordinator.share.states import AcknowledgeType
from shoal.server.metrics import queue as queue_metrics
from shoal.server.metrics.registry import MetricRegistry, Samples, label
from shoal.server.metrics.share_ports import LeaderPort, ShareServicePort, make_leader_collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.server.metrics.share_meters import GroupedMean

_GROUP = "kafka_server_ShareGroupMetrics_"
_PARTITION = "kafka_server_SharePartitionMetrics_"
_SESSIONS = "kafka_server_ShareSessionCache_"
_TOPICS = "kafka_server_BrokerTopicMetrics_"


def register(metrics: MetricRegistry, service: ShareServicePort) -> None:
    """Add the families."""
    topics = (
        ("TotalShareFetchRequestsPerSec", "fetches", "Partitions in share fetches."),
        (
            "FailedShareFetchRequestsPerSec",
            "failed_fetches",
            "Partitions in share fetches that failed.",
        ),
        (
            "TotalShareAcknowledgementRequestsPerSec",
            "acknowledgements",
            "Partitions in share acknowledgements.",
        ),
        (
            "FailedShareAcknowledgementRequestsPerSec",
            "failed_acknowledgements",
            "Partitions in share acknowledgements that failed.",
        ),
    )
    for name, attribute, description in topics:
        metrics.add(
            f"{_TOPICS}{name}_total",
            "counter",
            description,
            partial(_collect_topics, service, attribute),
        )
    metrics.add(
        f"{_GROUP}RecordAcknowledgementsPerSec_total",
        "counter",
        "Records acknowledged, by type.",
        lambda: [
            (label(ackType=kind.name.capitalize()), service.acknowledged[kind])
            for kind in AcknowledgeType
        ],
    )
    means = (
        ("PartitionLoadTimeMs", service.load_times, "Time to load a share partition."),
        (
            "TopicPartitionsAcquireTimeMs",
            service.acquire_times,
            "Time in which a fetch acquires records.",
        ),
        (
            "RequestTopicPartitionsFetchRatio",
            service.fetch_ratios,
            "Percentage of the requested partitions that were acquired.",
        ),
    )
    for name, mean, description in means:
        metrics.add(f"{_GROUP}{name}_count", "counter", description, partial(mean.collect, 0))
        metrics.add(f"{_GROUP}{name}_sum", "counter", description, partial(mean.collect, 1))
    _register_partitions(metrics, service)
    _register_delayed(metrics, service)
    queue_metrics.register(metrics, service)
    metrics.add_gauge(
        f"{_SESSIONS}ShareSessionsCount", "Share sessions.", lambda: len(service.sessions)
    )
    metrics.add_gauge(
        f"{_SESSIONS}SharePartitionsCount",
        "Partitions in share sessions.",
        lambda: service.sessions.partition_count,
    )
    metrics.add(
        f"{_SESSIONS}ShareSessionEvictionsPerSec_total",
        "counter",
        "Share sessions that ended with their connection.",
        lambda: (((), service.sessions.evictions_total),),
    )


def _register_delayed(metrics: MetricRegistry, service: ShareServicePort) -> None:
    metrics.add(
        "kafka_server_DelayedShareFetchMetrics_ExpiresPerSec_total",
        "counter",
        "Share fetches that expired.",
        lambda: (((), service.expired_fetches),),
    )
    mean = service.write_times
    for column, suffix in enumerate(("count", "sum")):
        metrics.add(
            f"kafka_server_share_coordinator_metrics_write_latency_ms_{suffix}",
            "counter",
            "Time until a write to __share_group_state was committed.",
            partial(_collect_all, mean, column),
        )


def _register_partitions(metrics: MetricRegistry, service: ShareServicePort) -> None:
    families: tuple[tuple[str, str, str, Callable[[LeaderPort], float]], ...] = (
        (
            "InFlightMessageCount",
            "gauge",
            "Records in flight.",
            lambda x: x.share.in_flight,
        ),
        (
            "InFlightBatchCount",
            "gauge",
            "Ranges of records in flight with the same state.",
            lambda x: len(x.share.runs),
        ),
        (
            "InFlightBatchMessageCount_count",
            "counter",
            "Ranges of records acquired.",
            lambda x: x.fetches.batches,
        ),
        (
            "InFlightBatchMessageCount_sum",
            "counter",
            "Records in those ranges.",
            lambda x: x.acquired_total,
        ),
        (
            "AcquisitionLockTimeoutPerSec_total",
            "counter",
            "Records whose acquisition lock timed out.",
            lambda x: x.expired_total,
        ),
        (
            "FetchLockTimeMs_count",
            "counter",
            "Fetches that used the share partition exclusively.",
            lambda x: x.fetches.count,
        ),
        (
            "FetchLockTimeMs_sum",
            "counter",
            "Time in which a fetch used the share partition exclusively.",
            lambda x: x.fetches.time_ns / 1e6,
        ),
        (
            "FetchLockRatio_count",
            "counter",
            "Fetches that used the share partition exclusively.",
            lambda x: x.fetches.count,
        ),
        (
            "FetchLockRatio_sum",
            "counter",
            "Percentage of the time since the previous fetch, summed over all fetches.",
            lambda x: x.fetches.ratio_sum,
        ),
    )
    for name, kind, description, value in families:
        metrics.add(f"{_PARTITION}{name}", kind, description, make_leader_collector(service, value))


def _collect_all(mean: GroupedMean, column: int) -> Samples:
    return [((), sums[column]) for sums in mean.sums.values()]


def _collect_topics(service: ShareServicePort, attribute: str) -> Samples:
    meters = service.topics.items()
    return [(label(topic=topic), getattr(meter, attribute)) for topic, meter in meters]
