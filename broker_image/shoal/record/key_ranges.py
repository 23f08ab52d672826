"""Key ranges: parts of a partition, by the hash of the records' keys (`key_hash`)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.features import KEY_HASH_MAX, KEY_RANGES_MAX
from shoal.record.key_hash import hash_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shoal.record.batch import Buffer


class InvalidKeyRanges(ValueError):
    """Key ranges that overlap, end before they begin or lie outside of 0 to 2^63-1."""


class KeyRange(NamedTuple):
    """The records whose hash is `first` to `last`, both inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class KeyRanges:
    """At least one key range, in rising order. Ranges do not overlap."""

    __slots__ = ("_lasts", "_ranges", "packed")

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Raises `InvalidKeyRanges`."""
        self._ranges = tuple(sorted(KeyRange(*key_range) for key_range in ranges))
        self._check()
        self._lasts = [key_range.last for key_range in self._ranges]
        #: First and last hash of each range, as 64-bit numbers.
        self.packed = array("q", [end for key_range in self._ranges for end in key_range]).tobytes()

    def _check(self) -> None:
        if not self._ranges:
            raise InvalidKeyRanges("no key ranges: name at least one, such as 0 to 2^63-1")
        if len(self._ranges) > KEY_RANGES_MAX:
            raise InvalidKeyRanges(
                f"{len(self._ranges)} key ranges, at most {KEY_RANGES_MAX} are allowed: "
                "join ranges that touch"
            )
        for key_range in self._ranges:
            if key_range.first < 0 or key_range.last > KEY_HASH_MAX:
                raise InvalidKeyRanges(f"key range {key_range}: hashes are 0 to {KEY_HASH_MAX}")
            if key_range.first > key_range.last:
                raise InvalidKeyRanges(
                    f"key range {key_range} ends before it begins: write the lower hash first"
                )
        for key_range, next_range in pairwise(self._ranges):
            if next_range.first <= key_range.last:
                raise InvalidKeyRanges(
                    f"key ranges {key_range} and {next_range} overlap: name each hash once"
                )

    @classmethod
    def from_part(cls, number: int, parts: int) -> KeyRanges:
        """Return the part `number`, from 1 on, of all hashes in `parts` equal ranges.

        Raises `InvalidKeyRanges`.
        """
        if not 1 <= number <= parts:
            raise InvalidKeyRanges(f"part {number} of {parts}: parts are 1 to {max(parts, 1)}")
        first, end = ((KEY_HASH_MAX + 1) * n // parts for n in (number - 1, number))
        return cls([(first, end - 1)])

    @classmethod
    def parse(cls, text: str) -> KeyRanges:
        """Read `1/4`, the first quarter of all hashes, or `0-99,200-299`.

        Raises `InvalidKeyRanges`.
        """
        number, slash, parts = text.partition("/")
        try:
            if slash:
                return cls.from_part(int(number), int(parts))
            bounds = [item.partition("-") for item in text.split(",")]
            return cls((int(first), int(last)) for first, _, last in bounds)
        except InvalidKeyRanges:
            raise
        except ValueError:
            raise InvalidKeyRanges(
                f"{text!r} is no key range: write 1/4 for the first quarter, or the hashes as "
                "FIRST-LAST, with commas between ranges"
            ) from None

    def __iter__(self) -> Iterator[KeyRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRanges) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(self._ranges)

    def __str__(self) -> str:
        return ",".join(map(str, self._ranges))

    def has_hash(self, hash_: int) -> bool:
        """Whether a hash is in one of the ranges."""
        index = bisect_left(self._lasts, hash_)
        return index < len(self._lasts) and self._ranges[index].first <= hash_

    def has_record(self, key: Buffer | None, offset: int) -> bool:
        """Whether the record with this key and offset is in one of the ranges."""
        return self.has_hash(hash_record(key, offset))
