"""Gauges of the metadata quorum, and of a controller: the cluster as its metadata describes it.

As in Kafka, every controller has those, and only the active one has an ActiveControllerCount of 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.server.metrics.registry import MetricRegistry

_PREFIX = "kafka_controller_KafkaController_"


class QuorumMetricsPort(Protocol):
    """This node's view of the quorum."""

    @property
    def leader_id(self) -> int | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class PartitionTotals(NamedTuple):
    """Partitions: all of them, those without a leader, and those led by another replica than the
    preferred one."""

    partitions: int = 0
    offline: int = 0
    imbalanced: int = 0


class PartitionCounter:
    """Counts the partitions of images. A topic that has not changed is not counted again."""

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicImage] | None = None
        self._by_topic: dict[str, tuple[TopicImage, PartitionTotals]] = {}
        self._sum = PartitionTotals()

    def count(self, image: MetadataImage) -> PartitionTotals:
        """Return the counts of all topics."""
        if image.topics is self._topics:
            return self._sum
        previous, self._by_topic = self._by_topic, {}
        total = [0, 0, 0]
        for name, topic in image.topics.items():
            before = previous.get(name)
            counts = before[1] if before and before[0] is topic else _count_topic(topic)
            self._by_topic[name] = (topic, counts)
            for index, number in enumerate(counts):
                total[index] += number
        self._topics, self._sum = image.topics, PartitionTotals(*total)
        return self._sum


def _count_topic(topic: TopicImage) -> PartitionTotals:
    offline = sum(p.leader < 0 for p in topic.partitions)
    away = sum(p.leader >= 0 and p.leader != p.replicas[0] for p in topic.partitions)
    return PartitionTotals(len(topic.partitions), offline, away)


def register(
    metrics: MetricRegistry, image: Callable[[], MetadataImage], is_active: Callable[[], bool]
) -> None:
    """Add the families of a controller that reads its metadata from `image`."""
    counts = PartitionCounter()

    def add(name: str, description: str, value: Callable[[], float]) -> None:
        metrics.add_gauge(_PREFIX + name, description, value)

    add("ActiveControllerCount", "1 on the active controller, 0 on the others.", is_active)
    add("GlobalTopicCount", "Topics of the cluster.", lambda: len(image().topics))
    add(
        "GlobalPartitionCount",
        "Partitions of the cluster.",
        lambda: counts.count(image()).partitions,
    )
    add(
        "OfflinePartitionsCount",
        "Partitions of the cluster without a leader: nobody can write to them or read from them.",
        lambda: counts.count(image()).offline,
    )
    add(
        "PreferredReplicaImbalanceCount",
        "Partitions of the cluster that another replica than the preferred one leads.",
        lambda: counts.count(image()).imbalanced,
    )
    add(
        "ActiveBrokerCount",
        "Registered brokers that send heartbeats.",
        lambda: sum(not broker.fenced for broker in image().brokers.values()),
    )
    add(
        "FencedBrokerCount",
        "Registered brokers that are fenced: they are down, or have not caught up.",
        lambda: sum(broker.fenced for broker in image().brokers.values()),
    )


def register_quorum(metrics: MetricRegistry, quorum: QuorumMetricsPort) -> None:
    """Add the families that every node has."""

    def add(name: str, description: str, value: Callable[[], float]) -> None:
        metrics.add_gauge(f"kafka_server_raft_metrics_{name}", description, value)

    add(
        "current_leader",
        "Node id of the active controller; -1 if it is unknown.",
        lambda: -1 if quorum.leader_id is None else quorum.leader_id,
    )
    add("current_epoch", "Epoch of the metadata quorum.", lambda: quorum.epoch)
    add(
        "high_watermark",
        "Offset below which records of the metadata log are committed.",
        lambda: quorum.high_watermark,
    )
    add(
        "log_end_offset",
        "Offset of the next record of the metadata log.",
        lambda: quorum.end_offset,
    )
