"""Metrics of share groups that Kafka does not have, such as the lag of each share partition.

Dead letters have both Kafka's names (KIP-1191) and ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from shoal.server.metrics.registry import Labels, Metrics, Samples, label
from shoal.server.metrics.share_ports import (
    LeaderPort,
    ShareServicePort,
    leaders,
    of_leaders,
    share_partition_labels,
)

#: Seconds from now. For each, records are counted that are due later than that.
DUE_WITHIN_S = (0, 10, 30, 60, 120, 300, 600)
_GROUP = "kafka_server_ShareGroupMetrics_DeadLetterQueue"
#: A metric of each share partition: its name, type, help, and value.
Family = tuple[str, str, str, Callable[[LeaderPort], float]]


class OffsetsPort(Protocol):
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


class DeliveredPort(Protocol):
    """How far the delivery of a share partition is complete."""

    @property
    def start_offset(self) -> int: ...
    @property
    def complete(self) -> int:
        """Offsets after the start offset whose delivery is complete (KIP-1226)."""


class LagLeaderPort(Protocol):
    """A share partition that is loaded here, for its lag."""

    @property
    def partition(self) -> OffsetsPort: ...
    @property
    def share(self) -> DeliveredPort: ...


class LagServicePort(Protocol):
    """The share partitions led here, for their lag."""

    @property
    def leaders(self) -> Mapping[str, Mapping[Any, LagLeaderPort]]: ...
    def unloaded(self) -> Iterable[tuple[str, OffsetsPort, int]]: ...


def register(metrics: Metrics, service: ShareServicePort) -> None:
    """Add the families."""
    _register_partitions(metrics, service)
    _register_due(metrics, service)
    _register_selections(metrics, service)
    _register_dead_letters(metrics, service)
    add = metrics.add
    add(
        "shoal_share_group_held",
        "gauge",
        "Share partitions of a group whose delivery is held, fully or in part, by reason.",
        lambda: delivery_holds(service),
    )
    add(
        "shoal_share_partition_lag",
        "gauge",
        "Records whose delivery is not complete (KIP-1226).",
        lambda: lags(service),
    )


def _register_partitions(metrics: Metrics, service: ShareServicePort) -> None:
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
            _locked,
        ),
        (
            "unavailable_records",
            "gauge",
            "Records of the lag that no member holds and that cannot be delivered now.",
            unavailable,
        ),
        (
            "oldest_lock_age_seconds",
            "gauge",
            "Age of the oldest acquisition lock, including renewals.",
            lambda x: _oldest_lock_age_s(x, service.now_ms()),
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
            _archiving,
        ),
    )
    for name, kind, description, value in (*families, *_OF_DEAD_LETTERS):
        metrics.add(f"shoal_share_partition_{name}", kind, description, of_leaders(service, value))


def _register_due(metrics: Metrics, service: ShareServicePort) -> None:
    """Add the families of records that are delayed or in back-off. A share partition without such
    records has no sample."""

    def waiting() -> Iterator[tuple[Labels, LeaderPort]]:
        for labels, x in leaders(service):
            if x.share.backing_off or (x.selection is not None and x.selection.delayed):
                yield labels, x

    def later() -> Samples:
        return [
            ((*labels, *label(within=str(within_s))), records)
            for labels, x in waiting()
            for within_s, records in zip(DUE_WITHIN_S, not_due(x, service.now_ms()), strict=True)
        ]

    def next_due() -> Samples:
        return [(labels, due) for labels, x in waiting() if (due := next_due_s(x)) is not None]

    metrics.add(
        "shoal_share_partition_not_due_records",
        "gauge",
        "Records that are due later than in `within` seconds, because of a delay or a back-off.",
        later,
    )
    metrics.add(
        "shoal_share_partition_next_due_timestamp_seconds",
        "gauge",
        "Unix time at which the next record that is delayed or in back-off is due.",
        next_due,
    )


def next_due_s(leader: LeaderPort) -> float | None:
    """Return when the next record that is delayed or in back-off is due, in Unix time, or None."""
    due_ms = [leader.share.waits.next_deadline_ms()]
    if leader.selection is not None:
        due_ms.append(leader.selection.next_due_ms)
    return min((d / 1000 for d in due_ms if d is not None), default=None)


def _register_selections(metrics: Metrics, service: ShareServicePort) -> None:
    """Add the families of groups with key order, delay or priority."""

    def failures() -> Samples:
        return [
            ((*labels, *label(reason=reason)), count)
            for labels, x in leaders(service)
            if x.selection is not None and (headers := x.selection.headers) is not None
            for reason, count in (
                ("not-a-number", headers.invalid),
                ("delay-over-maximum", headers.clamped),
            )
        ]

    def full() -> Samples:
        return [
            ((*labels, *label(config=config)), 1)
            for labels, x in leaders(service)
            if x.selection is not None and (config := x.selection.full()) is not None
        ]

    metrics.add(
        "shoal_share_partition_header_failures_total",
        "counter",
        "Records whose delay or priority header was not applied as given, by reason.",
        failures,
    )
    metrics.add(
        "shoal_share_partition_look_ahead_full",
        "gauge",
        "1 while a config stops the scan for more records, by config.",
        full,
    )


def _register_dead_letters(metrics: Metrics, service: ShareServicePort) -> None:
    meter, add = service.dead_letters, metrics.add

    def samples(counts: Counter[str]) -> Samples:
        # Groups begin at 0: the increase of a series leaves out the event with which it appears.
        return [(label(group=group), counts[group]) for group in {**service.leaders, **counts}]

    def by_group(counts: Counter[str]) -> Callable[[], Samples]:
        return lambda: samples(counts)

    def failed() -> Samples:
        groups: Counter[str] = Counter()
        for (group, _), n in meter.failed.items():
            groups[group] += n
        return samples(groups)

    add(f"{_GROUP}RecordCount", "counter", "Dead letters written.", by_group(meter.written))
    add(
        f"{_GROUP}TotalProduceRequestsPerSec_total",
        "counter",
        "Attempts to write dead letters.",
        by_group(meter.attempts),
    )
    add(
        f"{_GROUP}FailedProduceRequestsPerSec_total",
        "counter",
        "Attempts to write dead letters that failed.",
        failed,
    )
    add(
        "shoal_share_group_dead_letters_total",
        "counter",
        "Dead letters written.",
        by_group(meter.written),
    )
    add(
        "shoal_share_group_dead_letters_dropped_total",
        "counter",
        "Records dropped without a dead letter.",
        by_group(meter.dropped),
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
            (label(group=group), service.dlq_rate_limit.last_minute(group))
            for group in service.dlq_rate_limit.groups()
        ],
    )


def delivery_holds(service: ShareServicePort) -> Samples:
    """Return by group and reason the number of share partitions whose delivery is held. A reason
    that holds a whole group also counts share partitions that are not loaded."""
    counts: Counter[tuple[str, str]] = Counter()
    for group_id, _, _ in service.unloaded():
        settings = service.settings(group_id)
        counts[group_id, "paused"] += settings.paused
        counts[group_id, "flood"] += service.dlq_rate_limit.is_exceeded(
            group_id, settings.flood_per_minute
        )
    for group_id, group in service.leaders.items():
        settings = service.settings(group_id)
        flood = service.dlq_rate_limit.is_exceeded(group_id, settings.flood_per_minute)
        for leader in group.values():
            counts[group_id, "paused"] += settings.paused
            counts[group_id, "flood"] += flood
            if leader.dead_letters.failure is not None and leader.dead_letters.pending:
                counts[group_id, leader.dead_letters.failure.reason] += 1
            counts[group_id, "window-full"] += leader.is_full(settings)
            if leader.selection is not None:
                counts[group_id, "held-keys"] += leader.selection.blocked_by_key_holders
                counts[group_id, "look-ahead"] += leader.selection.full() is not None
    return [(label(group=group, why=why), n) for (group, why), n in counts.items() if n]


def lags(service: LagServicePort) -> Samples:
    """Return the lag of each share partition that is led here. It is the persisted lag if the share
    partition is not loaded.

    A new leader's high watermark may lag behind the share partition's start offset at first
    (KIP-207). Until it has caught up, the lag is unknown and the partition has no sample.
    """
    found = [
        (share_partition_labels(group_id, partition.topic, partition.index), lag)
        for group_id, partition, lag in service.unloaded()
        if lag >= 0 and not partition.is_behind
    ]
    for group_id, group in service.leaders.items():
        for leader in group.values():
            if leader.partition.is_behind:
                continue
            topic, index = leader.partition.topic, leader.partition.index
            found.append((share_partition_labels(group_id, topic, index), _lag(leader)))
    return found


def _lag(leader: LagLeaderPort) -> int:
    share = leader.share
    return leader.partition.high_watermark - share.start_offset - share.complete


def _locked(leader: LeaderPort) -> int:
    return leader.share.locks.records


def unavailable(leader: LeaderPort) -> int:
    """Return the number of records of the lag that no member holds and no fetch could get now.

    The limit on records in flight (`share.partition.max.record.locks`) does not count.
    """
    share, settings, selection = leader.share, leader.settings, leader.selection
    locked, limit = _locked(leader), leader.limit(settings)
    if leader.is_delivery_stopped(settings) or (
        selection is not None and selection.blocked_by_key_holders
    ):
        return max(0, _lag(leader) - locked)
    if selection is not None:
        return max(0, _lag(leader) - locked - selection.available(limit))
    uncommitted = leader.partition.high_watermark - limit
    return share.backing_off + share.key_holders + _archiving(leader) + uncommitted


def not_due(leader: LeaderPort, now_ms: int) -> list[int]:
    """Return for each of `DUE_WITHIN_S` how many records are due only later."""
    times_ms = [now_ms + 1000 * within_s for within_s in DUE_WITHIN_S]
    if leader.selection is not None:
        return leader.selection.not_due(times_ms)
    waits = leader.share.waits.live.values()
    return [sum(w.records for w in waits if w.deadline_ms > time_ms) for time_ms in times_ms]


def _archiving(leader: LeaderPort) -> int:
    return sum(last - first + 1 for first, last, _ in leader.share.archiving())


def behind_dead_letters(leader: LeaderPort) -> int:
    """Return the number of records that wait behind HOLDS_KEY records, which do not count.

    These are the records of the same key. When held keys stop all delivery, these are all records
    that are not in flight.
    """
    selection, share = leader.selection, leader.share
    if selection is None or not share.key_holders:
        return 0
    if selection.blocked_by_key_holders:
        return max(0, _lag(leader) - share.key_holders - selection.in_flight())
    return selection.behind_dead_letters


def _oldest_lock_age_s(leader: LeaderPort, now_ms: int) -> float:
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
        behind_dead_letters,
    ),
)
