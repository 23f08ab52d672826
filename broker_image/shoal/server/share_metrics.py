"""Metrics of share groups, under Kafka's names (`ShareGroupMetricsRegistry`), and the lag of each
share partition, which Kafka has only as an admin request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from shoal.coordinator.share.states import AcknowledgeType
from shoal.server.metrics import Labels, Samples, label

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.share import ShareService
    from shoal.server.share_leader import ShareLeader

_GROUP = "kafka_server_ShareGroupMetrics_"
_PARTITION = "kafka_server_SharePartitionMetrics_"
_SESSIONS = "kafka_server_ShareSessionCache_"
_TOPICS = "kafka_server_BrokerTopicMetrics_"


class ShareTopicMeter:
    """Share requests for one topic since the start, counted by partition."""

    __slots__ = ("acknowledgements", "failed_acknowledgements", "failed_fetches", "fetches")

    def __init__(self) -> None:
        self.fetches = self.failed_fetches = 0
        self.acknowledgements = self.failed_acknowledgements = 0


class Mean:
    """Number and sum of observations by group."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[int, int]] = {}

    def note(self, group_id: str, value: int) -> None:
        """Count one observation."""
        count, total = self.sums.get(group_id, (0, 0))
        self.sums[group_id] = (count + 1, total + value)

    def samples(self, at: int) -> Samples:
        """By group: the count (0) or the sum (1)."""
        return [(label(group=group), sums[at]) for group, sums in self.sums.items()]


def register(broker: Broker, service: ShareService) -> None:
    """Add the families."""
    metrics = broker.metrics
    topics = (
        ("TotalShareFetchRequestsPerSec", "fetches", "Partitions in share fetches."),
        ("FailedShareFetchRequestsPerSec", "failed_fetches", "Those refused."),
        (
            "TotalShareAcknowledgementRequestsPerSec",
            "acknowledgements",
            "Partitions in share acknowledgements.",
        ),
        ("FailedShareAcknowledgementRequestsPerSec", "failed_acknowledgements", "Those refused."),
    )
    for name, attribute, help in topics:
        metrics.add(
            f"{_TOPICS}{name}_total", "counter", help, partial(_of_topics, service, attribute)
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
        ("TopicPartitionsAcquireTimeMs", service.acquire_times, "Time of a fetch to acquire."),
        ("RequestTopicPartitionsFetchRatio", service.fetch_ratios, "Partitions got in a hundred."),
    )
    for name, mean, help in means:
        metrics.add(f"{_GROUP}{name}_count", "counter", help, partial(mean.samples, 0))
        metrics.add(f"{_GROUP}{name}_sum", "counter", help, partial(mean.samples, 1))
    _register_partitions(broker, service)
    metrics.gauge(f"{_SESSIONS}ShareSessionsCount", "Share sessions.",
                  lambda: len(service.sessions))  # fmt: skip
    metrics.gauge(f"{_SESSIONS}SharePartitionsCount", "Partitions in share sessions.",
                  lambda: service.sessions.partition_count)  # fmt: skip
    metrics.add(f"{_SESSIONS}ShareSessionEvictionsPerSec_total", "counter",
                "Share sessions ended with their connection.",
                lambda: (((), service.sessions.evictions_total),))  # fmt: skip


