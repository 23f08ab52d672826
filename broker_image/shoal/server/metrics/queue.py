"""Metrics of share groups that Kafka does not have, such as the lag of each share partition.

Dead letters have both Kafka's names (KIP-1191) and ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from shoal.server.metrics.registry import Labels, MetricRegistry, Samples, label
from shoal.server.metrics.share_ports import (
    LeaderPort,
    ShareServicePort,
    iterate_leaders,
    make_leader_collector,
    make_partition_labels,
)

#: Seconds from now. For each, records are counted that are due later than that.
DUE_WITHIN_S = (0, 10, 30, 60, 120, 300, 600)
_GROUP = "kafka_server_ShareGroupMetrics_DeadLetterQueue"
#: Tenants of a group with a sample of their own: those with the most records.
TENANTS_SHOWN = 20
_TENANT_CHARACTERS_MAX = 64
#: A metric of each share partition: its name, type, help, and value.
Family = tuple[str, str, str, Callable[[LeaderPort], float]]


class LagOffsetsPort(Protocol):
    """The offsets of a partition that this broker leads."""

    @property
    def topic(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def is_behind(self) -> bool:
        """Whether the high watermark has not reached the start of the leader's epoch."""


class DeliveryPort(Protocol):
    """How far the delivery of a share partition is complete."""

    @property
    def start_offset(self) -> int: ...
    @property
    def complete(self) -> int:
        """Offsets after the start offset whose delivery is complete (KIP-1226)."""


class LagLeaderPort(Protocol):
    """A share partition that is loaded here, for its lag."""

    @property
    def partition(self) -> LagOffsetsPort: ...
    @property
    def share(self) -> DeliveryPort: ...


class LagServicePort(Protocol):
    """The share partitions led here, for their lag."""

    @property
    def leaders(self) -> Mapping[str, Mapping[Any, LagLeaderPort]]: ...
    def iterate_unloaded(self) -> Iterable[tuple[str, LagOffsetsPort, int]]: ...


def register(metrics: MetricRegistry, service: ShareServicePort) -> None:
    """Add the families."""
    _register_partitions(metrics, service)
    _register_due(metrics, service)
    _register_selections(metrics, service)
    _register_dead_letters(metrics, service)
    add = metrics.add
    add(
        "shoal_share_group_tenant_records",
        "gauge",
        f"Records of the {TENANTS_SHOWN} tenants of a group that have the most, by state: in-flight"
        " at members, or available.",
        lambda: count_tenants(service),
    )
    add(
        "shoal_share_group_limit_loans",
        "gauge",
        "Records of tenants' limits that this broker has lent to others, or borrowed, by state.",
        lambda: count_loans(service),
    )
    add(
        "shoal_share_group_held",
        "gauge",
        "Share partitions of a group whose delivery is held, fully or in part, by reason.",
        lambda: count_delivery_holds(service),
    )
    add(
        "shoal_share_partition_lag",
        "gauge",
        "Records whose delivery is not complete (KIP-1226).",
        lambda: compute_lags(service),
    )


def _register_partitions(metrics: MetricRegistry, service: ShareServicePort) -> None:
    families: tuple[Family, ...] = (
        ("acquired_records_total", "counter", "Records acquired.", lambda x: x.acquired_total),
        (
            "redelivered_records_total",
            "counter",
            "Records acquired that were delivered before.",
            lambda x: x.redelivered_total,
        ),
        ("locks", "gauge", "Acquisition locks.", lambda x: len(x.share.locks.live)),
        (
            "locked_records",
            "gauge",
            "Records under acquisition locks.",
            _count_locked,
        ),
        (
            "unavailable_records",
            "gauge",
            "Records of the lag that no member holds and that cannot be delivered now.",
            count_unavailable,
        ),
        (
            "oldest_lock_age_seconds",
            "gauge",
            "Age of the oldest acquisition lock, including renewals.",
            lambda x: _compute_oldest_lock_age_s(x, service.now_ms()),
        ),
        (
            "backing_off_records",
            "gauge",
            "Records in retry back-off.",
            lambda x: x.share.backing_off,
        ),
        (
            "held_by_key_records",
            "gauge",
            "Records that wait for an earlier record with the same key (share.ordering=key).",
            lambda x: x.selection.held_by_key if x.selection else 0,
        ),
        (
            "delayed_records",
            "gauge",
            "Records delayed by a header (share.delay.max.ms).",
            lambda x: x.selection.delayed if x.selection else 0,
        ),
        (
            "paused",
            "gauge",
            "1 while the group's delivery is paused (share.delivery.paused).",
            lambda x: int(x.settings.paused),
        ),
        (
            "archiving_records",
            "gauge",
            "Records that wait until their dead letter is written.",
            _count_archiving,
        ),
    )
    for name, kind, description, value in (*families, *_OF_TENANTS, *_OF_DEAD_LETTERS):
        metrics.add(
            f"shoal_share_partition_{name}",
            kind,
            description,
            make_leader_collector(service, value),
        )


