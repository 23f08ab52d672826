"""A topic and a share group on it, for tests that need both, on any broker that speaks Kafka."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.admin.share_groups import ShareOffset
    from shoal.client.client import Client, SyncClient
    from shoal.client.produce.producer import RecordMetadata
    from shoal.record.records import Record

Headers = tuple[tuple[str, bytes | None], ...]


async def read_records(client: Client, topic: str) -> list[Record]:
    """Return all records of a topic, partition by partition."""
    indexes = range(len((await client.cluster.get_topic(topic)).partitions))
    latest = {TopicPartition(topic, index): int(OffsetSpec.LATEST) for index in indexes}
    ends = expect(await client.admin.topics.offsets(latest))
    return [
        record
        for partition, end in ends.items()
        if end.offset
        for fetched in await client.fetch_range(*partition, 0, end.offset - 1)
        for record in fetched.records()
    ]


class Queue:
    """A topic and a group on it, which starts at the topic's beginning. Names are random by
    default."""

    def __init__(
        self,
        client: SyncClient,
        bootstrap: str,
        *,
        partitions: int = 1,
        replicas: int = 1,
        topic: str = "",
        group: str = "",
        topic_configs: Mapping[str, str] | None = None,
        **group_configs: str,
    ) -> None:
        self.client = client
        self.bootstrap = bootstrap
        self.topic = topic or f"t-{uuid.uuid4().hex[:8]}"
        self.group = group or f"g-{uuid.uuid4().hex[:8]}"
        self.partitions = partitions
        new = NewTopic(self.topic, partitions, replicas, configs=dict(topic_configs or {}))
        expect(client.run(client.admin.topics.create([new])))
        self.configure(**{"share_auto_offset_reset": "earliest", **group_configs})

    def configure(self, **configs: str) -> None:
        """Set group configs; underscores stand for dots."""
        changes = [ConfigChange(name.replace("_", "."), value) for name, value in configs.items()]
        resource = ConfigResource(ConfigResourceType.GROUP, self.group)
        expect(self.client.run(self.client.admin.configs.alter({resource: changes})))

    def produce(
        self,
        values: Iterable[bytes | str | int],
        *,
        batch: int = 0,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        compression: str = "none",
        timestamp_ms: int | None = None,
    ) -> list[RecordMetadata]:
        """Produce values to all partitions in turn, with `batch` records in each batch of the
        log."""
        encoded = [v if isinstance(v, bytes) else str(v).encode() for v in values]
        size = batch or max(len(encoded), 1)

        async def send() -> list[RecordMetadata]:
            found = []
            producer = self.client.client.producer(compression=compression, linger_ms=2)
            for begin in range(0, len(encoded), size):
                futures = [
                    await producer.send(
                        self.topic,
                        value,
                        key=key,
                        headers=headers,
                        timestamp_ms=timestamp_ms,
                        partition=(begin + i) % self.partitions if partition is None else partition,
                    )
                    for i, value in enumerate(encoded[begin : begin + size])
                ]
                await producer.flush()
                found += [await future for future in futures]
            return found

        return self.client.run(send())

    def positions(self) -> dict[TopicPartition, ShareOffset]:
        found = self.client.run(self.client.admin.share_groups.offsets([self.group]))[self.group]
        if isinstance(found, KafkaError):  # A group exists from its first member on.
            assert found.code is ErrorCode.group_id_not_found, found
            return {}
        return {
            where: offset
            for where, offset in found.items()
            if not isinstance(offset, KafkaError) and where.topic == self.topic
        }

    @property
    def lag(self) -> int:
        """Records not yet settled; -1 while the broker reports none."""
        lags = [offset.lag for offset in self.positions().values()]
        return sum(lags) if lags and min(lags) >= 0 else -1

    def drained(self, timeout_s: float = 60.0) -> None:
        """Wait until every record is settled."""
        eventually(lambda: self.lag == 0, timeout_s=timeout_s, what=f"lag of {self.group} is 0")

    def options(self, **more: Any) -> dict[str, str]:
        """Return the source's options; underscores in names stand for dots."""
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "subscribe": self.topic,
            **{name.replace("_", "."): str(value) for name, value in more.items()},
        }
