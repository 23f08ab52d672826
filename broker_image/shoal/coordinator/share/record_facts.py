"""Facts of single records for `selection`: key, due time, priority and tenant.

Only groups with key order, delay, priority or fairness decode batches, and each batch once, when it
enters the window. A record becomes four numbers and the name of its tenant. A header without the
expected number is ignored and counted.
"""

from __future__ import annotations

import struct

from shoal.coordinator.share import compiled
from shoal.coordinator.share.tenants import NO_TENANT, make_tenant_name
from shoal.record.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    read_header,
)
from shoal.record.compression import EXPANDED_BYTES_MAX, OutputFull
from shoal.record.layout import OFFSETS, build_format
from shoal.record.records import Span, decompress_records, read_headers

#: Epoch milliseconds before which a record is not to be delivered.
DELIVER_AT = "shoal.deliver.at"
#: Milliseconds behind the record's timestamp, for the same.
DELIVER_AFTER = "shoal.deliver.after"
#: Priorities are 0 to this; what is above counts as this.
PRIORITY_MAX = 9
#: Attributes, last offset delta and number of records in a batch's header, and their position.
_COUNTS = struct.Struct(build_format("attributes", "last_offset_delta", "record_count"))
_COUNTS_AT = OFFSETS["attributes"]
#: The work of a byte of headers in bytes. Python reads them, and a header may take two bytes.
HEADER_COST = 16
_NO_LIMIT = 1 << 62
#: Digits that a number in a header may have.
_DIGITS_MAX = 18


#: One record: its offset, a hash of its key (0 without one), when it is due in epoch milliseconds
#: (0 for at once), its priority, its tenant (empty without one). A plain tuple, because each record
#: that is read makes one.
Fact = tuple[int, int, int, int, bytes]


class HeaderReader:
    """Reads the headers of a group's records, and counts invalid ones."""

    __slots__ = (
        "clamped",
        "delay_max_ms",
        "invalid",
        "now_ms",
        "priority_header",
        "tenant_header",
    )

    def __init__(self, delay_max_ms: int, priority_header: str, tenant_header: str = "") -> None:
        #: Maximum delay of the group in milliseconds; 0 without delays.
        self.delay_max_ms = delay_max_ms
        self.priority_header = priority_header
        self.tenant_header = tenant_header
        #: The time of the scan: records that are due by then are not delayed.
        self.now_ms = 0
        #: Headers that held no number, and delays beyond the maximum.
        self.invalid = self.clamped = 0

    def copy(self) -> HeaderReader:
        """Return a reader for another thread, without counts."""
        reader = HeaderReader(self.delay_max_ms, self.priority_header, self.tenant_header)
        reader.now_ms = self.now_ms
        return reader

    def add_counts(self, reader: HeaderReader) -> None:
        """Add the counts of a reader for another thread."""
        self.invalid += reader.invalid
        self.clamped += reader.clamped

    def read(
        self, headers: tuple[tuple[str, bytes | None], ...], timestamp_ms: int
    ) -> tuple[int, int, bytes]:
        """Return the due time of a record (0 for now), its priority, and its tenant.

        A header that comes twice counts as it was written last.
        """
        at_ms = after_ms = priority = None
        tenant = NO_TENANT
        for name, value in headers:
            if self.delay_max_ms and name == DELIVER_AT:
                at_ms = self._parse_number(value)
            elif self.delay_max_ms and name == DELIVER_AFTER:
                after_ms = self._parse_number(value)
            elif name == self.priority_header:
                priority = self._parse_number(value)
            if name == self.tenant_header and value is not None:
                tenant = make_tenant_name(value)
        if at_ms is None and after_ms is not None:
            at_ms = max(timestamp_ms, 0) + after_ms
        due_ms = 0
        if at_ms is not None and at_ms > self.now_ms:
            due_ms = self._limit_due_ms(at_ms, timestamp_ms)
        return due_ms, min(max(priority or 0, 0), PRIORITY_MAX), tenant

    def _limit_due_ms(self, due_ms: int, timestamp_ms: int) -> int:
        """Limit a due time to the maximum delay.

        The limit counts from the record's timestamp, so that a restart does not extend it.
        """
        if due_ms <= self.now_ms + self.delay_max_ms:
            return due_ms
        self.clamped += 1
        latest_ms = min(timestamp_ms, self.now_ms) + self.delay_max_ms
        return latest_ms if latest_ms > self.now_ms else 0

    def _parse_number(self, value: bytes | None) -> int | None:
        try:
            if value is None or len(value) > _DIGITS_MAX or b"_" in value:
                raise ValueError
            return int(value)
        except ValueError:
            self.invalid += 1
            return None


