"""Facts of single records for `selection`: key, due time and priority.

Only groups with key order, delay or priority decode batches, and each batch once, when it enters
the window. A record becomes four numbers. A header without the expected number is ignored and
counted.
"""

from __future__ import annotations

import struct

from shoal.coordinator.share import compiled
from shoal.record.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    read_header,
)
from shoal.record.compression import EXPANDED_BYTES_MAX, OutputFull, decompress_into
from shoal.record.layout import OFFSETS, format_of
from shoal.record.records import Span, headers_of, records_body

#: Epoch milliseconds before which a record is not to be delivered.
DELIVER_AT = "shoal.deliver.at"
#: Milliseconds behind the record's timestamp, for the same.
DELIVER_AFTER = "shoal.deliver.after"
#: Priorities are 0 to this; what is above counts as this.
PRIORITY_MAX = 9
#: Attributes, last offset delta and number of records in a batch's header, and their position.
_COUNTS = struct.Struct(format_of("attributes", "last_offset_delta", "record_count"))
_COUNTS_AT = OFFSETS["attributes"]
#: The work of a byte of headers in bytes. Python reads them, and a header may take two bytes.
HEADER_COST = 16
_NO_LIMIT = 1 << 62
#: Digits that a number in a header may have.
_DIGITS_MAX = 18


#: One record: its offset, a hash of its key (0 without one), when it is due in epoch milliseconds
#: (0 for at once), its priority. A plain tuple, because each record that is read makes one.
Fact = tuple[int, int, int, int]


class HeaderReader:
    """Reads the headers of a group's records, and counts invalid ones."""

    __slots__ = ("clamped", "delay_max_ms", "invalid", "now_ms", "priority_header")

    def __init__(self, delay_max_ms: int, priority_header: str) -> None:
        #: Maximum delay of the group in milliseconds; 0 without delays.
        self.delay_max_ms = delay_max_ms
        self.priority_header = priority_header
        #: The time of the scan: records that are due by then are not delayed.
        self.now_ms = 0
        #: Headers that held no number, and delays beyond the maximum.
        self.invalid = self.clamped = 0

    def copy(self) -> HeaderReader:
        """Return a reader for another thread, without counts."""
        other = HeaderReader(self.delay_max_ms, self.priority_header)
        other.now_ms = self.now_ms
        return other

    def add_counts(self, other: HeaderReader) -> None:
        """Add the counts of a reader for another thread."""
        self.invalid += other.invalid
        self.clamped += other.clamped

    def read(
        self, found: tuple[tuple[str, bytes | None], ...], timestamp_ms: int
    ) -> tuple[int, int]:
        """Return the due time of a record (0 for now), and its priority."""
        at_ms = after_ms = priority = None
        for name, value in found:
            if self.delay_max_ms and name == DELIVER_AT:
                at_ms = self._number(value)
            elif self.delay_max_ms and name == DELIVER_AFTER:
                after_ms = self._number(value)
            elif name == self.priority_header:
                priority = self._number(value)
        if at_ms is None and after_ms is not None:
            at_ms = max(timestamp_ms, 0) + after_ms
        due_ms = 0
        if at_ms is not None and at_ms > self.now_ms:
            due_ms = self._within_maximum(at_ms, timestamp_ms)
        return due_ms, min(max(priority or 0, 0), PRIORITY_MAX)

    def _within_maximum(self, due_ms: int, timestamp_ms: int) -> int:
        """Limit a due time to the maximum delay.

        The limit counts from the record's timestamp, so that a restart does not extend it.
        """
        if due_ms <= self.now_ms + self.delay_max_ms:
            return due_ms
        self.clamped += 1
        latest_ms = min(timestamp_ms, self.now_ms) + self.delay_max_ms
        return latest_ms if latest_ms > self.now_ms else 0

    def _number(self, value: bytes | None) -> int | None:
        try:
            if value is None or len(value) > _DIGITS_MAX or b"_" in value:
                raise ValueError
            return int(value)
        except ValueError:
            self.invalid += 1
            return None


class LargeBatch(Exception):
    """Reading a batch takes too long for one turn of an event loop."""


