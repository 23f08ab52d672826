"""What the metrics of share groups read of the share service and of the share partitions it leads.

`server.share` satisfies these ports. It registers its families by `metrics.share.register`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shoal.server.metrics.registry import Labels, Samples, label

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shoal.coordinator.share.dead_letters import DeadLetterFailure
    from shoal.coordinator.share.selection import Selection
    from shoal.coordinator.share.sessions import ShareSessions
    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.replication.partition import Partition
    from shoal.server.metrics.share_meters import FetchMeter, GroupedMean, ShareTopicMeter


class PendingDeadLetters(Protocol):
    """The dead letters that a share partition still has to write."""

    @property
    def pending(self) -> bool: ...
    @property
    def failure(self) -> DeadLetterFailure | None: ...


class LeaderPort(Protocol):
    """A share partition that is loaded here."""

    #: Records acquired, acquired again, and those whose lock timed out.
    acquired_total: int
    redelivered_total: int
    expired_total: int

    @property
    def partition(self) -> Partition: ...
    @property
    def share(self) -> SharePartition: ...
    @property
    def selection(self) -> Selection | None: ...
    @property
    def settings(self) -> ShareSettings: ...
    @property
    def fetches(self) -> FetchMeter: ...
    @property
    def dead_letters(self) -> PendingDeadLetters: ...

    def get_limit(self, settings: ShareSettings) -> int:
        """Return the offset below which records may be delivered."""

    def is_delivery_stopped(self, settings: ShareSettings) -> bool:
        """Whether nothing is delivered now."""

    def is_full(self, settings: ShareSettings) -> bool:
        """Whether the limit on records in flight stops delivery."""


class DeadLetterCounts(Protocol):
    """Dead letters by group, and failed attempts by group and reason."""

    written: Counter[str]
    dropped: Counter[str]
    attempts: Counter[str]
    failed: Counter[tuple[str, str]]


class DeadLetterRates(Protocol):
    """The dead letters of the last minute, by group."""

    def count_last_minute(self, group_id: str) -> int: ...
    def is_exceeded(self, group_id: str, limit: int) -> bool:
        """Whether the group reached `limit`. Without a limit (0) it never does."""

    def list_groups(self) -> list[str]: ...


class LoansPort(Protocol):
    """What brokers lend each other of tenants' limits."""

    def count_records(self) -> Mapping[str, tuple[int, int]]:
        """By group: the records that this broker has lent and borrowed, if there are any."""


class ShareServicePort(Protocol):
    """The share partitions led by this broker, and the share sessions of its clients."""

    load_times: GroupedMean
    acquire_times: GroupedMean
    fetch_ratios: GroupedMean
    write_times: GroupedMean
    acknowledged: Counter[int]
    expired_fetches: int

    @property
    def leaders(self) -> Mapping[str, Mapping[Any, LeaderPort]]:
        """By group id and partition."""

    @property
    def topics(self) -> Mapping[str, ShareTopicMeter]: ...
    @property
    def sessions(self) -> ShareSessions: ...
    @property
    def dead_letters(self) -> DeadLetterCounts: ...
    @property
    def dlq_rate_limit(self) -> DeadLetterRates: ...
    @property
    def loans(self) -> LoansPort: ...
    def now_ms(self) -> int: ...
    def get_settings(self, group_id: str) -> ShareSettings: ...
    def iterate_unloaded(self) -> Iterable[tuple[str, Partition, int]]:
        """Yield the group id, the partition and the persisted lag of each share partition that is
        led here and not loaded. An unknown lag is -1."""


def make_leader_collector(
    service: ShareServicePort, value: Callable[[LeaderPort], float]
) -> Callable[[], Samples]:
    """A family with one sample for each share partition that is loaded."""
    return lambda: [(labels, value(leader)) for labels, leader in iterate_leaders(service)]


def iterate_leaders(service: ShareServicePort) -> Iterator[tuple[Labels, LeaderPort]]:
    """Yield the labels and the leader of each share partition that is loaded."""
    for group_id, group in service.leaders.items():
        for leader in group.values():
            partition = leader.partition
            yield make_partition_labels(group_id, partition.topic, partition.index), leader


def make_partition_labels(group_id: str, topic: str, index: int) -> Labels:
    return label(group=group_id, topic=topic, partition=str(index))