class LargeBatchError(Exception):
    """Reading a batch takes too long for one turn of an event loop."""


class BatchFacts:
    """The facts of one batch in log order, read some records at a time.

    Between two reads it has only its position, not the expanded records: a few bytes from a client
    may expand to megabytes, for each of its groups. Key hashes differ between processes and are
    never persisted. `headers` is None if the group uses no header. With `tenants`, keys are the
    names of tenants.
    """

    __slots__ = ("_at", "_data", "_header", "_keys", "_place", "_read", "_tenants", "cost_bytes")

    def __init__(self, data: Buffer, position: int, *, keys: bool, tenants: bool = False) -> None:
        self._data, self._at, self._keys, self._tenants = data, position, keys, tenants
        self._header: BatchHeader | None = None
        #: Where the next record begins in the expanded records, and the number of those before.
        self._place = self._read = 0
        #: The work of all reads, in bytes.
        self.cost_bytes = 0

    @property
    def is_read(self) -> bool:
        """Whether all records were returned."""
        return self._header is not None and self._read >= self._header.record_count

    def take(
        self, count: int, headers: HeaderReader | None, cost_max: int | None = None
    ) -> list[Fact]:
        """Return the facts of up to `count` further records; none at the end of the batch.

        With `cost_max` it stops after about that much work, or raises `LargeBatchError` if it
        cannot return a record for that. Raises `CorruptBatch` if the next record is damaged.
        """
        header = self._header = self._header or read_header(self._data, self._at)
        body, cost_left = self._expand(header, cost_max)
        facts: list[Fact] = []
        try:
            while len(facts) < count and not self.is_read:
                fact, place, cost = self._read_fact(header, body, headers, cost_left)
                facts.append(fact)
                self._place, self._read = place, self._read + 1
                self.cost_bytes += cost
                cost_left -= cost
        except LargeBatchError:
            if not facts:
                raise
        except (CorruptBatch, IndexError) as error:
            if not facts:
                raise CorruptBatch(str(error) or "the records end early") from None
        return facts

    def _expand(self, header: BatchHeader, cost_max: int | None) -> tuple[bytes, int]:
        """Return the records, and how much work may follow. Raises `LargeBatchError`."""
        if not header.compression or cost_max is None:
            body = decompress_records(self._data, self._at, header)
            return body, _NO_LIMIT if cost_max is None else cost_max
        try:
            records = decompress_records(self._data, self._at, header, bytes_max=cost_max)
        except OutputFull:
            raise LargeBatchError from None
        self.cost_bytes += len(records)
        return records, cost_max - len(records)

    def _read_fact(
        self, header: BatchHeader, body: bytes, headers: HeaderReader | None, cost_max: int
    ) -> tuple[Fact, int, int]:
        """Return the next fact, where its record ends, and the work beyond expanding it. Raises
        `LargeBatchError` if that exceeds `cost_max`."""
        size, place = _read_varint(body, self._place)
        end = place + size
        if size < 6 or end > len(body):
            raise CorruptBatch(f"a record of {size} bytes where {len(body) - place} are left")
        timestamp, place = _read_varint(body, place + 1)
        delta, place = _read_varint(body, place)
        key_size, place = _read_varint(body, place)
        key = cost = 0
        tenant = NO_TENANT
        if key_size >= 0:
            if self._keys:
                key = hash(body[place : place + key_size]) or 1
            if self._tenants:
                tenant = make_tenant_name(body[place : place + key_size])
            place += key_size
        due_ms = priority = 0
        if headers is not None:
            value_size, place = _read_varint(body, place)
            place += max(value_size, 0)
            if body[place]:
                cost = (end - place) * HEADER_COST
                if cost > cost_max:
                    raise LargeBatchError
                span = Span(place, end, 0, 0, 0, 0, place, 0)
                append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
                timestamp_ms = (
                    header.max_timestamp if append_time else header.base_timestamp + timestamp
                )
                found = headers.read(read_headers(body, span), timestamp_ms)
                due_ms, priority, named = found
                tenant = named or tenant
        return (header.base_offset + delta, key, due_ms, priority, tenant), end, cost


