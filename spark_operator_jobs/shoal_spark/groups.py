"""The state of share groups and their dead letters as DataFrames.

    spark.read.format("sharegroup-lag").option("kafka.bootstrap.servers", …)
    spark.read.format("sharegroup-dead-letters").option("topic", "dlq.images")…

The broker reports the lag (KIP-1226): records not yet settled, including those in flight. A dead
letter is a record of the group's dead-letter topic (KIP-1191). Its `__dlq.errors.*` headers have
its source position and reason. Both sources read the present state once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from shoal_spark.options import ConnectionOptions, GroupOptions, InvalidOption, TopicOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

LAG = "group string, topic string, partition int, startOffset long, endOffset long, lag long"
DEAD_LETTERS = (
    "key binary, value binary, partition int, offset long, timestamp timestamp, group string, "
    "sourceTopic string, sourcePartition int, sourceOffset long, deliveryCount int, reason string, "
    "headers array<struct<key:string,value:binary>>"
)
PREFIX = "__dlq.errors."


class LagReader(DataSourceReader):  # type: ignore[misc]
    """One task, which sends requests to the coordinators."""

    def __init__(self, options: GroupOptions) -> None:
        self.options = options

    def read(self, _partition: InputPartition) -> Iterator[tuple]:
        from shoal.client.admin.topics import OffsetSpec
        from shoal.client.errors import KafkaError

        from shoal_spark.range_reader import get_client

        client = get_client(self.options.connection)
        admin = client.admin
        groups = list(self.options.group_ids) or _list_share_groups(self.options.connection)
        for group, state in client.run(admin.share_groups.offsets(groups)).items():
            if isinstance(state, KafkaError):
                raise state
            ends = client.run(admin.topics.offsets(dict.fromkeys(state, int(OffsetSpec.LATEST))))
            for partition, offset in sorted(state.items()):
                if isinstance(offset, KafkaError):
                    raise offset
                end = ends[partition]
                end_offset = -1 if isinstance(end, KafkaError) else end.offset
                yield group, *partition, offset.start_offset, end_offset, offset.lag


def _list_share_groups(connection: ConnectionOptions) -> list[str]:
    from shoal_spark.range_reader import get_client

    client = get_client(connection)
    return list(client.run(client.admin.groups.list(types=["share"])))


class LagSource(DataSource):  # type: ignore[misc]
    """`format("sharegroup-lag")`; option `group.id` names groups. Without it all are read."""

    @classmethod
    def name(cls) -> str:
        return "sharegroup-lag"

    def schema(self) -> str:
        GroupOptions.from_lag_options(self.options)
        return LAG

    # PySpark passes `schema` by name.
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return LagReader(GroupOptions.from_lag_options(self.options))


@dataclass(frozen=True)
class DeadLetterPartition(InputPartition):  # type: ignore[misc]
    """A partition of the dead-letter topic, up to its end at planning time."""

    partition: int
    first: int
    end: int


class DeadLetterReader(DataSourceReader):  # type: ignore[misc]
    """One task for each partition of the topic."""

    def __init__(self, options: TopicOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        from shoal.client.admin.topics import OffsetSpec
        from shoal.client.errors import KafkaError, expect
        from shoal.client.net.cluster import TopicPartition

        from shoal_spark.range_reader import get_client

        client, name = get_client(self.options.connection), self.options.topic
        try:
            topic = client.run(client.cluster.get_topic(name))
        except KafkaError as error:
            raise InvalidOption(f"option 'topic': {name!r}: {error}") from None
        places = [TopicPartition(name, index) for index in range(len(topic.partitions))]
        firsts, ends = (
            expect(client.run(client.admin.topics.offsets(dict.fromkeys(places, int(spec)))))
            for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        )
        return [DeadLetterPartition(p.partition, firsts[p].offset, ends[p].offset) for p in places]

    def read(self, partition: InputPartition) -> Iterator[tuple]:
        from shoal_spark.range_reader import get_client

        assert isinstance(partition, DeadLetterPartition)
        if partition.first >= partition.end:
            return
        client = get_client(self.options.connection)
        for chunk in client.fetch_range(
            self.options.topic, partition.partition, partition.first, partition.end - 1
        ):
            for record in chunk.records():
                yield _build_row(partition.partition, record)


def _build_row(partition: int, record: Any) -> tuple:
    import datetime

    from shoal.client.queues.timestamps import DATE_MS_MAX
    from shoal.record.records import format_header_key

    headers = {
        name.removeprefix(PREFIX): (value or b"").decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX)
    }
    own = [
        {"key": format_header_key(k), "value": v}
        for k, v in record.headers
        if not k.startswith(PREFIX)
    ]
    timestamp = None
    if 0 <= record.timestamp_ms <= DATE_MS_MAX:
        timestamp = datetime.datetime.fromtimestamp(record.timestamp_ms / 1000, datetime.UTC)
    numbers = [
        int(headers[name]) if name in headers else None
        for name in ("partition", "offset", "delivery.count")
    ]
    return (
        record.key,
        record.value,
        partition,
        record.offset,
        timestamp,
        headers.get("group"),
        headers.get("topic"),
        *numbers,
        headers.get("message"),
        own,
    )


class DeadLetterDataSource(DataSource):  # type: ignore[misc]
    """`format("sharegroup-dead-letters")`."""

    @classmethod
    def name(cls) -> str:
        return "sharegroup-dead-letters"

    def schema(self) -> str:
        TopicOptions.from_dead_letter_options(self.options)
        return DEAD_LETTERS

    # PySpark passes `schema` by name.
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return DeadLetterReader(TopicOptions.from_dead_letter_options(self.options))
