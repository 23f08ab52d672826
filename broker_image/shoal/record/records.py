"""The records of a batch, for compaction, coordinators, tools and clients.

A record has a length, attributes (0), timestamp delta, offset delta, key, value and headers. All
numbers are zigzag varints, and a length of -1 is null. Source: Kafka's documentation, "Record".
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from shoal.record.batch import (
    CONTROL_BIT,
    CRC_FROM,
    HEADER_SIZE,
    MAGIC,
    OVERHEAD,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    read_header,
    seal,
)
from shoal.record.compression import (
    EXPANDED_BYTES_MAX,
    Compression,
    compress,
    decompress,
)
from shoal.record.crc import crc32c
from shoal.record.layout import OFFSETS, build_format

#: The batch header in two parts: before the CRC's range, and inside it.
_NAMES = tuple(OFFSETS)
_UNSIGNED = struct.Struct(build_format(*_NAMES[: _NAMES.index("attributes")]))
_SIGNED = struct.Struct(build_format(*_NAMES[_NAMES.index("attributes") :]))
#: Keys and values. A key that is not UTF-8 keeps its bytes as lone surrogates, as Python's names of
#: files do (PEP 383); `encode_header_key` and `format_header_key` convert it.
RecordHeaders = tuple[tuple[str, bytes | None], ...]
#: (timestamp_ms, key, value, headers): a record for `build_batch`.
NewRecord = tuple[int, bytes | None, bytes | None, Iterable[tuple[str, bytes | None]]]


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


class Span(NamedTuple):
    """The positions of one record and its parts in the records' bytes. A size of -1 is null."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int


def decompress_records(
    buf: Buffer, at: int, header: BatchHeader, *, bytes_max: int = EXPANDED_BYTES_MAX
) -> bytes:
    """Return the decompressed records of the batch at `at`. Raises `CorruptBatch`, and
    `OutputFull` if compressed ones expand to more than `bytes_max` bytes."""
    end = at + header.size
    if end > len(buf):
        raise CorruptBatch(f"{len(buf) - at} bytes of a batch of {header.size}")
    raw = memoryview(buf)[at + HEADER_SIZE : end]
    return bytes(decompress(header.compression, raw, bytes_max))


def iter_spans(body: Buffer, count: int) -> Iterator[Span]:
    """Iterate over exactly `count` records that fill `body`. Raises `CorruptBatch` otherwise."""
    at = 0
    try:
        for _ in range(count):
            start = at
            size, at = _read_varint(body, at)
            end = at + size
            # Attributes, two deltas, two lengths and the header count take at least one byte each.
            if size < 6 or end > len(body):
                raise CorruptBatch(f"a record of {size} bytes where {len(body) - at} are left")
            timestamp_delta, at = _read_varint(body, at + 1)
            offset_delta, at = _read_varint(body, at)
            key_size, key_at = _read_varint(body, at)
            value_size, value_at = _read_varint(body, key_at + max(key_size, 0))
            if key_size < -1 or value_size < -1 or value_at + max(value_size, 0) >= end:
                raise CorruptBatch(f"a key of {key_size} and a value of {value_size} in {size}")
            yield Span(
                start, end, timestamp_delta, offset_delta, key_at, key_size, value_at, value_size
            )
            at = end
    except IndexError:
        raise CorruptBatch("the records end early") from None
    if at != len(body):
        raise CorruptBatch(f"{len(body) - at} bytes behind the last of {count} records")


def read_records(
    buf: Buffer,
    at: int = 0,
    *,
    bytes_max: int = EXPANDED_BYTES_MAX,
    offsets: Container[int] | None = None,
) -> Iterator[Record]:
    """Return the records of the batch at `at`, including control records; only those at `offsets`
    if that is not None.

    Does not check the CRC. The records may expand to `bytes_max` bytes. Raises `CorruptBatch`.
    """
    header = read_header(buf, at)
    body = decompress_records(buf, at, header, bytes_max=bytes_max)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for span in iter_spans(body, header.record_count):
        offset = base_offset + span.offset_delta
        if offsets is not None and offset not in offsets:
            continue
        yield Record(
            offset,
            header.max_timestamp
            if append_time
            else wrap_int64(base_timestamp + span.timestamp_delta),
            read_key(body, span),
            read_value(body, span),
            read_headers(body, span),
        )


def wrap_int64(number: int) -> int:
    """Return a sum or difference of 64-bit integers as Java has it: it wraps around."""
    return number if -(2**63) <= number < 2**63 else (number + 2**63) % 2**64 - 2**63


def read_key(body: bytes, span: Span) -> bytes | None:
    return None if span.key_size < 0 else body[span.key_at : span.key_at + span.key_size]


def read_value(body: bytes, span: Span) -> bytes | None:
    return None if span.value_size < 0 else body[span.value_at : span.value_at + span.value_size]


