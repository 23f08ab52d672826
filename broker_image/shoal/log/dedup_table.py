"""The ids of one partition in memory, as a hash table of packed entries.

An entry is the digest of an id and the offset of its record, relative to the table's base. A bucket
is one `bytes` with its entries, in the order of the offsets. The table grows by one bucket at a
time (linear hashing), so no append pays for a growth of the whole. An id takes less than 16 bytes.

The lowest bits of a digest choose its bucket. Files (`dedup_file`) keep the same entries, ordered
by these bits, the lowest one first: so the buckets that a bucket is divided into by more bits, its
*cell*, are neighbours there.
"""

from __future__ import annotations

import sys

from shoal.record.dedup_ids import DIGEST_SIZE

OFFSET_SIZE = 5
ENTRY_SIZE = DIGEST_SIZE + OFFSET_SIZE
#: Offsets are below the base and this.
OFFSETS_MAX = 1 << 8 * OFFSET_SIZE
#: Bytes of a digest that choose its bucket.
HASH_SIZE = 4
#: Entries of a bucket on average, when one is split: 1 kB. More take less memory, and longer to
#: search and to copy.
_BUCKET_ENTRIES = 64


def find_entry(bucket: bytes, digest: bytes) -> int | None:
    """Return the relative offset in the last entry of a digest, or None."""
    at = bucket.rfind(digest)
    while at >= 0:
        if at % ENTRY_SIZE == 0:
            return int.from_bytes(bucket[at + DIGEST_SIZE : at + ENTRY_SIZE], "little")
        at = bucket.rfind(digest, 0, at + DIGEST_SIZE - 1)
    return None


class IdTable:
    """A hash table of ids. `base` is the offset from which those of entries count."""

    __slots__ = ("_buckets", "_entries", "_level", "_split", "_sweep", "base")

    def __init__(self, base: int) -> None:
        self.base = base
        self._buckets: list[bytes] = [b""]
        #: The table has 2^level + split buckets; those before `split` are divided by one more bit.
        self._level = self._split = self._sweep = 0
        self._entries = 0

    def __len__(self) -> int:
        """The number of entries, with those that have expired."""
        return self._entries

    @property
    def bits(self) -> int:
        """The most bits that `read_cell` knows."""
        return self._level

    @property
    def size_bytes(self) -> int:
        """The memory of the table in bytes."""
        return sys.getsizeof(self._buckets) + sum(map(sys.getsizeof, self._buckets))

    def find(self, digest: bytes) -> int | None:
        """Return the relative offset of the latest record with that id, or None."""
        return find_entry(self._buckets[self._find_place(digest)], digest)

    def add(self, digest: bytes, offset: int) -> None:
        """Add a record at a relative offset, which is not below any other."""
        place = self._find_place(digest)
        self._buckets[place] += digest + offset.to_bytes(OFFSET_SIZE, "little")
        self._entries += 1
        if self._entries > _BUCKET_ENTRIES * len(self._buckets):
            self._split_bucket()

    def read_cell(self, bits: int, position: int) -> bytes:
        """Return the entries whose lowest `bits` bits are `position`, which begins with the lowest
        one. Those of one digest are in the order of their offsets."""
        place = int(f"{position:0{bits}b}"[::-1], 2) if bits else 0
        return b"".join(self._buckets[place :: 1 << bits])

    def sweep(self, floor: int, count: int) -> None:
        """Remove the entries below a relative offset from the next buckets."""
        for _ in range(count):
            self._sweep = (self._sweep + 1) % len(self._buckets)
            self._remove_expired(self._sweep, floor)

    def _find_place(self, digest: bytes) -> int:
        number = int.from_bytes(digest[:HASH_SIZE], "little")
        place = number & ((1 << self._level) - 1)
        return place if place >= self._split else number & ((2 << self._level) - 1)

    def _remove_expired(self, place: int, floor: int) -> None:
        """Remove the entries of a bucket below the floor, which are its first ones."""
        bucket, end = self._buckets[place], 0
        while end < len(bucket):
            offset = bucket[end + DIGEST_SIZE : end + ENTRY_SIZE]
            if int.from_bytes(offset, "little") >= floor:
                break
            end += ENTRY_SIZE
        if end:
            self._buckets[place] = bucket[end:]
            self._entries -= end // ENTRY_SIZE

    def _split_bucket(self) -> None:
        """Divide the next bucket by one more bit of its digests."""
        bucket, bit = self._buckets[self._split], 1 << self._level
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        for at in range(0, len(bucket), ENTRY_SIZE):
            number = int.from_bytes(bucket[at : at + HASH_SIZE], "little")
            parts[number & bit != 0].append(bucket[at : at + ENTRY_SIZE])
        self._buckets[self._split] = b"".join(parts[0])
        self._buckets.append(b"".join(parts[1]))
        self._split += 1
        if self._split == bit:
            self._level, self._split = self._level + 1, 0
