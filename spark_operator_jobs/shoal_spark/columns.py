"""Records of log batches as Arrow columns: the hot loop of the source.

It creates no object per record. It cuts keys and values out of the batch's bytes into lists, one
for each column, over enough log batches for a good Arrow batch. Producers write batches of a few
records, and an Arrow batch costs a millisecond between Python and the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
from shoal.client.net.batches import CorruptRecords
from shoal.client.queues.timestamps import DATE_MS_MAX
from shoal.record.batch import BatchHeader, CorruptBatch, check_crc
from shoal.record.records import (
    decompress_records,
    format_header_key,
    iter_spans,
    read_headers,
    wrap_int64,
)

from shoal_spark.outcome_files import DECODE_ERROR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_spark.ranges import OffsetRange

#: Maximum rows of an Arrow batch, and maximum bytes of its keys and values.
ROWS_MAX, BYTES_MAX = 10_000, 8 << 20
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP = pa.timestamp("us", tz="UTC")
#: The beginning of the year 1 in epoch milliseconds.
FIRST_MS = -62_135_596_800_000
_FIELDS = (
    ("key", pa.binary(), "binary"),
    ("value", pa.binary(), "binary"),
    ("topic", pa.string(), "string"),
    ("partition", pa.int32(), "int"),
    ("offset", pa.int64(), "long"),
    ("timestamp", _TIMESTAMP, "timestamp"),
    ("timestampType", pa.int32(), "int"),
    ("deliveryCount", pa.int32(), "int"),
)
_HEADERS_FIELD = ("headers", _HEADERS, "array<struct<key:string,value:binary>>")
_ERROR_FIELD = (DECODE_ERROR, pa.string(), "string")


def _list_fields(include_headers: bool, include_errors: bool) -> list[tuple[str, Any, str]]:
    more = ((_HEADERS_FIELD, include_headers), (_ERROR_FIELD, include_errors))
    return [*_FIELDS, *(column for column, is_included in more if is_included)]


def build_ddl(include_headers: bool, include_errors: bool) -> str:
    """Return the schema of the rows: the columns of Spark's Kafka source, and `deliveryCount`."""
    return ", ".join(
        f"{name} {spark}" for name, _, spark in _list_fields(include_headers, include_errors)
    )


def list_names(include_headers: bool, include_errors: bool) -> list[str]:
    return [name for name, _, _ in _list_fields(include_headers, include_errors)]


def build_schema(include_headers: bool, include_errors: bool) -> pa.Schema:
    fields = _list_fields(include_headers, include_errors)
    return pa.schema([(name, arrow) for name, arrow, _ in fields])


