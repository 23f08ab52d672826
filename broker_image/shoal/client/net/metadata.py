"""Brokers, topics and partitions as a Metadata answer describes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

NO_SUCH_TOPIC = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition; `leader_id` is -1 if it has no leader."""

    index: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `partitions` are ordered by index."""

    name: str
    topic_id: UUID | None
    internal: bool
    partitions: tuple[PartitionInfo, ...]

    def get_partition(self, index: int) -> PartitionInfo:
        """Return one partition. Raises `KafkaError` UNKNOWN_TOPIC_OR_PARTITION."""
        if not 0 <= index < len(self.partitions):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {self.name!r} has {len(self.partitions)} partitions, no partition {index}",
            )
        return self.partitions[index]


def describe_topic(code: ErrorCode, name: str) -> str:
    """Say which topic an error of a Metadata answer is about."""
    if code in NO_SUCH_TOPIC:
        return f"there is no topic {name!r}"
    return f"topic {name!r}"


def keep_newer_leaders(topic: Topic, cached: Topic | None) -> Topic:
    """Return a topic with the newer leader of each partition (KIP-320).

    A broker that was frozen or cut off may still name itself. Its log ends where it stopped, so a
    consumer would take its position for one that does not exist.
    """
    if cached is None or cached.topic_id != topic.topic_id:
        return topic
    partitions = tuple(
        before
        if before is not None and before.leader_epoch > partition.leader_epoch >= 0
        else partition
        for partition, before in zip_longest(
            topic.partitions, cached.partitions[: len(topic.partitions)]
        )
    )
    return replace(topic, partitions=partitions)


def parse_topic(result: Any) -> Topic:
    """Read a topic of a Metadata answer."""
    partitions = sorted(result.partitions, key=lambda p: p.partition_index)
    return Topic(
        result.name,
        getattr(result, "topic_id", None),
        bool(getattr(result, "is_internal", False)),
        tuple(
            PartitionInfo(
                p.partition_index,
                p.leader_id,
                getattr(p, "leader_epoch", -1),
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
                tuple(getattr(p, "offline_replicas", ())),
            )
            for p in partitions
        ),
    )