def compute_key_hashes(
    data: bytes, position: int, end: int, bytes_max: int = EXPANDED_BYTES_MAX
) -> tuple[list[int] | None, int]:
    """Return the key hashes of the batch in `data[at:end]`, one for each offset, and the bytes to
    which it expanded.

    It takes a fourth of the time of `BatchFacts`. There are no hashes if offsets are missing, the
    batch is corrupt, or it expands to more than `bytes_max` bytes; then the caller uses
    `BatchFacts`.
    """
    opened, expanded = open_dense_batch(data, position, end, bytes_max)
    if opened is None:
        return None, expanded
    body, begin, end, count = opened
    hashes = _hash_keys if compiled.native is None else compiled.native.hashes
    return hashes(body, begin, end, count), expanded


def open_dense_batch(
    data: bytes, position: int, end: int, bytes_max: int
) -> tuple[tuple[bytes, int, int, int] | None, int]:
    """Return the records of the batch in `data[position:end]` as `body[begin:end]` with their
    number, and the bytes to which it expanded.

    There are no records if offsets are missing, the batch is corrupt, or it expands to more than
    `bytes_max` bytes.
    """
    attributes, last_delta, count = _COUNTS.unpack_from(data, position + _COUNTS_AT)
    if count != last_delta + 1:
        return None, 0
    if not attributes & COMPRESSION_MASK:
        return (data, position + HEADER_SIZE, end, count), 0
    try:
        header = read_header(data, position)
        records = decompress_records(data, position, header, bytes_max=bytes_max)
    except CorruptBatch:
        return None, 0
    return (records, 0, len(records), count), len(records)


def _hash_keys(body: bytes, begin: int, end: int, count: int) -> list[int] | None:
    """Return the key hashes of `count` records in `body[begin:end]`, as `compute_key_hashes`
    does."""
    keys: list[int] = []
    append = keys.append
    try:
        for twice in range(0, 2 * count, 2):  # Zigzag values stay doubled: odd is negative.
            size = body[begin]
            if size < 0x80:
                place = begin + 2
            elif body[begin + 1] < 0x80:
                size, place = size & 0x7F | body[begin + 1] << 7, begin + 3
            else:
                size, place = _read_varint(body, begin)
                size, place = size << 1, place + 1
            begin = place - 1 + (size >> 1)
            if size & 1 or size < 12 or begin > end:
                return None
            while body[place] & 0x80:  # The timestamp.
                place += 1
            delta, place = body[place + 1], place + 2
            if delta >= 0x80:
                delta, place = _read_varint(body, place - 1)
                delta <<= 1
            if delta != twice:
                return None
            size, place = body[place], place + 1
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
            else:
                size, place = _read_varint(body, place - 1)
            append(0 if size < 0 else hash(body[place : place + size]) or 1)
    except (IndexError, CorruptBatch):
        return None
    return keys


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    """Return the zigzag varint at `position`, and the position behind it. Most have one or two
    bytes."""
    byte = body[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = body[position + 1]
    if second < 0x80:
        value = byte & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), position + 2
    value, shift = byte & 0x7F, 0
    while True:
        position += 1
        shift += 7
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        if shift > 63:
            raise CorruptBatch("a varint of more than ten bytes")
