"""The stable hash of keys, by which key ranges divide the records of a partition.

It is XXH64 with seed 42, without the lowest bit, so 0 to 2^63-1. Spark's SQL function `xxhash64`
returns the same 64 bits for a binary column. It differs from the hashes by which producers choose
a partition, so the keys of one partition spread over all hashes. Records without a key have the
hash of their offset, as eight big-endian bytes (docs/adr/0090-hash-keys-by-xxh64.md).

The hash must never change for version 1. `native/key_hash.h` computes the same in C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.record import batch_validation

if TYPE_CHECKING:
    from shoal.record.batch import Buffer

_SEED = 42
_MASK = 2**64 - 1
_PRIME_1 = 0x9E3779B185EBCA87
_PRIME_2 = 0xC2B2AE3D27D4EB4F
_PRIME_3 = 0x165667B19E3779F9
_PRIME_4 = 0x85EBCA77C2B2AE63
_PRIME_5 = 0x27D4EB2F165667C5


def hash_key(key: Buffer) -> int:
    """Return the hash of a key, 0 to 2^63-1."""
    return (
        hash_key_in_python(key)
        if batch_validation.native is None
        else batch_validation.native.key_hash(key)
    )


def hash_record(key: Buffer | None, offset: int) -> int:
    """Return the hash of a record: that of its key, or of its offset if it has none."""
    return hash_key(offset.to_bytes(8, "big") if key is None else key)


def hash_key_in_python(key: Buffer) -> int:
    """Do the work of `key_hash` in Python."""
    size = len(key)
    at, value = 0, _SEED + _PRIME_5
    if size >= 32:
        at, value = _hash_stripes(key)
    value = (value + size) & _MASK
    while size - at >= 8:
        value ^= _mix(0, int.from_bytes(key[at : at + 8], "little"))
        value = (_rotate(value, 27) * _PRIME_1 + _PRIME_4) & _MASK
        at += 8
    if size - at >= 4:
        value ^= int.from_bytes(key[at : at + 4], "little") * _PRIME_1 & _MASK
        value = (_rotate(value, 23) * _PRIME_2 + _PRIME_3) & _MASK
        at += 4
    for byte in key[at:]:
        value = _rotate(value ^ (byte * _PRIME_5 & _MASK), 11) * _PRIME_1 & _MASK
    value = (value ^ value >> 33) * _PRIME_2 & _MASK
    value = (value ^ value >> 29) * _PRIME_3 & _MASK
    return (value ^ value >> 32) >> 1


def _hash_stripes(key: Buffer) -> tuple[int, int]:
    """Return the end of the last whole stripe of 32 bytes, and the hash up to it."""
    sums = [_SEED + _PRIME_1 + _PRIME_2, _SEED + _PRIME_2, _SEED, _SEED - _PRIME_1]
    end = len(key) // 32 * 32
    for at in range(0, end, 8):
        number = at // 8 % 4
        sums[number] = _mix(sums[number], int.from_bytes(key[at : at + 8], "little"))
    value = sum(_rotate(s, bits) for s, bits in zip(sums, (1, 7, 12, 18), strict=True))
    for lane_sum in sums:
        value = ((value & _MASK ^ _mix(0, lane_sum)) * _PRIME_1 + _PRIME_4) & _MASK
    return end, value


def _mix(before: int, lane: int) -> int:
    return _rotate((before + lane * _PRIME_2) & _MASK, 31) * _PRIME_1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
