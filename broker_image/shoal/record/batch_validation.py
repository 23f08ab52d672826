"""Validates the encoded records of a batch in one pass.

`validate_records` runs in C if `native/batch_validation.c` is compiled, and as
`validate_in_python` otherwise. Both return the same result for any input. The environment variable
`PURE_PYTHON=1` selects Python.
The log calls this for each batch that a client produces
(docs/adr/0051-validate-records-on-produce.md).
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from shoal.record.batch import NO_TIMESTAMP, Buffer

if TYPE_CHECKING:
    from types import ModuleType

native: ModuleType | None
try:
    from shoal.record import _record_native as native  # type: ignore[attr-defined,no-redef]
except ImportError:
    native = None
if os.environ.get("PURE_PYTHON") or not hasattr(native, "first_header_values"):
    native = None  # Or it was compiled from older sources.

#: Size of the smallest record after its length: attributes, two deltas, two lengths and a header
#: count, in bytes.
_RECORD_SIZE_MIN = 6
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


class Fault(IntEnum):
    """The first violated rule. The numbers are those of `native/batch_validation.c`."""

    SOUND = 0
    TOO_FEW = 1
    TRAILING = 2
    SIZE = 3
    VARINT = 4
    OFFSET = 5
    KEY = 6
    VALUE = 7
    HEADERS = 8
    HEADER_KEY = 9
    HEADER_VALUE = 10
    END = 11


#: The meaning of each fault, to follow "record 3 at byte 120 ".
MEANINGS = {
    Fault.TOO_FEW: "is missing: the data ends before it",
    Fault.TRAILING: "is not announced: there is data behind the last record",
    Fault.SIZE: "has a length that is too small or exceeds the data",
    Fault.VARINT: "has a varint that is too wide or not complete",
    Fault.OFFSET: "has an offset delta that is not its position in the batch",
    Fault.KEY: "has a key length that is negative or exceeds the record",
    Fault.VALUE: "has a value length that is negative or exceeds the record",
    Fault.HEADERS: "has a header count that is negative or exceeds the record",
    Fault.HEADER_KEY: "has a header key that is null or exceeds the record",
    Fault.HEADER_VALUE: "has a header value whose length is negative or exceeds the record",
    Fault.END: "has fields that do not end where its length says",
}


class BatchValidation(NamedTuple):
    """The result of a walk.

    `record` and `place` are the index and the first byte of the faulty record. Without a fault they
    are the numbers of records and bytes. `flags` holds (index, None) for a record that lacks a
    required key, and (index, timestamp) for a timestamp outside the bounds, up to `flags_max`
    entries. `flagged` counts all of them. `max_timestamp` is -1 if no record has a timestamp.
    """

    fault: int
    record: int
    place: int
    max_timestamp: int
    flags: list[tuple[int, int | None]]
    flagged: int


def validate_records(
    body: Buffer,
    count: int,
    *,
    base_timestamp: int,
    oldest: int = _LONG_MIN,
    newest: int = _LONG_MAX,
    keyed: bool = False,
    flags_max: int = 0,
) -> BatchValidation:
    """Check that exactly `count` well-formed records fill `body`, with offset deltas from 0.

    `oldest` and `newest` bound the timestamps in milliseconds; -1 (no timestamp) always passes.
    `keyed` flags records without a key. All numbers are signed 64-bit integers.
    """
    run = validate_in_python if native is None else native.walk
    return BatchValidation(*run(body, count, base_timestamp, oldest, newest, keyed, flags_max))


class _TornVarint(Exception):
    """A varint is too wide, or ends after its record."""


class _BrokenField(Exception):
    """The length of a field does not fit. The argument is the fault."""


def validate_in_python(
    body: Buffer,
    count: int,
    base_timestamp: int,
    oldest: int,
    newest: int,
    keyed: bool,
    flags_max: int,
) -> tuple[int, int, int, int, list[tuple[int, int | None]], int]:
    """Do the work of `validate_records` in Python. The result has the fields of
    `BatchValidation`."""
    flags: list[tuple[int, int | None]] = []
    at, total, flagged, latest = 0, len(body), 0, NO_TIMESTAMP
    for index in range(count):
        place = at
        if at == total:
            return Fault.TOO_FEW, index, place, latest, flags, flagged
        try:
            at, delta, keyless = _validate_record(body, at, total, index)
        except _TornVarint:
            return Fault.VARINT, index, place, latest, flags, flagged
        except _BrokenField as error:
            return error.args[0], index, place, latest, flags, flagged
        timestamp = base_timestamp + delta
        if not _LONG_MIN <= timestamp <= _LONG_MAX:
            timestamp = (timestamp + 2**63) % 2**64 - 2**63
        if timestamp > latest:
            latest = timestamp
        late = not oldest <= timestamp <= newest and timestamp != NO_TIMESTAMP
        if late or (keyless and keyed):
            flagged += 1
            if len(flags) < flags_max:
                flags.append((index, None if keyless and keyed else timestamp))
    fault = Fault.SOUND if at == total else Fault.TRAILING
    return fault, count, at, latest, flags, flagged


def _validate_record(body: Buffer, at: int, total: int, index: int) -> tuple[int, int, bool]:
    """Return the end, the timestamp delta, and whether the record at `at` lacks a key."""
    size, at = _read_varint(body, at, total, 32)
    if size < _RECORD_SIZE_MIN or size > total - at:
        raise _BrokenField(Fault.SIZE)
    end = at + size
    delta, at = _read_varint(body, at + 1, end, 64)
    offset, at = _read_varint(body, at, end, 32)
    if offset != index:
        raise _BrokenField(Fault.OFFSET)
    key_size, at = _read_varint(body, at, end, 32)
    at = _skip_field(at, end, key_size, Fault.KEY)
    size, at = _read_varint(body, at, end, 32)
    at = _skip_field(at, end, size, Fault.VALUE)
    if at + 1 != end or body[at]:
        _skip_headers(body, at, end)
    return end, delta, key_size < 0


def _skip_headers(body: Buffer, at: int, end: int) -> None:
    count, at = _read_varint(body, at, end, 32)
    if not 0 <= count <= end - at:
        raise _BrokenField(Fault.HEADERS)
    for _ in range(count):
        size, at = _read_varint(body, at, end, 32)
        at = _skip_field(at, end, size if size >= 0 else -2, Fault.HEADER_KEY)
        size, at = _read_varint(body, at, end, 32)
        at = _skip_field(at, end, size, Fault.HEADER_VALUE)
    if at != end:
        raise _BrokenField(Fault.END)


def _skip_field(at: int, end: int, size: int, fault: Fault) -> int:
    """Return the position behind a field of `size` bytes, where -1 is null."""
    if size < -1 or size > end - at:
        raise _BrokenField(fault)
    return at + size if size > 0 else at


def _read_varint(body: Buffer, at: int, end: int, bits: int) -> tuple[int, int]:
    """Return the zigzag varint at `at`, of at most `bits` bits, and the position behind it."""
    value = shift = 0
    while shift < bits and at < end:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise _TornVarint
