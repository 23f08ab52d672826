"""A read of the log with the hash of each record, from which batches of key ranges are made.

A batch without a record in the ranges is left out. Any other batch has its records in the ranges,
without compression, and keeps base offset, offset deltas and last offset, as after compaction. Its
CRC is computed again. If that is not smaller than the stored batch, the stored one is sent, with
records that the client leaves out. Control batches are sent whole: they end aborted transactions.
So are damaged batches, which the client reports, and those whose records expand too far.

`native/key_ranges.c` has the loops over records. Without it, Python does the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from shoal.record import batch_validation
from shoal.record.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    read_header,
    seal,
)
from shoal.record.key_hash import hash_record
from shoal.record.records import decompress_records, iter_spans, read_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.record.key_ranges import KeyRanges

#: Maximum bytes to which the compressed batches of one read expand. A batch that expands further
#: is sent whole.
EXPANDED_BYTES_MAX = 4 << 20
#: Numbers of each batch in `HashedBatches.batches`, as in `native/key_ranges.c`: base and last
#: offset, begin and end in the read, begin of the records in `expanded`, number of the first
#: record, record count.
_FIELDS = 7
_LAST, _BEGIN, _END, _BODY, _FIRST_RECORD, _COUNT = range(1, _FIELDS)
#: In place of the begin in `expanded`: the records are in the read, or the batch is sent whole.
_IN_READ, _WHOLE = -1, -2
#: Bytes of a read in memory beside its data.
_OVERHEAD_BYTES = 800


class SelectedBatches(NamedTuple):
    """Batches of some key ranges, and the number of the batch behind them."""

    data: bytes
    next: int


class HashedBatches:
    """Whole batches in offset order, with the hashes and ends of their records."""

    __slots__ = (
        "_batches",
        "_data",
        "_ends",
        "_expanded",
        "_hashes",
        "_lasts",
        "cost_bytes",
        "first",
        "next_offset",
    )

    def __init__(self, data: bytes, first: int) -> None:
        """`data` is a read of the log from offset `first` on. Raises `CorruptBatch`.

        The last of its batches are left out if the batches before expand to
        `EXPANDED_BYTES_MAX`.
        """
        self._data = data
        #: The bytes that were read and expanded.
        self.cost_bytes = len(data)
        batches, hashes, ends, expanded = array("q"), bytearray(), bytearray(), bytearray()
        position, cost_max = 0, len(data) + EXPANDED_BYTES_MAX
        while position + HEADER_SIZE <= len(data) and self.cost_bytes < cost_max:
            if batch_validation.native is not None:
                rows, more, more_ends, position = batch_validation.native.hash_batches(
                    data, position, len(hashes) // 8
                )
                batches.frombytes(rows)
                hashes += more
                ends += more_ends
                if position + HEADER_SIZE > len(data):
                    break
            header = read_header(data, position)
            end = position + header.size
            if end > len(data):
                break
            body, hashed = self._hash_records(position, header, expanded)
            count = 0 if hashed is None else header.record_count
            row = (
                header.base_offset,
                header.last_offset,
                position,
                end,
                body,
                len(hashes) // 8,
                count,
            )
            batches.extend(row)
            if hashed is not None:
                hashes += hashed[0]
                ends += hashed[1]
            position = end
        self._lasts: list[int] = batches[_LAST::_FIELDS].tolist()
        self.next_offset = self._lasts[-1] + 1 if self._lasts else first
        #: The first requested offset, or the base offset of the first batch.
        self.first = min(first, batches[0]) if self._lasts else first
        self._batches, self._expanded = batches.tobytes(), bytes(expanded)
        self._hashes, self._ends = bytes(hashes), bytes(ends)

    def _hash_records(
        self, position: int, header: BatchHeader, expanded: bytearray
    ) -> tuple[int, tuple[bytes, bytes] | None]:
        """Return where the records of a batch are, with their hashes and ends; None if the batch
        is to be sent whole."""
        count, base = header.record_count, header.base_offset
        if header.is_control or not check_crc(self._data, position, header):
            return _WHOLE, None
        if not header.compression:
            begin, end = position + HEADER_SIZE, position + header.size
            hashed = hash_records(self._data, begin, end, base, count)
            return _WHOLE if hashed is None else _IN_READ, hashed
        room = EXPANDED_BYTES_MAX - (self.cost_bytes - len(self._data))
        try:
            body = decompress_records(self._data, position, header, bytes_max=room)
        except CorruptBatch:
            self.cost_bytes += room
            return _WHOLE, None
        self.cost_bytes += len(body)
        hashed = hash_records(body, 0, len(body), base, count)
        begin = len(expanded)
        if hashed is None:
            return _WHOLE, None
        expanded += body
        return begin, hashed

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._lasts)

    @property
    def record_count(self) -> int:
        """The number of records with a hash."""
        return len(self._hashes) // 8

    @property
    def size_bytes(self) -> int:
        """The size in memory."""
        parts = (self._data, self._expanded, self._batches, self._hashes, self._ends)
        return sum(map(len, parts)) + 36 * len(self._lasts) + _OVERHEAD_BYTES

    def find_next_offset(self, number: int) -> int:
        """Return the offset behind the batch before `number`, from which to read on."""
        return self._lasts[number - 1] + 1

    def find(self, offset: int) -> int:
        """Return the number of the first batch with `offset` or later ones."""
        return bisect_left(self._lasts, offset)

    def select(
        self, first: int, past: int, ranges: KeyRanges, size_max: int, *, min_one: bool
    ) -> SelectedBatches:
        """Return the batches from number `first` to before `past` as a reader of `ranges` gets
        them, as far as they fit into `size_max`. With `min_one` the first one fits always."""
        if batch_validation.native is None:
            return SelectedBatches(*self._select_in_python(first, past, ranges, size_max, min_one))
        return SelectedBatches(
            *batch_validation.native.records_in(
                self._data,
                self._expanded,
                self._batches,
                self._hashes,
                self._ends,
                ranges.packed,
                first,
                past,
                size_max,
                min_one,
            )
        )

    def _select_in_python(
        self, first: int, past: int, ranges: KeyRanges, size_max: int, min_one: bool
    ) -> tuple[bytes, int]:
        """Do the work of `select` in Python."""
        rows, hashes, ends = (
            array(kind, data)
            for kind, data in (("q", self._batches), ("q", self._hashes), ("i", self._ends))
        )
        out = bytearray()
        for number in range(first, past):
            row = rows[number * _FIELDS : (number + 1) * _FIELDS]
            records = slice(row[_FIRST_RECORD], row[_FIRST_RECORD] + row[_COUNT])
            batch = _thin(self._data, self._expanded, row, hashes[records], ends[records], ranges)
            if batch and len(out) + len(batch) > size_max and (out or not min_one):
                return bytes(out), number
            out += batch
        return bytes(out), past


def _thin(
    data: bytes,
    expanded: bytes,
    row: array[int],
    hashes: array[int],
    ends: array[int],
    ranges: KeyRanges,
) -> Buffer:
    """Return one batch as a reader of `ranges` gets it, b"" if it has no record for it."""
    whole_batch = data[row[_BEGIN] : row[_END]]
    if row[_BODY] == _WHOLE:
        return whole_batch
    body, position = (
        (whole_batch, HEADER_SIZE) if row[_BODY] == _IN_READ else (expanded, row[_BODY])
    )
    kept_records, count, begin = bytearray(), 0, 0
    for hash_value, end in zip(hashes, ends, strict=True):
        if ranges.has_hash(hash_value):
            kept_records += body[position + begin : position + end]
            count += 1
            if HEADER_SIZE + len(kept_records) >= len(whole_batch):
                return whole_batch
        begin = end
    if not count:
        return b""
    header = read_header(whole_batch)
    attributes = header.attributes & ~COMPRESSION_MASK
    return seal(header._replace(attributes=attributes, record_count=count), kept_records)


def hash_records(
    data: bytes, begin: int, end: int, base_offset: int, count: int
) -> tuple[bytes, bytes] | None:
    """Return the hashes of the `count` records in `data[begin:end]` as 64-bit numbers, and the
    ends of the records from `begin` on as 32-bit numbers. None if they are damaged."""
    if count < 0:
        return None
    if batch_validation.native is not None:
        return batch_validation.native.record_hashes(data, begin, end, base_offset, count)
    body = data[begin:end]
    hashes, ends = array("q"), array("i")
    try:
        for hash_value, record_end in _hash_each_record(body, base_offset, count):
            hashes.append(hash_value)
            ends.append(record_end)
    except CorruptBatch:
        return None
    return hashes.tobytes(), ends.tobytes()


def _hash_each_record(body: bytes, base_offset: int, count: int) -> Iterator[tuple[int, int]]:
    for span in iter_spans(body, count):
        if span.offset_delta < 0:
            raise CorruptBatch(f"an offset delta of {span.offset_delta}")
        yield hash_record(read_key(body, span), base_offset + span.offset_delta), span.end