def _register_due(metrics: MetricRegistry, service: ShareServicePort) -> None:
    """Add the families of records that are delayed, in back-off or behind a limit of their tenant.
    A share partition that cannot have such records has no sample."""

    def iterate_waiting() -> Iterator[tuple[Labels, LeaderPort]]:
        for labels, x in iterate_leaders(service):
            if x.share.backing_off or (x.selection is not None and x.selection.may_have_later):
                yield labels, x

    def collect_later() -> Samples:
        return [
            ((*labels, *label(within=str(within_s))), records)
            for labels, x in iterate_waiting()
            for within_s, records in zip(
                DUE_WITHIN_S, count_not_due(x, service.now_ms()), strict=True
            )
        ]

    def collect_next_due() -> Samples:
        return [
            (labels, due)
            for labels, x in iterate_waiting()
            if (due := get_next_due_s(x)) is not None
        ]

    metrics.add(
        "shoal_share_partition_not_due_records",
        "gauge",
        "Records that are due later than in `within` seconds, because of a delay, a back-off or a"
        " limit of their tenant.",
        collect_later,
    )
    metrics.add(
        "shoal_share_partition_next_due_timestamp_seconds",
        "gauge",
        "Unix time at which the next record is due that is delayed, in back-off or behind the rate"
        " of its tenant.",
        collect_next_due,
    )


def get_next_due_s(leader: LeaderPort) -> float | None:
    """Return when the next record is due that waits for a time, in Unix time, or None."""
    due_ms = [leader.share.waits.find_next_deadline_ms()]
    if leader.selection is not None:
        due_ms.append(leader.selection.next_due_ms)
    return min((d / 1000 for d in due_ms if d is not None), default=None)


def _register_selections(metrics: MetricRegistry, service: ShareServicePort) -> None:
    """Add the families of groups with key order, delay or priority."""

    def collect_failures() -> Samples:
        return [
            ((*labels, *label(reason=reason)), count)
            for labels, x in iterate_leaders(service)
            if x.selection is not None and (headers := x.selection.headers) is not None
            for reason, count in (
                ("not-a-number", headers.invalid),
                ("delay-over-maximum", headers.clamped),
            )
        ]

    def collect_full() -> Samples:
        return [
            ((*labels, *label(config=config)), 1)
            for labels, x in iterate_leaders(service)
            if x.selection is not None
            and (config := x.selection.find_exhausted_config()) is not None
        ]

    metrics.add(
        "shoal_share_partition_header_failures_total",
        "counter",
        "Records whose delay or priority header was not applied as given, by reason.",
        collect_failures,
    )
    metrics.add(
        "shoal_share_partition_look_ahead_full",
        "gauge",
        "1 while a config stops the scan for more records, by config.",
        collect_full,
    )