class BatchFacts:
    """The facts of one batch in log order, read some records at a time.

    Between two reads it has only its position, not the expanded records: a few bytes from a client
    may expand to megabytes, for each of its groups. Key hashes differ between processes and are
    never persisted. `headers` is None if the group uses no header.
    """

    __slots__ = ("_at", "_data", "_header", "_keys", "_place", "_read", "cost_bytes")

    def __init__(self, data: Buffer, at: int, *, keys: bool) -> None:
        self._data, self._at, self._keys = data, at, keys
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

        With `cost_max` it stops after about that much work, or raises `LargeBatch` if it cannot
        return a record for that. Raises `CorruptBatch` if the next record is damaged.
        """
        header = self._header = self._header or read_header(self._data, self._at)
        body, left = self._expand(header, cost_max)
        found: list[Fact] = []
        try:
            while len(found) < count and not self.is_read:
                fact, place, cost = self._fact(header, body, headers, left)
                found.append(fact)
                self._place, self._read = place, self._read + 1
                self.cost_bytes += cost
                left -= cost
        except LargeBatch:
            if not found:
                raise
        except (CorruptBatch, IndexError) as error:
            if not found:
                raise CorruptBatch(str(error) or "the records end early") from None
        return found

    def _expand(self, header: BatchHeader, cost_max: int | None) -> tuple[bytes, int]:
        """Return the records, and how much work may follow. Raises `LargeBatch`."""
        if not header.compression or cost_max is None:
            body = records_body(self._data, self._at, header)
            return body, _NO_LIMIT if cost_max is None else cost_max
        found = expand_within(self._data, self._at, header, cost_max)
        if found is None:
            raise LargeBatch
        self.cost_bytes += len(found)
        return found, cost_max - len(found)

    def _fact(
        self, header: BatchHeader, body: bytes, headers: HeaderReader | None, cost_max: int
    ) -> tuple[Fact, int, int]:
        """Return the next fact, where its record ends, and the work beyond expanding it. Raises
        `LargeBatch` if that exceeds `cost_max`."""
        size, place = _varint(body, self._place)
        end = place + size
        if size < 6 or end > len(body):
            raise CorruptBatch(f"a record of {size} bytes where {len(body) - place} are left")
        timestamp, place = _varint(body, place + 1)
        delta, place = _varint(body, place)
        key_size, place = _varint(body, place)
        key = cost = 0
        if key_size >= 0:
            if self._keys:
                key = hash(body[place : place + key_size]) or 1
            place += key_size
        due_ms = priority = 0
        if headers is not None:
            value_size, place = _varint(body, place)
            place += max(value_size, 0)
            if body[place]:
                cost = (end - place) * HEADER_COST
                if cost > cost_max:
                    raise LargeBatch
                span = Span(place, end, 0, 0, 0, 0, place, 0)
                append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
                timestamp_ms = (
                    header.max_timestamp if append_time else header.base_timestamp + timestamp
                )
                due_ms, priority = headers.read(headers_of(body, span), timestamp_ms)
        return (header.base_offset + delta, key, due_ms, priority), end, cost


def expand_within(data: Buffer, at: int, header: BatchHeader, bytes_max: int) -> bytes | None:
    """Return the records of the batch at `at`, or None if they expand to more than `bytes_max`
    bytes. Raises `CorruptBatch`."""
    end = at + header.size
    if end > len(data):
        raise CorruptBatch(f"{len(data) - at} bytes of a batch of {header.size}")
    raw = memoryview(data)[at + HEADER_SIZE : end]
    # Most batches expand less than fourfold, and new memory of the whole size has to be zeroed.
    for room in (min(bytes_max, max(4 * len(raw), 4096)), bytes_max):
        out = bytearray(room)
        try:
            with memoryview(out) as space:
                return bytes(space[: decompress_into(header.compression, raw, space)])
        except OutputFull:
            continue
    return None


def key_hashes(
    data: bytes, at: int, end: int, bytes_max: int = EXPANDED_BYTES_MAX
) -> tuple[list[int] | None, int]:
    """Return the key hashes of the batch in `data[at:end]`, one for each offset, and the bytes to
    which it expanded.

    It takes a fourth of the time of `BatchFacts`. There are no hashes if offsets are missing, the
    batch is corrupt, or it expands to more than `bytes_max` bytes; then the caller uses
    `BatchFacts`.
    """
    attributes, last_delta, count = _COUNTS.unpack_from(data, at + _COUNTS_AT)
    if count != last_delta + 1:
        return None, 0
    body, begin, expanded = data, at + HEADER_SIZE, 0
    if attributes & COMPRESSION_MASK:
        try:
            found = expand_within(data, at, read_header(data, at), bytes_max)
        except CorruptBatch:
            return None, 0
        if found is None:
            return None, 0
        body, begin, end = found, 0, len(found)
        expanded = end
    hashes = _key_hashes if compiled.native is None else compiled.native.hashes
    return hashes(body, begin, end, count), expanded


def _key_hashes(body: bytes, begin: int, end: int, count: int) -> list[int] | None:
    """Return the key hashes of `count` records in `body[begin:end]`, as `key_hashes` does."""
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
                size, place = _varint(body, begin)
                size, place = size << 1, place + 1
            begin = place - 1 + (size >> 1)
            if size & 1 or size < 12 or begin > end:
                return None
            while body[place] & 0x80:  # The timestamp.
                place += 1
            delta, place = body[place + 1], place + 2
            if delta >= 0x80:
                delta, place = _varint(body, place - 1)
                delta <<= 1
            if delta != twice:
                return None
            size, place = body[place], place + 1
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
            else:
                size, place = _varint(body, place - 1)
            append(0 if size < 0 else hash(body[place : place + size]) or 1)
    except (IndexError, CorruptBatch):
        return None
    return keys


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at `at`, and the position behind it. Most have one or two bytes."""
    byte = body[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    second = body[at + 1]
    if second < 0x80:
        value = byte & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), at + 2
    value, shift = byte & 0x7F, 0
    while True:
        at += 1
        shift += 7
        byte = body[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        if shift > 63:
            raise CorruptBatch("a varint of more than ten bytes")