def _register_partitions(broker: Broker, service: ShareService) -> None:
    def of(value: Callable[[ShareLeader], float]) -> Callable[[], Samples]:
        return lambda: [(labels, value(leader)) for labels, leader in _leaders(service)]

    add = broker.metrics.add
    add(f"{_PARTITION}InFlightMessageCount", "gauge", "Records in a share partition's window.",
        of(lambda x: x.share.in_flight))  # fmt: skip
    add(f"{_PARTITION}InFlightBatchCount", "gauge", "Runs of offsets in the window that are alike.",
        of(lambda x: len(x.share.runs)))  # fmt: skip
    add(f"{_PARTITION}AcquisitionLockTimeoutPerSec_total", "counter", "Records whose lock ended.",
        of(lambda x: x.expired_total))  # fmt: skip
    add("shoal_share_partition_acquired_records_total", "counter", "Records acquired.",
        of(lambda x: x.acquired_total))  # fmt: skip
    add("shoal_share_partition_redelivered_records_total", "counter",
        "Records acquired that had been delivered before.",
        of(lambda x: x.redelivered_total))  # fmt: skip
    add("shoal_share_partition_locks", "gauge", "Acquisition locks that run.",
        of(lambda x: len(x.share.locks.live)))  # fmt: skip
    add("shoal_share_partition_locked_records", "gauge", "Records that those locks hold.",
        of(lambda x: sum(lock.held for lock in x.share.locks.live.values())))  # fmt: skip
    add("shoal_share_partition_backing_off_records", "gauge",
        "Records in retry back-off.", of(lambda x: x.share.backing_off))  # fmt: skip
    add("shoal_share_partition_oldest_lock_age_ms", "gauge",
        "Milliseconds that the oldest acquisition lock has run.",
        of(_oldest_lock_age_ms))  # fmt: skip
    add("shoal_share_partition_held_by_key_records", "gauge",
        "Records that wait for one before them with the same key (share.ordering=key).",
        of(lambda x: x.selection.held_by_key if x.selection else 0))  # fmt: skip
    add("shoal_share_partition_delayed_records", "gauge",
        "Records that are held back by a header (share.delay.max.ms).",
        of(lambda x: x.selection.delayed if x.selection else 0))  # fmt: skip
    add("shoal_share_partition_header_failures_total", "counter",
        "Records delivered other than their headers say, by reason.",
        lambda: [
            ((*labels, *label(reason=reason)), count)
            for labels, x in _leaders(service)
            if x.selection is not None and (headers := x.selection.headers) is not None
            for reason, count in (
                ("not-a-number", headers.invalid), ("delay-over-maximum", headers.clamped)
            )
        ])  # fmt: skip
    add("shoal_share_partition_look_ahead_full", "gauge",
        "1 while no further records are looked at, by the config that bounds it.",
        lambda: [
            ((*labels, *label(config=config)), 1)
            for labels, x in _leaders(service)
            if x.selection is not None and (config := x.selection.full()) is not None
        ])  # fmt: skip
    add("shoal_share_partition_paused", "gauge",
        "1 while the group's delivery is paused (share.delivery.paused).",
        of(lambda x: int(x.settings.paused)))  # fmt: skip
    add("shoal_share_partition_archiving_records", "gauge",
        "Records that wait for their dead letter.",
        of(lambda x: sum(last - first + 1 for first, last, _ in x.share.archiving())),
        )  # fmt: skip
    meter = service.dead_letters
    add("shoal_share_group_dead_letters_total", "counter", "Dead letters written.",
        lambda: [(label(group=group), n) for group, n in meter.written.items()])  # fmt: skip
    add("shoal_share_group_dead_letters_dropped_total", "counter",
        "Records that left their group without a dead letter.",
        lambda: [(label(group=group), n) for group, n in meter.dropped.items()])  # fmt: skip
    add("shoal_share_group_dead_letter_failures_total", "counter",
        "Attempts to write dead letters that failed, by reason.",
        lambda: [(label(group=g, reason=why), n) for (g, why), n in meter.failed.items()],
        )  # fmt: skip
    add("shoal_share_partition_lag", "gauge",
        "Records whose delivery is not complete (KIP-1226).",
        of(lambda x: x.partition.high_watermark - x.share.start_offset - x.share.complete),
        )  # fmt: skip


def _oldest_lock_age_ms(leader: ShareLeader) -> int:
    """Locks stand in the order in which they were opened or renewed."""
    for lock in leader.share.locks.live.values():
        opened_ms = lock.deadline_ms - leader.settings.lock_duration_ms
        return max(0, leader.service.now_ms() - opened_ms)
    return 0


def _of_topics(service: ShareService, attribute: str) -> Samples:
    meters = service.topics.items()
    return [(label(topic=topic), getattr(meter, attribute)) for topic, meter in meters]


def _leaders(service: ShareService) -> Iterator[tuple[Labels, ShareLeader]]:
    for group_id, group in service.leaders.items():
        for leader in group.values():
            labels = label(
                group=group_id,
                topic=leader.partition.topic,
                partition=str(leader.partition.index),
            )
            yield labels, leader
