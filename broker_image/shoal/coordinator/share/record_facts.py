"""Facts of single records for `selection`: key, due time and priority.

Only groups with key order, delay or priority decode batches, and each batch once, when it enters
the window. A record becomes four numbers. A header without the expected number is ignored and
counted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from shoal.coordinator.share import compiled
from shoal.record.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    Buffer,
    CorruptBatch,
    TimestampType,
    read_header,
)
from shoal.record.layout import OFFSETS, format_of
from shoal.record.records import Span, headers_of, records_body

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Epoch milliseconds before which a record is not to be delivered.
DELIVER_AT = "shoal.deliver.at"
#: Milliseconds behind the record's timestamp, for the same.
DELIVER_AFTER = "shoal.deliver.after"
#: Priorities are 0 to this; what is above counts as this.
PRIORITY_MAX = 9
#: Attributes, last offset delta and number of records in a batch's header, and their position.
_COUNTS = struct.Struct(format_of("attributes", "last_offset_delta", "record_count"))
_COUNTS_AT = OFFSETS["attributes"]
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


def facts(data: Buffer, at: int, *, keys: bool, headers: HeaderReader | None) -> Iterator[Fact]:
    """Yield the facts of the batch at `at`, in log order. Raises `CorruptBatch`.

    Key hashes differ between processes and are never persisted. `headers` is None if the group uses
    no header.
    """
    header = read_header(data, at)
    body = records_body(data, at, header)
    base = header.base_offset
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    place, size_all = 0, len(body)
    try:
        for _ in range(header.record_count):
            size, place = _varint(body, place)
            end = place + size
            if size < 6 or end > size_all:
                raise CorruptBatch(f"a record of {size} bytes where {size_all - place} are left")
            timestamp, place = _varint(body, place + 1)
            delta, place = _varint(body, place)
            key_size, place = _varint(body, place)
            key = 0
            if key_size >= 0:
                if keys:
                    key = hash(body[place : place + key_size]) or 1
                place += key_size
            due_ms = priority = 0
            if headers is not None:
                value_size, place = _varint(body, place)
                place += max(value_size, 0)
                if body[place]:
                    span = Span(place, end, 0, 0, 0, 0, place, 0)
                    timestamp_ms = (
                        header.max_timestamp if append_time else header.base_timestamp + timestamp
                    )
                    due_ms, priority = headers.read(headers_of(body, span), timestamp_ms)
            yield base + delta, key, due_ms, priority
            place = end
    except IndexError:
        raise CorruptBatch("the records end early") from None


def key_hashes(data: bytes, at: int, end: int) -> list[int] | None:
    """Return the key hashes of the batch in `data[at:end]`, one for each offset.

    It takes a fourth of the time of `facts`. Return None if offsets are missing or the batch is
    corrupt; then the caller uses `facts`.
    """
    attributes, last_delta, count = _COUNTS.unpack_from(data, at + _COUNTS_AT)
    if count != last_delta + 1:
        return None
    body, begin = data, at + HEADER_SIZE
    if attributes & COMPRESSION_MASK:
        try:
            body, begin = records_body(data, at, read_header(data, at)), 0
        except CorruptBatch:
            return None
        end = len(body)
    if compiled.native is not None:
        return compiled.native.hashes(body, begin, end, count)
    return _key_hashes(body, begin, end, count)


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
