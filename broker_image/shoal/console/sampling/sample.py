"""One reading of the cluster: what the pages show. Immutable."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.admin.admin import ClusterDescription, LogDir
    from shoal.client.admin.groups import GroupDescription, GroupListing
    from shoal.client.net.cluster import TopicPartition
    from shoal.client.net.metadata import Topic
    from shoal.client.queues.lag import Position
    from shoal.monitoring.cluster_health import ClusterHealth
    from shoal.monitoring.scrape import ShareGroupMetrics


class MetricsSource(Enum):
    """Where the numbers come from that Kafka's protocol does not have."""

    REPORTED = "reported"
    #: The brokers are Shoal's, but none has a metrics listener that answers this client.
    SILENT = "silent"
    #: The brokers are Apache Kafka's, or others that report none of them.
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """The cluster at one time.

    `at_ms` is the wall clock, `at_s` a monotonic clock. `topics` has internal topics too. `groups`
    are share groups; `listed` and `positions` are all groups except those of Kafka Streams.
    `letter_topics` maps share groups to the topics of their dead letters, and `letters` these
    topics to the number of records. `oldest_ms` is the timestamp of the record at a group's start
    offset, of partitions with lag where it is known. `problems` are sentences about what could not
    be read; the sample then has the earlier values or none. `log_starts` are the start offsets of
    logs in which a share group has acquired nothing since a broker loaded it.
    """

    at_ms: int
    at_s: float
    cluster: ClusterDescription
    health: ClusterHealth
    topics: Mapping[str, Topic]
    listed: Mapping[str, GroupListing]
    groups: Mapping[str, GroupDescription]
    positions: Mapping[str, list[Position]]
    numbers: ShareGroupMetrics | None
    metrics: MetricsSource
    paused: frozenset[str]
    letter_topics: Mapping[str, str]
    letters: Mapping[str, int]
    disks: Mapping[int, tuple[LogDir, ...]]
    oldest_ms: Mapping[tuple[TopicPartition, int], int]
    problems: tuple[str, ...]
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
