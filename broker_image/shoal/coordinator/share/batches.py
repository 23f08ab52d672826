"""The record batches of one log read: where each begins and ends, and which offsets are never
delivered.

A scan reads fixed parts of the 61-byte batch header, once per read, and no records. Offsets without
a batch are holes of compaction. Control batches are not delivered; with `read_committed`, batches
of aborted transactions are not delivered either.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share import compiled
from shoal.record.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    OVERHEAD,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_crc,
)
from shoal.record.layout import build_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.share import AcquiredRange

_HEADER = struct.Struct(
    build_format(
        "base_offset", "batch_length", "magic", "attributes", "last_offset_delta", "producer_id"
    )
)


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its producer, and the offsets from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class Batches:
    """Batches in offset order in parallel lists; `ends[i]` is the position behind batch i.

    `skipped` are the offset ranges, from the first wanted offset on, with nothing to deliver.
    They rise and do not touch.
    """

    __slots__ = ("bases", "data", "ends", "lasts", "skipped")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.bases: list[int] = []
        self.lasts: list[int] = []
        self.ends: list[int] = []
        self.skipped: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.bases)

    def find_last_offset(self, offset: int) -> int:
        """Return the last offset of the batch that contains `offset`, or `offset` if none does."""
        index = bisect_left(self.lasts, offset)
        if index == len(self.lasts) or self.bases[index] > offset:
            return offset
        return self.lasts[index]

    def find_spans(self, acquired: Sequence[AcquiredRange]) -> list[tuple[int, int]]:
        """Return the byte ranges of batches with acquired ranges, in order.

        Batches without an acquired record are left out.
        """
        if compiled.native is not None and len(acquired) > 1:
            return compiled.native.spans(self.lasts, self.ends, list(acquired))
        spans: list[tuple[int, int]] = []
        for first, last, _ in acquired:
            low = bisect_left(self.lasts, first)
            high = bisect_left(self.lasts, last, lo=low)
            begin = self.ends[low - 1] if low else 0
            end = self.ends[high]
            if spans and begin <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((begin, end))
        return spans

    def build_views(
        self, acquired: Sequence[AcquiredRange], total: int, *, whole: bool
    ) -> list[memoryview]:
        """Return the batches with `total` records in acquired ranges.

        Unless they are to be `whole`, other records are left out if less than half of the offsets
        is acquired: a large batch that is delivered in parts would be sent whole with each part.
        """
        low = bisect_left(self.lasts, acquired[0][0])
        high = bisect_left(self.lasts, acquired[-1][1], lo=low)
        if not whole and 2 * total < self.lasts[high] - self.bases[low] + 1:
            return self.build_thinned(acquired)
        return [self.data[begin:end] for begin, end in self.find_spans(acquired)]

    def build_thinned(self, acquired: Sequence[AcquiredRange]) -> list[memoryview]:
        """Return the batches with acquired ranges, without the records of other members.

        Records stay in if the loops are not compiled, or the batch is corrupt or compressed. Base
        offset, deltas and last offset stay, as after compaction; the CRC is computed again. A
        member would parse the other records, search the ranges for them, and drop them.
        """
        if compiled.native is None:
            return [self.data[begin:end] for begin, end in self.find_spans(acquired)]
        thinned_data = compiled.native.thinned(
            self.data, self.bases, self.lasts, self.ends, list(acquired)
        )
        return [memoryview(thinned_data)]

    def find_first_corrupt(self, first: int, last: int) -> tuple[int, int] | None:
        """Return the offsets of the first batch in `[first, last]` with a wrong CRC."""
        for index in range(bisect_left(self.lasts, first), len(self.lasts)):
            if self.bases[index] > last:
                break
            begin = self.ends[index - 1] if index else 0
            header = BatchHeader._make(HEADER.unpack_from(self.data, begin))
            if not check_crc(self.data, begin, header):
                return self.bases[index], self.lasts[index]
        return None


def scan(
    data: bytes | memoryview, first_wanted: int, aborted: Sequence[AbortedTransaction] = ()
) -> Batches:
    """Return the whole batches of `data`, a log read that begins with the batch of `first_wanted`.

    A partial batch at the end is left out. `aborted` are the transactions to hide, for
    `read_committed`.
    """
    batches = Batches(memoryview(data))
    bases, lasts, ends, skipped = batches.bases, batches.lasts, batches.ends, batches.skipped
    unpack, size, position, expected = _HEADER.unpack_from, len(data), 0, first_wanted
    if compiled.native is not None and not aborted:
        position, expected = compiled.native.scan(data, expected, bases, lasts, ends)
    while position + HEADER_SIZE <= size:
        base, length, magic, attributes, delta, producer_id = unpack(data, position)
        end = position + OVERHEAD + length
        last = base + delta
        if end > size or magic != 2 or delta < 0 or length < HEADER_SIZE - OVERHEAD:
            break
        position = end
        if base > expected:
            _add_range(skipped, expected, base - 1)
        if attributes & CONTROL_BIT or (
            aborted
            and attributes & TRANSACTIONAL_BIT
            and any(
                t.producer_id == producer_id and t.first_offset <= base <= t.last_offset
                for t in aborted
            )
        ):
            _add_range(skipped, max(base, first_wanted), last)
        bases.append(base)
        lasts.append(last)
        ends.append(end)
        expected = last + 1
    return batches


def _add_range(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))
