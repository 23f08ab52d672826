"""Rows of responses and requests in the shapes that many admin calls share."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal.client.cluster import TopicPartition
from shoal.client.errors import KafkaError
from shoal.protocol import codec


def error_of(row: Any, about: str) -> KafkaError | None:
    """The error of one row of a response; `about` stands in where the broker says nothing."""
    if not row.error_code:
        return None
    return KafkaError(row.error_code, getattr(row, "error_message", None) or about)


def group_by_topic(
    rows: Iterable[tuple[TopicPartition, Mapping[str, Any]]], name: str = "name"
) -> list[dict[str, Any]]:
    """Rows of partitions as requests nest them; `name` is the field that holds the topic."""
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for where, row in rows:
        topics.setdefault(where.topic, []).append(row)
    return [{name: topic, "partitions": some} for topic, some in topics.items()]


def each_partition(
    topics: Iterable[Any], name: str = "name"
) -> Iterator[tuple[TopicPartition, Any]]:
    """The inverse for responses: each partition's row with its place."""
    for topic in topics:
        for part in topic.partitions:
            yield TopicPartition(getattr(topic, name), part.partition_index), part


def epoch_ms(value: Any) -> int:
    """Epoch milliseconds from what kio makes of a timestamp; -1 for none."""
    if value is None or isinstance(value, datetime.datetime):
        return codec.timestamp_ms(value)
    return int(value)
