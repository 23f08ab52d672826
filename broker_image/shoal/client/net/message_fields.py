"""Fields of requests and responses that many admin calls share."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.protocol import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def parse_error(entry: Any, default_message: str) -> KafkaError | None:
    """Return the error of an entry of a response, with this message if it has none."""
    if not entry.error_code:
        return None
    return KafkaError(entry.error_code, getattr(entry, "error_message", None) or default_message)


def group_by_topic(
    entries: Iterable[tuple[TopicPartition, Mapping[str, Any]]], name: str = "name"
) -> list[dict[str, Any]]:
    """Nest the entries of partitions by topic, as requests do; `name` is the topic's field."""
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for partition, entry in entries:
        topics.setdefault(partition.topic, []).append(entry)
    return [{name: topic, "partitions": topic_entries} for topic, topic_entries in topics.items()]


def iterate_partitions(
    topics: Iterable[Any], name: str = "name"
) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield each partition of a response with its entry: the inverse of `group_by_topic`."""
    for topic in topics:
        for part in topic.partitions:
            yield TopicPartition(getattr(topic, name), part.partition_index), part


def to_epoch_ms(value: Any) -> int:
    """Convert kio's timestamp to epoch milliseconds; -1 for none."""
    if value is None or isinstance(value, datetime.datetime):
        return codec.to_timestamp_ms(value)
    return int(value)
