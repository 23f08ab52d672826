"""Producing from Spark: `write.format("kafka-topic")`, or `produce` inside `foreachBatch`.

Rows have `value`, and may have `key`, `headers` (as the source returns them), `topic` and
`partition`. The option `topic` has priority over the column. Each task has an idempotent producer
(KIP-98), so a retried request stores nothing twice. A repeated task or batch stores its rows again,
as with Spark's Kafka sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from shoal_spark.options import InvalidOption, TopicOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

COLUMNS = ("value", "key", "headers", "topic", "partition")
#: Rows passed to the client at a time.
CHUNK = 1000


def produce(frame: DataFrame, options: Mapping[str, str]) -> int:
    """Write a frame to its topic at once, without a query; return the number of rows."""
    parsed = TopicOptions.from_sink_options(options)
    names = select_columns(frame.columns, parsed)

    def map_batches(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        rows = (row for batch in batches for row in batch.to_pylist())
        yield pa.RecordBatch.from_pydict({"rows": pa.array([send(parsed, rows)], pa.int64())})

    counts = frame.select(*names).mapInArrow(map_batches, "rows long").collect()
    return sum(row["rows"] for row in counts)


def select_columns(frame_columns: Iterable[str], options: TopicOptions) -> list[str]:
    """Return the columns of a frame that make up a record. Raises `InvalidOption`."""
    names = list(frame_columns)
    if "value" not in names:
        raise InvalidOption(f"rows for a topic need a column 'value'; the columns are {names}")
    if not options.topic and "topic" not in names:
        raise InvalidOption("set the topic in option 'topic' or in a column 'topic'")
    return [name for name in COLUMNS if name in names]


def send(options: TopicOptions, rows: Iterator[Mapping[str, Any]]) -> int:
    """Produce rows and wait until all are stored; return their number."""
    from shoal_spark.range_reader import get_client

    client = get_client(options.connection)

    async def send_all() -> int:
        count = 0
        async with client.client.producer(compression=options.compression) as producer:
            while chunk := list(islice(rows, CHUNK)):
                futures = [
                    await producer.send(
                        options.topic or row["topic"],
                        _encode(row["value"]),
                        key=_encode(row.get("key")),
                        headers=[(h["key"], h["value"]) for h in row.get("headers") or ()],
                        partition=row.get("partition"),
                    )
                    for row in chunk
                ]
                await producer.flush()
                for future in futures:
                    await future
                count += len(chunk)
        return count

    return client.run(send_all())


def _encode(value: Any) -> bytes | None:
    """Encode strings as UTF-8, as Spark's Kafka sink does."""
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)


@dataclass(frozen=True)
class SentMessage(WriterCommitMessage):  # type: ignore[misc]
    rows: int


class _TopicWriterBase:
    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        self.options = options
        select_columns(schema.fieldNames(), options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return SentMessage(send(self.options, (row.asDict(recursive=True) for row in iterator)))


class TopicStreamWriter(_TopicWriterBase, DataSourceStreamWriter):  # type: ignore[misc]
    """For `writeStream`."""


class TopicWriter(_TopicWriterBase, DataSourceWriter):  # type: ignore[misc]
    """For `write`."""


class TopicSink(DataSource):  # type: ignore[misc]
    """`format("kafka-topic")`."""

    @classmethod
    def name(cls) -> str:
        return "kafka-topic"

    # PySpark passes `overwrite` by name.
    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        return TopicStreamWriter(TopicOptions.from_sink_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        return TopicWriter(TopicOptions.from_sink_options(self.options), schema)
