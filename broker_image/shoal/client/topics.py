"""The admin's calls on topics: create, describe, grow, delete, truncate, and where offsets are.

Calls take many topics at once and give a result for each, a `KafkaError` where it failed; see
`shoal.client.errors.expect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeGuard
from uuid import UUID

from shoal.client import message_fields
from shoal.client.batches import Isolation
from shoal.client.cluster import Backoff, Cluster, Topic, TopicPartition
from shoal.client.errors import KafkaError
from shoal.protocol.api import ApiKey

#: How long a broker may take until a change has reached all of it.
OPERATION_TIMEOUT_MS = 30_000
#: How long is waited until a change shows in the brokers' metadata.
SETTLE_TIMEOUT_S = 10.0


class OffsetSpec(IntEnum):
    """Offsets with a name, as ListOffsets numbers them; a timestamp is any other number."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 leaves partitions or replication factor to the broker's defaults.

    `assignments` (partition to brokers, the leader first) stands in for both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """What ListOffsets found; `offset` is -1 where no record is as young as the timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Topics:
    """Reached as `Admin.topics`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def list(self, *, internal: bool = False) -> dict[str, Topic]:
        """Every topic by name; Kafka's own ones only with `internal`."""
        found = await self.cluster.all_topics()
        return {name: topic for name, topic in found.items() if internal or not topic.internal}

    async def describe(self, names: Iterable[str]) -> dict[str, Topic | KafkaError]:
        """Topics with partitions, leaders and replicas, read now."""
        wanted = list(names)
        for name in wanted:
            self.cluster.outdate_topic(name)
        return await self.cluster.topics(wanted)

    async def create(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics; returns when their leaders are known, so that they can be used."""
        body = {
            "topics": [_new_topic(t) for t in topics],
            "timeout_ms": timeout_ms,
            "validate_only": validate_only,
        }
        answer = await self._ask(ApiKey.CREATE_TOPICS, body, timeout_ms)
        results: dict[str, CreatedTopic | KafkaError] = {}
        for row in answer.topics:
            if row.error_code:
                results[row.name] = KafkaError(
                    row.error_code, row.error_message or f"topic {row.name!r}"
                )
                continue
            results[row.name] = CreatedTopic(
                row.name,
                getattr(row, "topic_id", None),
                getattr(row, "num_partitions", -1),
                getattr(row, "replication_factor", -1),
            )
        if not validate_only:
            created = [n for n, r in results.items() if isinstance(r, CreatedTopic)]
            await self._settled(created, lambda _, topic: _is_led(topic))
        return results

    async def _settled(
        self, names: Iterable[str], done: Callable[[str, Topic | KafkaError], bool]
    ) -> None:
        """Wait until the brokers, which follow the controller, tell so of all these topics."""
        backoff = Backoff(10, 200)
        deadline = self.cluster.now() + SETTLE_TIMEOUT_S
        left = list(names)
        while True:
            found = await self.describe(left)
            left = [name for name in left if not done(name, found[name])]
            if not left or self.cluster.now() > deadline:
                return
            await backoff.pause()

    async def delete(
        self, names: Iterable[str], *, timeout_ms: int = OPERATION_TIMEOUT_MS
    ) -> dict[str, KafkaError | None]:
        """Delete topics with all their records; returns when they are gone."""
        wanted = list(names)
        body = {
            "topics": [{"name": n, "topic_id": None} for n in wanted],
            "topic_names": wanted,
            "timeout_ms": timeout_ms,
        }
        answer = await self._ask(ApiKey.DELETE_TOPICS, body, timeout_ms)
        results = {
            row.name: message_fields.error_of(row, f"topic {row.name!r}")
            for row in answer.responses
        }
        deleted = [name for name, error in results.items() if error is None]
        await self._settled(deleted, lambda _, topic: isinstance(topic, KafkaError))
        return results

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
    ) -> dict[str, KafkaError | None]:
        """Grow topics to so many partitions in all; returns when these can be used."""
        body = {
            "topics": [{"name": n, "count": c, "assignments": None} for n, c in counts.items()],
            "timeout_ms": timeout_ms,
            "validate_only": validate_only,
        }
        answer = await self._ask(ApiKey.CREATE_PARTITIONS, body, timeout_ms)
        results = {
            row.name: message_fields.error_of(row, f"topic {row.name!r}") for row in answer.results
        }
        if not validate_only:
            grown = [name for name, error in results.items() if error is None]
            await self._settled(
                grown, lambda name, topic: _is_led(topic) and len(topic.partitions) >= counts[name]
            )
        return results

    async def _ask(self, api_key: ApiKey, body: Mapping[str, Any], timeout_ms: int) -> Any:
        """Ask any broker, which hands it to the controller; once, since it may have worked."""
        answer_ms = timeout_ms + self.cluster.settings.request_timeout_ms
        return await self.cluster.ask(api_key, body, timeout_ms=answer_ms)

    async def offsets(
        self,
        specs: Mapping[TopicPartition, int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ListedOffset | KafkaError]:
        """Offsets of partitions by `OffsetSpec` or timestamp (epoch milliseconds)."""

        async def call(
            node: int, some: list[TopicPartition]
        ) -> dict[TopicPartition, ListedOffset | KafkaError]:
            body = {
                "replica_id": -1,
                "isolation_level": isolation,
                "timeout_ms": self.cluster.settings.request_timeout_ms,
                "topics": message_fields.group_by_topic(
                    (p, {"partition_index": p.partition, "timestamp": specs[p]}) for p in some
                ),
            }
            answer = await self.cluster.request(node, ApiKey.LIST_OFFSETS, body)
            return {
                where: KafkaError(part.error_code, f"offsets of {where}")
                if part.error_code
                else ListedOffset(
                    part.offset,
                    message_fields.epoch_ms(part.timestamp),
                    getattr(part, "leader_epoch", -1),
                )
                for where, part in message_fields.each_partition(answer.topics)
            }

        return await self.cluster.on_leaders(specs, call, timeout_ms)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = OPERATION_TIMEOUT_MS
    ) -> dict[TopicPartition, int | KafkaError]:
        """Drop all records before these offsets (-1: all there are); gives the new log starts."""

        async def call(
            node: int, some: list[TopicPartition]
        ) -> dict[TopicPartition, int | KafkaError]:
            wanted = ((p, {"partition_index": p.partition, "offset": offsets[p]}) for p in some)
            body = {"topics": message_fields.group_by_topic(wanted), "timeout_ms": timeout_ms}
            answer = await self.cluster.request(node, ApiKey.DELETE_RECORDS, body)
            return {
                where: KafkaError(part.error_code, f"deleting records of {where}")
                if part.error_code
                else part.low_watermark
                for where, part in message_fields.each_partition(answer.topics)
            }

        return await self.cluster.on_leaders(offsets, call)


def _is_led(topic: Topic | KafkaError) -> TypeGuard[Topic]:
    return isinstance(topic, Topic) and all(p.leader_id >= 0 for p in topic.partitions)


def _new_topic(topic: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.assignments else topic.partitions,
        "replication_factor": -1 if topic.assignments else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": list(brokers)}
            for index, brokers in sorted(topic.assignments.items())
        ],
        "configs": [{"name": n, "value": v} for n, v in sorted(topic.configs.items())],
    }