class ColumnBuffer:
    """Rows of one partition for the next Arrow batch."""

    def __init__(
        self, topic: str, partition: int, *, with_headers: bool, with_errors: bool
    ) -> None:
        self._topic = pa.scalar(topic, pa.string())
        self._partition = pa.scalar(partition, pa.int32())
        self._with_headers = with_headers
        self._with_errors = with_errors
        self._schema = build_schema(with_headers, with_errors)
        self._clear()

    def _clear(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.timestamps_ms: list[int] = []
        self.types: list[int] = []
        self.delivery_counts: list[int] = []
        self.headers: list[list[dict[str, Any]]] = []
        self.errors: list[str | None] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.offsets) >= ROWS_MAX or self._bytes >= BYTES_MAX

    def add(self, data: bytes, at: int, header: BatchHeader, r: OffsetRange) -> None:
        """Add the records of the batch at `at` that are in `r`.

        Raises `CorruptRecords` or `CorruptBatch` and then adds none of them.
        """
        if not check_crc(data, at, header):
            raise CorruptRecords(f"the batch at offset {header.base_offset} has a wrong CRC")
        body = decompress_records(data, at, header)
        before = len(self.offsets)
        try:
            if self._with_headers:
                self._read_all(body, header, r)
            else:
                self._read(body, header, r)
        except CorruptBatch:
            for column in (self.keys, self.values, self.offsets, self.timestamps_ms, self.headers):
                del column[before:]
            raise
        count = len(self.offsets) - before
        if header.timestamp_type:
            self.timestamps_ms[before:] = [header.max_timestamp] * count
        self.types += [int(header.timestamp_type)] * count
        self.delivery_counts += [r.delivery_count] * count
        self.errors += [None] * count
        self._bytes += len(body)

    def add_undecodable(self, header: BatchHeader, r: OffsetRange, error: str) -> None:
        """Add a row for each offset of a batch in `r`, whose records cannot be decoded."""
        offsets = range(max(r.first, header.base_offset), min(r.last, header.last_offset) + 1)
        count = len(offsets)
        self.keys += [None] * count
        self.values += [None] * count
        self.offsets += offsets
        self.timestamps_ms += [header.max_timestamp] * count
        self.types += [int(header.timestamp_type)] * count
        self.delivery_counts += [r.delivery_count] * count
        self.headers += [[] for _ in offsets] if self._with_headers else []
        self.errors += [error] * count

    def _read_all(self, body: bytes, header: BatchHeader, r: OffsetRange) -> None:
        """Read all columns with the general reader."""
        for span in iter_spans(body, header.record_count):
            offset = header.base_offset + span.offset_delta
            if r.first <= offset <= r.last:
                key_at, value_at = span.key_at, span.value_at
                key = None if span.key_size < 0 else body[key_at : key_at + span.key_size]
                value = None if span.value_size < 0 else body[value_at : value_at + span.value_size]
                self.keys.append(key)
                self.values.append(value)
                self.offsets.append(offset)
                self.timestamps_ms.append(header.base_timestamp + span.timestamp_delta)
                self.headers.append(
                    [{"key": format_header_key(k), "value": v} for k, v in read_headers(body, span)]
                )

    # One call per record or field would take more time than the branches do.
    def _read(self, body: bytes, header: BatchHeader, r: OffsetRange) -> None:  # noqa: C901
        """Read all columns except headers; see `shoal.record.records` for a record's layout.

        The loop is inlined, with the short forms of numbers first; bench/spark/run.py measures it.
        """
        base_offset, base_timestamp = header.base_offset, header.base_timestamp
        first, last = r.first, r.last
        keys, values = self.keys.append, self.values.append
        offsets, timestamps = self.offsets.append, self.timestamps_ms.append
        at, end = 0, len(body)
        try:
            for _ in range(header.record_count):
                size = body[at]
                at += 1
                if size < 0x80:
                    size >>= 1
                elif (high := body[at]) < 0x80:
                    size = (high << 7 | size & 0x7F) >> 1
                    at += 1
                else:
                    size, at = _read_long(body, at - 1)
                record_end = at + size
                # The attributes byte is unused.
                time_delta = body[at + 1]
                at += 2
                if time_delta < 0x80:
                    time_delta = time_delta >> 1 ^ -(time_delta & 1)
                else:
                    time_delta, at = _read_long(body, at - 1)
                offset = body[at]
                at += 1
                if offset < 0x80:
                    offset >>= 1
                else:
                    offset, at = _read_long(body, at - 1)
                offset += base_offset
                if offset > last:
                    return
                if offset >= first:
                    key_size = body[at]
                    at += 1
                    if key_size < 0x80:
                        key_size = key_size >> 1 ^ -(key_size & 1)
                    else:
                        key_size, at = _read_long(body, at - 1)
                    key = None
                    if key_size >= 0:
                        key = body[at : at + key_size]
                        at += key_size
                    value_size = body[at]
                    at += 1
                    if value_size < 0x80:
                        value_size = value_size >> 1 ^ -(value_size & 1)
                    elif (high := body[at]) < 0x80:
                        value_size = (high << 7 | value_size & 0x7F) >> 1 ^ -(value_size & 1)
                        at += 1
                    else:
                        value_size, at = _read_long(body, at - 1)
                    if at + value_size > record_end or record_end > end:
                        raise CorruptBatch(f"the record at offset {offset} passes its end")
                    keys(key)
                    values(body[at : at + value_size] if value_size >= 0 else None)
                    offsets(offset)
                    timestamps(base_timestamp + time_delta)
                at = record_end
        except IndexError:
            raise CorruptBatch("the records end early") from None

    def take(self) -> pa.RecordBatch:
        """Return the rows so far; there is at least one."""
        count = len(self.offsets)
        arrays: list[Any] = [
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            pa.repeat(self._topic, count),
            pa.repeat(self._partition, count),
            pa.array(self.offsets, pa.int64()),
            build_timestamps(self.timestamps_ms),
            pa.array(self.types, pa.int32()),
            pa.array(self.delivery_counts, pa.int32()),
        ]
        if self._with_headers:
            arrays.append(pa.array(self.headers, _HEADERS))
        if self._with_errors:
            arrays.append(pa.array(self.errors, pa.string()))
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def build_timestamps(timestamps_ms: list[int]) -> pa.Array:
    """Return a column of timestamps in UTC, null for those outside the years 1 to 9999.

    Python has no later dates, and microseconds overflow in the year 294247. Sums of a batch's
    timestamp and a record's delta wrap at 64 bits, as they do in the Java client.
    """
    representable: Sequence[int | None] = timestamps_ms
    if min(timestamps_ms) < FIRST_MS or max(timestamps_ms) > DATE_MS_MAX:
        wrapped = map(wrap_int64, timestamps_ms)
        representable = [
            timestamp_ms if FIRST_MS <= timestamp_ms <= DATE_MS_MAX else None
            for timestamp_ms in wrapped
        ]
    return pa.compute.multiply(pa.array(representable, pa.int64()), 1000).cast(_TIMESTAMP)


def _read_long(body: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of any length, and the offset after it."""
    value = shift = 0
    while shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
        shift += 7
    raise CorruptBatch("a varint of more than ten bytes")
