"""The executors' side of the source of consumer groups: one key range of one partition a task.

It is stateless except for the client. Offsets and hashes alone decide what a task reads, so a batch
that runs again has the same rows in the same tasks. The broker leaves out the records of other
ranges, and the client checks each record by the same hash.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from shoal.client.errors import KafkaError
from shoal.client.net.batches import CorruptRecords, Isolation
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch
from shoal.record.key_ranges import KeyRanges
from shoal.record.records import format_header_key

from shoal_spark.columns import build_timestamps
from shoal_spark.range_reader import DataLoss, get_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.client.consume.fetcher import FetchedBatches
    from shoal.record.records import Record

    from shoal_spark.options import KeyRangeOptions

log = logging.getLogger("shoal_spark")
#: Maximum rows of an Arrow batch, and maximum bytes of its keys and values.
ROWS_MAX, BYTES_MAX = 10_000, 8 << 20
_FIELDS = (
    ("key", pa.binary(), "binary"),
    ("value", pa.binary(), "binary"),
    ("topic", pa.string(), "string"),
    ("partition", pa.int32(), "int"),
    ("offset", pa.int64(), "long"),
    ("timestamp", pa.timestamp("us", tz="UTC"), "timestamp"),
)
_HEADERS = (
    "headers",
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "array<struct<key:string,value:binary>>",
)
_GONE = (
    ErrorCode.offset_out_of_range,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
)


def _list_fields(include_headers: bool) -> tuple[tuple[str, Any, str], ...]:
    return (*_FIELDS, _HEADERS) if include_headers else _FIELDS


def build_ddl(include_headers: bool) -> str:
    """Return the schema of the rows."""
    return ", ".join(f"{name} {spark}" for name, _, spark in _list_fields(include_headers))


def list_names(include_headers: bool) -> list[str]:
    return [name for name, _, _ in _list_fields(include_headers)]


@dataclass(frozen=True)
class KeyRangeTask(InputPartition):  # type: ignore[misc]
    """The offsets `first` to `last`, both inclusive, of range `number` of `ranges`, from 1 on."""

    topic: str
    partition: int
    first: int
    last: int
    number: int
    ranges: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def key_ranges(self) -> dict[TopicPartition, KeyRanges]:
        """What to fetch. All keys are a plain fetch, which each broker serves."""
        if self.ranges == 1:
            return {}
        return {self.topic_partition: KeyRanges.from_part(self.number, self.ranges)}


def read(options: KeyRangeOptions, task: KeyRangeTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in the order of their offsets. Raises `DataLoss`."""
    rows = _RowBuffer(task, options)
    for chunk in _iterate_chunks(options, task):
        try:
            for record in chunk.records():
                rows.add(record)
                if rows.is_full:
                    yield rows.take()
        except (CorruptRecords, CorruptBatch) as error:
            _report_loss(options, task, chunk.first, f"cannot be decoded: {error}")
    if rows.records:
        yield rows.take()


def _iterate_chunks(options: KeyRangeOptions, task: KeyRangeTask) -> Iterator[FetchedBatches]:
    """Fetch the task's offsets, and nothing after them."""
    client = get_client(options.connection)
    isolation = Isolation.READ_COMMITTED if options.read_committed else Isolation.READ_UNCOMMITTED
    timeout_s = client.cluster.settings.retry_timeout_ms / 1000
    offset = task.first
    deadline = time.monotonic() + timeout_s
    while offset <= task.last:
        # Records of the range may end before the task does: the broker must not wait for more.
        results = client.run(
            client.fetcher.poll(
                {task.topic_partition: offset},
                min_bytes=0,
                isolation=isolation,
                key_ranges=task.key_ranges,
            )
        )
        result = results.get(task.topic_partition)
        if isinstance(result, KafkaError):
            if result.code not in _GONE:
                raise result
            _report_loss(options, task, offset, f"are gone: {result}")
            start = client.run(_fetch_log_start(client, task.topic_partition))
            if not offset < start <= task.last:
                return
            offset = start
        elif result is not None:
            yield replace(result, last=task.last)
            offset = result.next_offset
            deadline = time.monotonic() + timeout_s
        elif time.monotonic() > deadline:
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"the leader of {task.topic_partition} returned no record at offset {offset}, "
                "below its end at "
                f"the start of the batch, for {timeout_s:.0f} s (kafka.default.api.timeout.ms)",
            )


def _report_loss(options: KeyRangeOptions, task: KeyRangeTask, offset: int, why: str) -> None:
    """Raise `DataLoss` unless data loss is allowed."""
    text = (
        f"rows of topic {task.topic!r} partition {task.partition}, offsets {offset} to "
        f"{task.last}, {why}"
    )
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}. Set failOnDataLoss to false to continue without them")
    log.warning("%s", text)


async def _fetch_log_start(client: Any, partition: TopicPartition) -> int:
    from shoal.client.admin.topics import OffsetSpec

    listed = (await client.admin.topics.offsets({partition: int(OffsetSpec.EARLIEST)}))[partition]
    return -1 if isinstance(listed, KafkaError) else int(listed.offset)


class _RowBuffer:
    """Records for the next Arrow batch."""

    def __init__(self, task: KeyRangeTask, options: KeyRangeOptions) -> None:
        self._task = task
        self._with_headers = options.include_headers
        fields = _list_fields(self._with_headers)
        self._schema = pa.schema([(name, arrow) for name, arrow, _ in fields])
        self.records: list[Record] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.records) >= ROWS_MAX or self._bytes >= BYTES_MAX

    def add(self, record: Record) -> None:
        self.records.append(record)
        self._bytes += len(record.key or b"") + len(record.value or b"")

    def take(self) -> pa.RecordBatch:
        """Return the rows so far; there is at least one."""
        rows, self.records, self._bytes = self.records, [], 0
        columns: list[Any] = [
            [r.key for r in rows],
            [r.value for r in rows],
            [self._task.topic] * len(rows),
            [self._task.partition] * len(rows),
            [r.offset for r in rows],
            build_timestamps([r.timestamp_ms for r in rows]),
        ]
        if self._with_headers:
            columns.append(
                [[{"key": format_header_key(k), "value": v} for k, v in r.headers] for r in rows]
            )
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
