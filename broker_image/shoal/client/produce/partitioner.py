"""The partition of a key, computed with murmur2 as in the Java client.

All clients must use the same function. Otherwise records of one key reach two partitions.
"""

from __future__ import annotations

_M, _MASK = 0x5BD1E995, 0xFFFFFFFF
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash, unsigned."""
    size = len(data)
    h = _SEED ^ size
    aligned_size = size & ~3
    for position in range(0, aligned_size, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if size > aligned_size:
        h = (h ^ int.from_bytes(data[aligned_size:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def choose_partition(key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic with `partitions` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