def _register_dead_letters(metrics: MetricRegistry, service: ShareServicePort) -> None:
    meter, add = service.dead_letters, metrics.add

    def build_samples(counts: Counter[str]) -> Samples:
        # Groups begin at 0: the increase of a series leaves out the event with which it appears.
        return [(label(group=group), counts[group]) for group in {**service.leaders, **counts}]

    def make_collector(counts: Counter[str]) -> Callable[[], Samples]:
        return lambda: build_samples(counts)

    def collect_failed() -> Samples:
        groups: Counter[str] = Counter()
        for (group, _), n in meter.failed.items():
            groups[group] += n
        return build_samples(groups)

    add(f"{_GROUP}RecordCount", "counter", "Dead letters written.", make_collector(meter.written))
    add(
        f"{_GROUP}TotalProduceRequestsPerSec_total",
        "counter",
        "Attempts to write dead letters.",
        make_collector(meter.attempts),
    )
    add(
        f"{_GROUP}FailedProduceRequestsPerSec_total",
        "counter",
        "Attempts to write dead letters that failed.",
        collect_failed,
    )
    add(
        "shoal_share_group_dead_letters_total",
        "counter",
        "Dead letters written.",
        make_collector(meter.written),
    )
    add(
        "shoal_share_group_dead_letters_dropped_total",
        "counter",
        "Records dropped without a dead letter.",
        make_collector(meter.dropped),
    )
    add(
        "shoal_share_group_dead_letter_failures_total",
        "counter",
        "Attempts to write dead letters that failed, by reason.",
        lambda: [(label(group=g, reason=why), n) for (g, why), n in meter.failed.items()],
    )
    add(
        "shoal_share_group_dead_letters_last_minute",
        "gauge",
        "Dead letters of the last minute, which the flood limit applies to.",
        lambda: [
            (label(group=group), service.dlq_rate_limit.count_last_minute(group))
            for group in service.dlq_rate_limit.list_groups()
        ],
    )


def count_delivery_holds(service: ShareServicePort) -> Samples:
    """Return by group and reason the number of share partitions whose delivery is held. A reason
    that holds a whole group also counts share partitions that are not loaded."""
    counts: Counter[tuple[str, str]] = Counter()
    for group_id, _, _ in service.iterate_unloaded():
        settings = service.get_settings(group_id)
        counts[group_id, "paused"] += settings.paused
        counts[group_id, "flood"] += service.dlq_rate_limit.is_exceeded(
            group_id, settings.flood_per_minute
        )
    for group_id, group in service.leaders.items():
        settings = service.get_settings(group_id)
        flood = service.dlq_rate_limit.is_exceeded(group_id, settings.flood_per_minute)
        for leader in group.values():
            counts[group_id, "paused"] += settings.paused
            counts[group_id, "flood"] += flood
            if leader.dead_letters.failure is not None and leader.dead_letters.pending:
                counts[group_id, leader.dead_letters.failure.reason] += 1
            counts[group_id, "window-full"] += leader.is_full(settings)
            if leader.selection is not None:
                counts[group_id, "held-keys"] += leader.selection.blocked_by_key_holders
                counts[group_id, "look-ahead"] += (
                    leader.selection.find_exhausted_config() is not None
                )
    return [(label(group=group, why=why), n) for (group, why), n in counts.items() if n]


def count_tenants(service: ShareServicePort) -> Samples:
    """Return by group, tenant and state the records of the busiest tenants in the share partitions
    that are loaded."""
    samples: list[tuple[Labels, float]] = []
    for group_id, group in service.leaders.items():
        held, available = Counter[str](), Counter[str]()
        for leader in group.values():
            if leader.selection is not None and leader.selection.fair is not None:
                for name, held_count, available_count in leader.selection.fair.iterate_work():
                    short_name = name[:_TENANT_CHARACTERS_MAX]
                    held[short_name] += held_count
                    available[short_name] += available_count
        for name, _ in (held + available).most_common(TENANTS_SHOWN):
            for state, counts in (("in-flight", held), ("available", available)):
                samples.append((label(group=group_id, tenant=name, state=state), counts[name]))
    return samples


def count_loans(service: ShareServicePort) -> Samples:
    """Return by group and state the records of tenants' limits that brokers lend each other."""
    return [
        (label(group=group_id, state=state), records)
        for group_id, loans in service.loans.count_records().items()
        for state, records in zip(("lent", "borrowed"), loans, strict=True)
    ]


