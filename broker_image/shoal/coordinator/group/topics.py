"""The topics of the cluster's metadata: their names, ids and partition counts.

A group keeps a hash of its subscribed topics. A heartbeat bumps the group epoch if the hash of the
current metadata differs (KIP-1101). The hash is never compared with that of another implementation.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

    from shoal.metadata.image import MetadataImage
    from shoal.protocol.responses import groups as responses


KEY_RANGES_ENABLE = "shoal.key.ranges.enable"


class TopicCatalog:
    """The topics of one metadata image."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        """The version of the metadata, which increases with every change."""
        return self._image.offset

    def get_ids(self, names: Iterable[str]) -> frozenset[UUID]:
        """The ids of the topics, without those that do not exist."""
        topics = self._image.topics
        return frozenset(topics[name].topic_id for name in names if name in topics)

    def get_id(self, name: str) -> UUID | None:
        topic = self._image.topics.get(name)
        return None if topic is None else topic.topic_id

    def get_name(self, topic_id: UUID) -> str | None:
        topic = self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def get_partitions(self, topic_id: UUID) -> range:
        """The partition indexes of a topic; none for one that does not exist."""
        topic = self._image.topics_by_id.get(topic_id)
        return range(0 if topic is None else len(topic.partitions))

    def count_partitions(self, name: str) -> int | None:
        """The number of partitions of a topic; None for one that does not exist."""
        topic = self._image.topics.get(name)
        return None if topic is None else len(topic.partitions)

    def may_use_key_ranges(self, topic_id: UUID) -> bool:
        """Whether members may share the partitions of a topic by key ranges."""
        name = self.get_name(topic_id)
        return name is not None and bool(self._image.resolve_topic_config(name)[KEY_RANGES_ENABLE])

    def list_names(self) -> list[str]:
        """All topics, in order."""
        return sorted(self._image.topics)

    def get_preferred_leader(self, topic_id: UUID, index: int) -> int:
        """The preferred leader of a partition; -1 for one that does not exist."""
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return -1
        return topic.partitions[index].replicas[0]

    def compute_hash(
        self, names: Iterable[str], *, shared: bool = False, by_leader: bool = False
    ) -> int:
        """A signed 64-bit hash of the id, name and partition count of the topics that exist; 0 if
        none exists. In a group with `shared` partitions, the topics that allow it change the hash.
        `by_leader`, the preferred leaders do.
        """
        topics = [self._image.topics[n] for n in sorted(names) if n in self._image.topics]
        digest = blake2b(digest_size=8)
        for topic in topics:
            digest.update(topic.topic_id.bytes + len(topic.partitions).to_bytes(4, "big"))
            digest.update(topic.name.encode() + b"\0")
            if by_leader:
                leaders = (partition.replicas[0] for partition in topic.partitions)
                digest.update(b"".join(leader.to_bytes(4, "big") for leader in leaders))
            if shared and self.may_use_key_ranges(topic.topic_id):
                # A broker that does not split partitions gets another hash, and assigns again.
                digest.update(b"key ranges")
        return int.from_bytes(digest.digest(), "big", signed=True) if topics else 0

    def describe_assignment(
        self, assignment: Mapping[UUID, Collection[int]]
    ) -> list[responses.ConsumerGroupDescribeTopicPartitions]:
        """The `TopicPartitions` of a describe response, for the topics that exist."""
        named_topics = ((topic, self.get_name(topic)) for topic in sorted(assignment))
        return [
            {"topic_id": topic, "topic_name": name, "partitions": sorted(assignment[topic])}
            for topic, name in named_topics
            if name is not None
        ]