def read_headers(body: bytes, span: Span) -> RecordHeaders:
    """Return the headers of a record. Raises `CorruptBatch`."""
    at, end = span.value_at + max(span.value_size, 0), span.end
    try:
        count, at = _read_varint(body, at)
        if count == 0 and at == end:
            return ()
        if not 0 <= count <= end - at:
            raise CorruptBatch(f"{count} headers in {end - at} bytes")
        out = []
        for _ in range(count):
            size, at = _read_varint(body, at)
            key, at = body[at : at + size], at + size
            if size < 0 or at > end:
                raise CorruptBatch(f"a header key of {size} bytes")
            size, at = _read_varint(body, at)
            value = None if size < 0 else body[at : at + size]
            at += max(size, 0)
            if at > end:
                raise CorruptBatch(f"a header value of {size} bytes")
            out.append((key.decode(errors="surrogateescape"), value))
    except IndexError:
        raise CorruptBatch("the headers end early") from None
    if at != end:
        raise CorruptBatch(f"{end - at} bytes behind the headers")
    return tuple(out)


def count_headers(body: bytes, span: Span) -> int:
    """Return the number of a record's headers, without a look at them. Raises `CorruptBatch`."""
    try:
        return _read_varint(body, span.value_at + max(span.value_size, 0))[0]
    except IndexError:
        raise CorruptBatch("the headers end early") from None


def encode_header_key(key: str) -> bytes:
    """Return the bytes of a header key as they are on the wire."""
    return key.encode(errors="surrogateescape")


def format_header_key(key: str) -> str:
    """Return a header key to show: bytes that are not UTF-8 are replaced, as in Java clients."""
    return encode_header_key(key).decode(errors="replace")


def build_batch(
    records: Iterable[NewRecord],
    *,
    base_offset: int = 0,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    level: int | None = None,
) -> bytearray:
    """Build a batch of at least one record, with create time and its CRC."""
    codec = Compression.from_name(compression)
    out = bytearray()
    base_timestamp = max_timestamp = 0
    count = 0
    for timestamp_ms, key, value, record_headers in records:
        if count == 0:
            base_timestamp = max_timestamp = timestamp_ms
        elif timestamp_ms > max_timestamp:
            max_timestamp = timestamp_ms
        delta = wrap_int64(timestamp_ms - base_timestamp)
        put_record(out, delta, count, key, value, record_headers)
        count += 1
    if not count:
        raise ValueError("a batch has at least one record")
    attributes = codec | transactional * TRANSACTIONAL_BIT | control * CONTROL_BIT
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return seal(header, compress(codec, out, level))


def build_own_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    *,
    timestamp_ms: int,
    base_offset: int,
    leader_epoch: int,
) -> bytes:
    """Build a batch at `base_offset` from (key, value) records of the broker, without headers.

    The result equals that of `build_batch`, in a third of the time: 4 µs per record.
    """
    parts: list[bytes] = []
    for index, (key, value) in enumerate(records):
        head = b"\0\0" + _encode_varint(index) + _encode_varint(len(key)) + key
        if value is None:
            body = head + b"\x01\0"
        else:
            body = head + _encode_varint(len(value)) + value + b"\0"
        parts += (_encode_varint(len(body)), body)
    count = len(parts) // 2
    signed = b"".join(
        (_SIGNED.pack(0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count), *parts)
    )
    size = len(signed) + CRC_FROM - OVERHEAD
    return _UNSIGNED.pack(base_offset, size, leader_epoch, MAGIC, crc32c(signed)) + signed


def put_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    record_headers: Iterable[tuple[str, bytes | None]] = (),
) -> None:
    """Append one encoded record."""
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    if record_headers:
        pairs = list(record_headers)
        _put_varint(body, len(pairs))
        for name, content in pairs:
            _put_bytes(body, encode_header_key(name))
            _put_bytes(body, content)
    else:
        body.append(0)
    _put_varint(out, len(body))
    out += body


def put_span(out: bytearray, body: bytes, span: Span, timestamp_delta: int) -> None:
    """Append a record of `body` with another timestamp delta."""
    inner = bytearray(1)
    _put_varint(inner, timestamp_delta)
    _put_varint(inner, span.offset_delta)
    _put_bytes(inner, read_key(body, span))
    _put_bytes(inner, read_value(body, span))
    inner += body[span.value_at + max(span.value_size, 0) : span.end]
    _put_varint(out, len(inner))
    out += inner


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        _put_varint(out, len(value))
        out += value


def _encode_varint(value: int) -> bytes:
    """Return the zigzag varint of a number that is not negative."""
    if value < len(_SMALL_VARINTS):
        return _SMALL_VARINTS[value]
    out = bytearray()
    _put_varint(out, value)
    return bytes(out)


def _put_varint(out: bytearray, value: int) -> None:
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)


_SMALL_VARINTS = [
    bytes((x << 1,)) if x < 0x40 else bytes((x << 1 & 0x7F | 0x80, x >> 6)) for x in range(1 << 10)
]


def _read_varint(body: Buffer, at: int) -> tuple[int, int]:
    """Return the zigzag varint at `at` (up to ten bytes), and the position behind it."""
    byte = body[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise CorruptBatch("a varint of more than ten bytes")