def compute_lags(service: LagServicePort) -> Samples:
    """Return the lag of each share partition that is led here. It is the persisted lag if the share
    partition is not loaded.

    A new leader's high watermark may lag behind the share partition's start offset at first
    (KIP-207). Until it has caught up, the lag is unknown and the partition has no sample.
    """
    samples = [
        (make_partition_labels(group_id, partition.topic, partition.index), lag)
        for group_id, partition, lag in service.iterate_unloaded()
        if lag >= 0 and not partition.is_behind
    ]
    for group_id, group in service.leaders.items():
        for leader in group.values():
            if leader.partition.is_behind:
                continue
            topic, index = leader.partition.topic, leader.partition.index
            samples.append((make_partition_labels(group_id, topic, index), _compute_lag(leader)))
    return samples


def _compute_lag(leader: LagLeaderPort) -> int:
    share = leader.share
    return leader.partition.high_watermark - share.start_offset - share.complete


def _count_locked(leader: LeaderPort) -> int:
    return leader.share.locks.records


def count_unavailable(leader: LeaderPort) -> int:
    """Return the number of records of the lag that no member holds and no fetch could get now.

    The limit on records in flight (`share.partition.max.record.locks`) does not count.
    """
    share, settings, selection = leader.share, leader.settings, leader.selection
    locked, limit = _count_locked(leader), leader.get_limit(settings)
    if leader.is_delivery_stopped(settings) or (
        selection is not None and selection.blocked_by_key_holders
    ):
        return max(0, _compute_lag(leader) - locked)
    if selection is not None:
        return max(0, _compute_lag(leader) - locked - selection.count_available(limit))
    uncommitted = leader.partition.high_watermark - limit
    return share.backing_off + share.key_holders + _count_archiving(leader) + uncommitted


def count_not_due(leader: LeaderPort, now_ms: int) -> list[int]:
    """Return for each of `DUE_WITHIN_S` how many records are due only later."""
    times_ms = [now_ms + 1000 * within_s for within_s in DUE_WITHIN_S]
    if leader.selection is not None:
        return leader.selection.count_not_due(times_ms, leader.get_limit(leader.settings))
    waits = leader.share.waits.live.values()
    return [sum(w.records for w in waits if w.deadline_ms > time_ms) for time_ms in times_ms]


def _count_archiving(leader: LeaderPort) -> int:
    return sum(x.last - x.first + 1 for x in leader.share.iterate_archiving())


def count_behind_dead_letters(leader: LeaderPort) -> int:
    """Return the number of records that wait behind HOLDS_KEY records, which do not count.

    These are the records of the same key. When held keys stop all delivery, these are all records
    that are not in flight.
    """
    selection, share = leader.selection, leader.share
    if selection is None or not share.key_holders:
        return 0
    if selection.blocked_by_key_holders:
        return max(0, _compute_lag(leader) - share.key_holders - selection.count_in_flight())
    return selection.behind_dead_letters


def _compute_oldest_lock_age_s(leader: LeaderPort, now_ms: int) -> float:
    locks = leader.share.locks.live.values()
    if not locks:
        return 0.0
    return (now_ms - min(lock.since_ms for lock in locks)) / 1000


#: Families of dead letters that hold their key.
_OF_DEAD_LETTERS: tuple[Family, ...] = (
    (
        "keys_held_by_dead_letters",
        "gauge",
        "Keys held by dead-lettered records (share.ordering.key.dead.letter=hold).",
        lambda x: x.selection.keys_held if x.selection else x.share.key_holders,
    ),
    (
        "behind_dead_letters_records",
        "gauge",
        "Records that wait until an earlier dead letter is redriven or skipped.",
        count_behind_dead_letters,
    ),
)
#: Families of groups that are fair between tenants.
_OF_TENANTS: tuple[Family, ...] = (
    (
        "behind_limit_records",
        "gauge",
        "Records that wait behind their tenant's limit (share.tenant.*).",
        lambda x: x.selection.fair.behind_limits if x.selection and x.selection.fair else 0,
    ),
    (
        "fairness_limited",
        "gauge",
        "1 while tenants of records beyond share.fairness.lookahead.records are not seen.",
        lambda x: int(x.selection is not None and x.selection.is_fairness_limited),
    ),
)
