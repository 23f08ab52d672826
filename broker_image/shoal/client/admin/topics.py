"""Admin calls on topics: create, describe, grow, delete, truncate, list offsets.

Calls take many topics and return a result for each, a `KafkaError` if it failed; see
`shoal.client.errors.expect`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeGuard

from shoal.client.errors import KafkaError
from shoal.client.net import message_fields
from shoal.client.net.batches import Isolation
from shoal.client.net.metadata import Topic
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from shoal.client.net.cluster import Cluster, TopicPartition

#: Milliseconds within which a broker must complete a change.
OPERATION_TIMEOUT_MS = 30_000
#: Seconds to wait until a change is visible in the brokers' metadata.
SETTLE_TIMEOUT_S = 10.0


class OffsetSpec(IntEnum):
    """ListOffsets' numbers of special offsets. Any other number is a timestamp."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 uses the broker's default partition count or replication factor.

    `assignments` (partition to brokers, the leader first) replaces both numbers.
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
    """A result of ListOffsets; `offset` is -1 if no record is at or after the timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Topics:
    """Calls on topics, reached as `Admin.topics`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def list(self, *, internal: bool = False) -> dict[str, Topic]:
        """Return every topic by name; internal topics only with `internal`."""
        topics = await self.cluster.read_all_topics()
        return {name: topic for name, topic in topics.items() if internal or not topic.internal}

    async def describe(self, names: Iterable[str]) -> dict[str, Topic | KafkaError]:
        """Read topics with partitions, leaders and replicas from a broker."""
        requested = list(names)
        for name in requested:
            self.cluster.outdate_topic(name)
        return await self.cluster.get_topics(requested)

    async def create(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
    ) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics and wait until their leaders are known."""
        body = {
            "topics": [_make_topic_body(t) for t in topics],
            "timeout_ms": timeout_ms,
            "validate_only": validate_only,
        }
        answer = await self._ask(ApiKey.CREATE_TOPICS, body, timeout_ms)
        results: dict[str, CreatedTopic | KafkaError] = {}
        for entry in answer.topics:
            if entry.error_code:
                results[entry.name] = KafkaError(
                    entry.error_code, entry.error_message or f"topic {entry.name!r}"
                )
                continue
            results[entry.name] = CreatedTopic(
                entry.name,
                getattr(entry, "topic_id", None),
                getattr(entry, "num_partitions", -1),
                getattr(entry, "replication_factor", -1),
            )
        if not validate_only:
            created = [n for n, r in results.items() if isinstance(r, CreatedTopic)]
            await self._wait_until_settled(created, lambda _, topic: _is_led(topic))
        return results

    async def _wait_until_settled(
        self, names: Iterable[str], is_done: Callable[[str, Topic | KafkaError], bool]
    ) -> None:
        """Wait until the brokers' metadata, which lags the controller's, has these topics."""
        backoff = self.cluster.make_backoff(10, 200)
        deadline = self.cluster.now() + SETTLE_TIMEOUT_S
        remaining = list(names)
        while True:
            topics = await self.describe(remaining)
            remaining = [name for name in remaining if not is_done(name, topics[name])]
            if not remaining or self.cluster.now() > deadline:
                return
            await backoff.pause()

    async def delete(
        self, names: Iterable[str], *, timeout_ms: int = OPERATION_TIMEOUT_MS
    ) -> dict[str, KafkaError | None]:
        """Delete topics with all their records and wait until they are gone."""
        requested = list(names)
        body = {
            "topics": [{"name": n, "topic_id": None} for n in requested],
            "topic_names": requested,
            "timeout_ms": timeout_ms,
        }
        answer = await self._ask(ApiKey.DELETE_TOPICS, body, timeout_ms)
        results = {
            entry.name: message_fields.parse_error(entry, f"topic {entry.name!r}")
            for entry in answer.responses
        }
        deleted = [name for name, error in results.items() if error is None]
        await self._wait_until_settled(deleted, lambda _, topic: isinstance(topic, KafkaError))
        return results

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int = OPERATION_TIMEOUT_MS,
    ) -> dict[str, KafkaError | None]:
        """Increase the partition counts of topics to these totals; wait until they are usable."""
        body = {
            "topics": [{"name": n, "count": c, "assignments": None} for n, c in counts.items()],
            "timeout_ms": timeout_ms,
            "validate_only": validate_only,
        }
        answer = await self._ask(ApiKey.CREATE_PARTITIONS, body, timeout_ms)
        results = {
            entry.name: message_fields.parse_error(entry, f"topic {entry.name!r}")
            for entry in answer.results
        }
        if not validate_only:
            grown = [name for name, error in results.items() if error is None]
            await self._wait_until_settled(
                grown, lambda name, topic: _is_led(topic) and len(topic.partitions) >= counts[name]
            )
        return results

    async def _ask(self, api_key: ApiKey, body: Mapping[str, Any], timeout_ms: int) -> Any:
        """Send a request to any broker, which forwards it to the controller. Send it once: a lost
        answer may hide a success.
        """
        answer_ms = timeout_ms + self.cluster.settings.request_timeout_ms
        return await self.cluster.ask(api_key, body, timeout_ms=answer_ms)

    async def offsets(
        self,
        specs: Mapping[TopicPartition, int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ListedOffset | KafkaError]:
        """Return offsets of partitions by `OffsetSpec` or timestamp (epoch milliseconds)."""

        async def call(
            node: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, ListedOffset | KafkaError]:
            entries = [
                (
                    partition,
                    {
                        "partition_index": partition.partition,
                        "current_leader_epoch": await self.cluster.find_leader_epoch(*partition),
                        "timestamp": specs[partition],
                    },
                )
                for partition in partitions
            ]
            body = {
                "replica_id": -1,
                "isolation_level": isolation,
                "timeout_ms": self.cluster.settings.request_timeout_ms,
                "topics": message_fields.group_by_topic(entries),
            }
            answer = await self.cluster.request(node, ApiKey.LIST_OFFSETS, body)
            return {
                partition: KafkaError(part.error_code, f"offsets of {partition}")
                if part.error_code
                else ListedOffset(
                    part.offset,
                    message_fields.to_epoch_ms(part.timestamp),
                    getattr(part, "leader_epoch", -1),
                )
                for partition, part in message_fields.iterate_partitions(answer.topics)
            }

        return await self.cluster.call_leaders(specs, call, timeout_ms)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = OPERATION_TIMEOUT_MS
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete all records before these offsets (-1: all records); return the new log start
        offsets.
        """

        async def call(
            node: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, int | KafkaError]:
            entries = (
                (p, {"partition_index": p.partition, "offset": offsets[p]}) for p in partitions
            )
            body = {"topics": message_fields.group_by_topic(entries), "timeout_ms": timeout_ms}
            answer = await self.cluster.request(node, ApiKey.DELETE_RECORDS, body)
            return {
                partition: KafkaError(part.error_code, f"deleting records of {partition}")
                if part.error_code
                else part.low_watermark
                for partition, part in message_fields.iterate_partitions(answer.topics)
            }

        return await self.cluster.call_leaders(offsets, call)


def _is_led(topic: Topic | KafkaError) -> TypeGuard[Topic]:
    return isinstance(topic, Topic) and all(p.leader_id >= 0 for p in topic.partitions)


def _make_topic_body(topic: NewTopic) -> dict[str, Any]:
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
