"""Admin calls on topics: create, describe, grow, delete, truncate, list offsets.

Calls take many topics and return a result for each, a `KafkaError` if it failed; see
`shoal.client.errors.expect`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeGuard

from shoal.client import message_fields
from shoal.client.batches import Isolation
from shoal.client.cluster import Cluster, Topic, TopicPartition
from shoal.client.errors import KafkaError
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

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
        found = await self.cluster.all_topics()
        return {name: topic for name, topic in found.items() if internal or not topic.internal}

    async def describe(self, names: Iterable[str]) -> dict[str, Topic | KafkaError]:
        """Read topics with partitions, leaders and replicas from a broker."""
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
        """Create topics and wait until their leaders are known."""
        body = {
            "topics": [_new_topic(t) for t in topics],
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
            await self._settled(created, lambda _, topic: _is_led(topic))
        return results

    async def _settled(
        self, names: Iterable[str], done: Callable[[str, Topic | KafkaError], bool]
    ) -> None:
        """Wait until the brokers' metadata, which lags the controller's, has these topics."""
        backoff = self.cluster.backoff(10, 200)
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
        """Delete topics with all their records and wait until they are gone."""
        wanted = list(names)
        body = {
            "topics": [{"name": n, "topic_id": None} for n in wanted],
            "topic_names": wanted,
            "timeout_ms": timeout_ms,
        }
        answer = await self._ask(ApiKey.DELETE_TOPICS, body, timeout_ms)
        results = {
            entry.name: message_fields.error_of(entry, f"topic {entry.name!r}")
            for entry in answer.responses
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
        """Increase the partition counts of topics to these totals; wait until they are usable."""
        body = {
            "topics": [{"name": n, "count": c, "assignments": None} for n, c in counts.items()],
            "timeout_ms": timeout_ms,
            "validate_only": validate_only,
        }
        answer = await self._ask(ApiKey.CREATE_PARTITIONS, body, timeout_ms)
        results = {
            entry.name: message_fields.error_of(entry, f"topic {entry.name!r}")
            for entry in answer.results
        }
        if not validate_only:
            grown = [name for name, error in results.items() if error is None]
            await self._settled(
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
            node: int, some: list[TopicPartition]
        ) -> dict[TopicPartition, ListedOffset | KafkaError]:
            asked = [
                (
                    where,
                    {
                        "partition_index": where.partition,
                        "current_leader_epoch": await self.cluster.leader_epoch(*where),
                        "timestamp": specs[where],
                    },
                )
                for where in some
            ]
            body = {
                "replica_id": -1,
                "isolation_level": isolation,
                "timeout_ms": self.cluster.settings.request_timeout_ms,
                "topics": message_fields.group_by_topic(asked),
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
        """Delete all records before these offsets (-1: all records); return the new log start
        offsets.
        """

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
