"""What server-side groups see of the cluster's metadata: topics, their ids and partition counts.

A group remembers a hash of the topics it is subscribed to; a heartbeat that finds another one in
the present metadata bumps the group's epoch (KIP-1101). The hash is this broker's own: it is never
compared with one that another implementation computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from uuid import UUID

from shoal.metadata.image import MetadataImage


class Catalog:
    """The topics of one metadata image."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        """Rises with every change of the metadata."""
        return self._image.offset

    def ids_of(self, names: Iterable[str]) -> frozenset[UUID]:
        """The ids of those of the topics that exist."""
        topics = self._image.topics
        return frozenset(topics[name].topic_id for name in names if name in topics)

    def id_of(self, name: str) -> UUID | None:
        topic = self._image.topics.get(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partitions_of(self, topic_id: UUID) -> range:
        """The partition indexes of a topic; none for one that does not exist."""
        topic = self._image.topics_by_id.get(topic_id)
        return range(0 if topic is None else len(topic.partitions))

    def names(self) -> list[str]:
        """All topics, in order."""
        return sorted(self._image.topics)

    def hash_of(self, names: Iterable[str]) -> int:
        """A signed 64-bit hash over id, name and partition count of those that exist; else 0."""
        found = [self._image.topics[n] for n in sorted(names) if n in self._image.topics]
        digest = blake2b(digest_size=8)
        for topic in found:
            digest.update(topic.topic_id.bytes + len(topic.partitions).to_bytes(4, "big"))
            digest.update(topic.name.encode() + b"\0")
        return int.from_bytes(digest.digest(), "big", signed=True) if found else 0

    def described(self, assignment: Mapping[UUID, Collection[int]]) -> list[dict[str, object]]:
        """The `TopicPartitions` of describe responses, of the topics that exist."""
        named = ((topic, self.name_of(topic)) for topic in sorted(assignment))
        return [
            {"topic_id": topic, "topic_name": name, "partitions": sorted(assignment[topic])}
            for topic, name in named
            if name is not None
        ]
