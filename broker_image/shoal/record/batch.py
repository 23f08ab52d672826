"""The record batch of magic 2 as bytes: its 61-byte header in one `Struct`, and its CRC-32C.

A batch stays bytes from the producer to the log and to the consumer. Its header is read and its CRC
is checked once. The base offset and the leader epoch, which the CRC does not cover, are set in
place. `layout` defines the fields:

    base_offset i64, batch_length i32 (of what follows it), leader_epoch i32, magic i8, crc u32,
    -- the CRC covers the rest --
    attributes i16, last_offset_delta i32, base_timestamp i64, max_timestamp i64, producer_id i64,
    producer_epoch i16, base_sequence i32, record_count i32, records

attributes: bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
(then base_timestamp is the horizon). Source: Kafka's documentation, "Record Batch"; KIP-98 and
KIP-534.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from shoal.record.crc import crc32c
from shoal.record.layout import COMPRESSION_MASK as COMPRESSION_MASK
from shoal.record.layout import CONTROL_BIT as CONTROL_BIT
from shoal.record.layout import CRC_FROM as CRC_FROM
from shoal.record.layout import DELETE_HORIZON_BIT as DELETE_HORIZON_BIT
from shoal.record.layout import FORMAT, OFFSETS, build_format
from shoal.record.layout import HEADER_SIZE as HEADER_SIZE
from shoal.record.layout import LOG_APPEND_TIME_BIT as LOG_APPEND_TIME_BIT
from shoal.record.layout import MAGIC as MAGIC
from shoal.record.layout import OVERHEAD as OVERHEAD
from shoal.record.layout import TRANSACTIONAL_BIT as TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from collections.abc import Iterator

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(FORMAT)
MAGIC_AT = OFFSETS["magic"]
RECORD_COUNT_AT = OFFSETS["record_count"]

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
SEQUENCE_MAX = 2**31 - 1

_PREFIX = struct.Struct(build_format("base_offset", "batch_length"))
_PLACE = struct.Struct(build_format("base_offset", "batch_length", "magic", "last_offset_delta"))
_EPOCH = struct.Struct(build_format("leader_epoch"))
_CRC = struct.Struct(build_format("crc"))
_ATTRIBUTES = struct.Struct(build_format("attributes"))
_MAX_TIMESTAMP = struct.Struct(build_format("max_timestamp"))
_LENGTH_AT = OFFSETS["batch_length"]
_EPOCH_AT = OFFSETS["leader_epoch"]
_CRC_AT = OFFSETS["crc"]
_ATTRIBUTES_AT = OFFSETS["attributes"]
_ATTRIBUTES_LOW_AT = _ATTRIBUTES_AT + 1
_MAX_TIMESTAMP_AT = OFFSETS["max_timestamp"]


class CorruptBatch(Exception):
    """The bytes are not a whole, valid batch of magic 2."""


class UnsupportedMagic(CorruptBatch):
    """A batch of magic 0 or 1, which Kafka 4 does not accept (KIP-896), or of an unknown magic."""


class TimestampType(IntEnum):
    """Who set the timestamps of a batch; the value is the attribute bit."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The fields of the header by Kafka's names, in wire order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.batch_length + OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record. Sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return advance_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> int:
        """The number of the codec (`shoal.record.compression`)."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & LOG_APPEND_TIME_BIT) >> 3)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop tombstones and markers; None before the first compaction."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def read_low_attributes(data: Buffer) -> int:
    """Return the attribute byte of the batch at the start of `data`; 0 if the data is too short."""
    return data[_ATTRIBUTES_LOW_AT] if len(data) > _ATTRIBUTES_LOW_AT else 0


def advance_sequence(sequence: int, by: int) -> int:
    """Return the sequence `by` records later, with Kafka's wrap from 2^31 - 1 to 0."""
    moved = sequence + by
    return moved - SEQUENCE_MAX - 1 if moved > SEQUENCE_MAX else moved


def read_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Return the header at `at`. Raises `CorruptBatch`. Does not check the CRC."""
    available = len(buf) - at
    if available > MAGIC_AT and buf[at + MAGIC_AT] != MAGIC:
        raise UnsupportedMagic(f"magic {buf[at + MAGIC_AT]} at byte {at}, only 2 is known")
    if available < HEADER_SIZE:
        raise CorruptBatch(f"{available} bytes at byte {at} are less than a batch header")
    header = BatchHeader._make(HEADER.unpack_from(buf, at))
    if header.batch_length < HEADER_SIZE - OVERHEAD:
        raise CorruptBatch(f"a batch length of {header.batch_length} at byte {at}")
    if header.last_offset_delta < 0 or header.base_offset < 0:
        raise CorruptBatch(
            f"offsets {header.base_offset} + {header.last_offset_delta} at byte {at}"
        )
    return header


def read_place(buf: Buffer, at: int) -> tuple[int, int]:
    """Return the offset behind the batch whose header is at `at`, and the position behind it, in
    half the time of `read_header`. Raises `CorruptBatch`."""
    base_offset, length, magic, delta = _PLACE.unpack_from(buf, at)
    if magic != MAGIC or length < HEADER_SIZE - OVERHEAD or delta < 0 or base_offset < 0:
        read_header(buf, at)  # Raises.
    return base_offset + delta + 1, at + length + OVERHEAD


def iter_headers(buf: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over (position, header) of each whole batch, up to a partial tail.

    Raises `CorruptBatch` if the bytes are not a batch.
    """
    end = len(buf)
    while end - at >= HEADER_SIZE:
        header = read_header(buf, at)
        if at + header.batch_length + OVERHEAD > end:
            return
        yield at, header
        at += header.batch_length + OVERHEAD


def check_crc(buf: Buffer, at: int, header: BatchHeader) -> bool:
    """Whether the whole batch is in `buf` and its CRC-32C is correct."""
    end = at + header.batch_length + OVERHEAD
    if end > len(buf):
        return False
    return crc32c(memoryview(buf)[at + CRC_FROM : end]) == header.crc


def build_prefix(buf: Buffer, at: int, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first 16 bytes of the batch for the log, which the CRC does not cover."""
    length = buf[at + _LENGTH_AT : at + OVERHEAD]
    return base_offset.to_bytes(8, "big") + bytes(length) + _EPOCH.pack(leader_epoch)


def assign(
    buf: bytearray | memoryview,
    at: int,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None = None,
) -> None:
    """Set offset and leader epoch. `append_time_ms` sets log-append time and a new CRC."""
    _PREFIX.pack_into(buf, at, base_offset, _PREFIX.unpack_from(buf, at)[1])
    _EPOCH.pack_into(buf, at + _EPOCH_AT, leader_epoch)
    if append_time_ms is not None:
        (attributes,) = _ATTRIBUTES.unpack_from(buf, at + _ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(buf, at + _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
        _MAX_TIMESTAMP.pack_into(buf, at + _MAX_TIMESTAMP_AT, append_time_ms)
        sign(buf, at)


def sign(buf: bytearray | memoryview, at: int = 0) -> None:
    """Set the CRC of the batch at `at`, which must be whole."""
    end = at + OVERHEAD + _PREFIX.unpack_from(buf, at)[1]
    _CRC.pack_into(buf, at + _CRC_AT, crc32c(memoryview(buf)[at + CRC_FROM : end]))


def seal(header: BatchHeader, records: Buffer) -> bytearray:
    """Build a batch from header fields and encoded (and compressed) records. The length and the
    CRC are computed."""
    out = bytearray(HEADER_SIZE)
    out += records
    HEADER.pack_into(out, 0, *header._replace(batch_length=len(out) - OVERHEAD, crc=0))
    sign(out)
    return out
