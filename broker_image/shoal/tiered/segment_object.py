"""A closed segment as one object.

    the `.log` file, byte for byte
    sections: offset, time and transaction index, producer snapshot, leader epochs, as their files
    footer: a description of the segment, its chunks and its sections
    trailer: size and CRC-32C of the footer, format version, magic

Kafka's tools read the first part. A chunk is a run of whole batches with a checksum: the unit in
which the object is read. The footer has the first offset and the largest timestamp of each chunk,
so a read by offset or by time needs the footer and one chunk. The description suffices to rebuild
the metadata of the segment from the object alone.

`scan` finds the chunks of a log, `tail` builds everything behind the log, and `read_footer` parses
it. Numbers are big-endian.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from crc32c import crc32c

from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import Column, Message
from shoal.record.batch import HEADER_SIZE, OVERHEAD, CorruptBatch, check_crc, read_header
from shoal.tiered.store import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.record.batch import Buffer

#: Size of a chunk in bytes: 128 reads per GB. A larger batch is a chunk of its own.
CHUNK_BYTES = 8 << 20
#: Footer size, its CRC-32C, format version, magic.
_TRAILER = struct.Struct(">IIH6s")
TRAILER_SIZE = _TRAILER.size
VERSION = 0
MAGIC = b"SHOALS"


class DamagedObject(Exception):
    """An object's bytes are not what was written. Reading it again may help; if not, the object
    is lost."""


class Section(IntEnum):
    """The files behind the log, by Kafka's numbers of index types."""

    OFFSET_INDEX = 0
    TIME_INDEX = 1
    PRODUCER_SNAPSHOT = 2
    LEADER_EPOCHS = 3
    TRANSACTION_INDEX = 4


class Description(NamedTuple):
    """What a segment is: the fields of Kafka's RemoteLogSegmentMetadata.

    Offsets are inclusive, timestamps in epoch milliseconds. `leader_epochs` has (epoch, first
    offset in this segment). `broker_id` and `leader_epoch` are those of the leader that copied it.
    """

    cluster_id: str
    topic: str
    topic_id: UUID
    partition: int
    segment_id: UUID
    base_offset: int
    end_offset: int
    max_timestamp: int
    log_size: int
    leader_epochs: tuple[tuple[int, int], ...]
    broker_id: int
    leader_epoch: int
    copied_ms: int


class Chunk(NamedTuple):
    """A run of whole batches: its position in the object, the base offset of its first batch, the
    largest timestamp in it (-1 without one), and the CRC-32C of its bytes."""

    position: int
    base_offset: int
    max_timestamp: int
    crc: int


class SectionPlace(NamedTuple):
    """A section's position in the object, its size in bytes and its CRC-32C."""

    position: int
    size: int
    crc: int


class Scan(NamedTuple):
    """What a log holds: its chunks, its last offset and its largest timestamp."""

    chunks: tuple[Chunk, ...]
    end_offset: int
    max_timestamp: int


_FOOTER = Message(
    "SegmentFooter",
    "0",
    (
        Column("cluster_id", "string"),
        Column("topic", "string"),
        Column("topic_id", "uuid"),
        Column("partition", "int32"),
        Column("segment_id", "uuid"),
        Column("base_offset", "int64"),
        Column("end_offset", "int64"),
        Column("max_timestamp", "int64"),
        Column("log_size", "int64"),
        Column("leader_epochs", (Column("epoch", "int32"), Column("start_offset", "int64"))),
        Column("broker_id", "int32"),
        Column("leader_epoch", "int32"),
        Column("copied_ms", "int64"),
        Column(
            "chunks",
            (
                Column("position", "int64"),
                Column("base_offset", "int64"),
                Column("max_timestamp", "int64"),
                Column("crc", "uint32"),
            ),
        ),
        Column(
            "sections",
            (
                Column("kind", "int8"),
                Column("position", "int64"),
                Column("size", "int64"),
                Column("crc", "uint32"),
            ),
        ),
    ),
    flexible="0+",
).at(0)


class Footer(NamedTuple):
    """The parsed footer: how to read the object."""

    description: Description
    chunks: tuple[Chunk, ...]
    sections: Mapping[Section, SectionPlace]

    def chunk_at(self, offset: int) -> int:
        """Return the number of the chunk that has `offset`, if the segment has it."""
        return max(0, bisect_right(self.chunks, offset, key=lambda c: c.base_offset) - 1)

    def chunk_since(self, timestamp: int) -> int | None:
        """Return the first chunk with a timestamp of at least `timestamp`."""
        for number, chunk in enumerate(self.chunks):
            if chunk.max_timestamp >= timestamp:
                return number
        return None

    def chunk_range(self, number: int) -> Range:
        start = self.chunks[number].position
        after = number + 1
        end = self.description.log_size
        return Range(start, self.chunks[after].position if after < len(self.chunks) else end)

    def check_chunk(self, number: int, data: Buffer) -> None:
        """Raises `DamagedObject` unless `data` is that chunk."""
        start, end = self.chunk_range(number)
        if len(data) != end - start or crc32c(data) != self.chunks[number].crc:
            raise DamagedObject(
                f"chunk {number} of segment {self.description.segment_id} of "
                f"{self.description.topic}-{self.description.partition} is damaged"
            )

    def section_range(self, kind: Section) -> Range:
        place = self.sections[kind]
        return Range(place.position, place.position + place.size)

    def check_section(self, kind: Section, data: Buffer) -> None:
        """Raises `DamagedObject` unless `data` is that section."""
        place = self.sections[kind]
        if len(data) != place.size or crc32c(data) != place.crc:
            raise DamagedObject(
                f"the {kind.name} of segment {self.description.segment_id} of "
                f"{self.description.topic}-{self.description.partition} is damaged"
            )


def scan(read: Callable[[int, int], bytes], size: int, *, chunk_bytes: int = CHUNK_BYTES) -> Scan:
    """Check every batch of a log of `size` bytes, and divide the log into chunks.

    `read(at, size)` returns the bytes of the log. Raises `CorruptBatch`, also for an empty log.
    """
    chunks: list[Chunk] = []
    position, end_offset, largest = 0, -1, -1
    while position < size:
        data = read(position, min(max(chunk_bytes, HEADER_SIZE), size - position))
        first = read_header(data)
        if first.size > len(data):
            data = read(position, min(first.size, size - position))
        end, end_offset, timestamp = _whole_batches(data, position, end_offset)
        crc = crc32c(memoryview(data)[:end])
        chunks.append(Chunk(position, first.base_offset, timestamp, crc))
        position += end
        largest = max(largest, timestamp)
    if not chunks:
        raise CorruptBatch("the segment has no batches")
    return Scan(tuple(chunks), end_offset, largest)


def _whole_batches(data: bytes, position: int, last_offset: int) -> tuple[int, int, int]:
    """Return (size, last offset, largest timestamp) of the whole batches at the start of `data`.
    Their offsets are above `last_offset`."""
    at, largest = 0, -1
    while at + HEADER_SIZE <= len(data):
        header = read_header(data, at)
        if at + header.batch_length + OVERHEAD > len(data):
            break
        if not check_crc(data, at, header):
            raise CorruptBatch(f"the batch at byte {position + at} has a wrong CRC")
        if header.base_offset <= last_offset:
            raise CorruptBatch(
                f"the batch at byte {position + at} has offset {header.base_offset} behind "
                f"{last_offset}"
            )
        last_offset = header.last_offset
        largest = max(largest, header.max_timestamp)
        at += header.batch_length + OVERHEAD
    if at == 0:
        raise CorruptBatch(f"the batch at byte {position} is cut off")
    return at, last_offset, largest


def tail(
    description: Description, chunks: Sequence[Chunk], sections: Mapping[Section, Buffer]
) -> bytes:
    """Return everything behind the log of an object: sections, footer and trailer."""
    out = bytearray()
    places = []
    for kind in sorted(sections):
        data = sections[kind]
        position = description.log_size + len(out)
        places.append(
            {"kind": int(kind), "position": position, "size": len(data), "crc": crc32c(data)}
        )
        out += data
    fields: dict[str, Any] = description._asdict()
    fields["leader_epochs"] = [
        {"epoch": epoch, "start_offset": start} for epoch, start in description.leader_epochs
    ]
    fields["chunks"] = [chunk._asdict() for chunk in chunks]
    fields["sections"] = places
    footer = bytearray()
    compiler.writer(_FOOTER)(footer, fields)
    out += footer
    out += _TRAILER.pack(len(footer), crc32c(footer), VERSION, MAGIC)
    return bytes(out)


def footer_size(tail_bytes: Buffer) -> int:
    """Return the size in bytes of footer and trailer, at the end of a tail."""
    return _TRAILER.unpack_from(tail_bytes, len(tail_bytes) - TRAILER_SIZE)[0] + TRAILER_SIZE


def footer_bytes_needed(end: Buffer) -> int:
    """Return the number of bytes at the end of an object that `read_footer` needs. `end` has at
    least its last `TRAILER_SIZE` bytes. Raises `DamagedObject`."""
    if len(end) < TRAILER_SIZE:
        raise DamagedObject(f"an object of {len(end)} bytes is not a segment")
    size, _, version, magic = _TRAILER.unpack_from(end, len(end) - TRAILER_SIZE)
    if magic != MAGIC:
        raise DamagedObject("the object is not a segment, or its end is missing")
    if version > VERSION:
        raise DamagedObject(
            f"the object has format {version} of a newer release; this release reads {VERSION}"
        )
    return size + TRAILER_SIZE


def read_footer(end: Buffer) -> Footer:
    """Parse a footer from the last bytes of an object. Raises `DamagedObject`."""
    needed = footer_bytes_needed(end)
    if len(end) < needed:
        raise DamagedObject(f"the footer has {needed} bytes, and {len(end)} were read")
    _, crc, _, _ = _TRAILER.unpack_from(end, len(end) - TRAILER_SIZE)
    data = memoryview(end)[len(end) - needed : len(end) - TRAILER_SIZE]
    if crc32c(data) != crc:
        raise DamagedObject("the footer has a wrong checksum")
    try:
        fields, _ = compiler.reader(_FOOTER)(data, 0)
        return _footer(fields)
    except (WireError, ValueError, TypeError) as error:
        raise DamagedObject(f"the footer is invalid: {error}") from None


def _footer(fields: dict[str, Any]) -> Footer:
    epochs = tuple((entry["epoch"], entry["start_offset"]) for entry in fields["leader_epochs"])
    values = {name: fields[name] for name in Description._fields}
    chunks = tuple(Chunk(**{n: chunk[n] for n in Chunk._fields}) for chunk in fields["chunks"])
    if not chunks:
        raise ValueError("it has no chunks")
    # Sections that a newer release adds are ignored.
    known = {int(kind) for kind in Section}
    sections = {
        Section(place["kind"]): SectionPlace(place["position"], place["size"], place["crc"])
        for place in fields["sections"]
        if place["kind"] in known
    }
    return Footer(Description(**values | {"leader_epochs": epochs}), chunks, sections)


class SegmentSource:
    """The contents of a segment's object, read from its file piece by piece."""

    __slots__ = ("_log_size", "_read", "_tail", "size")

    def __init__(self, read: Callable[[int, int], bytes], log_size: int, tail_: bytes) -> None:
        self._read = read
        self._log_size = log_size
        self._tail = tail_
        self.size = log_size + len(tail_)

    def chunks(self) -> Iterator[Buffer]:
        """Iterate over the contents. Raises `OSError` if the file has become shorter."""
        at = 0
        while at < self._log_size:
            data = self._read(at, min(1 << 20, self._log_size - at))
            if not data:
                raise OSError(f"the segment ends at byte {at} of {self._log_size}")
            yield data
            at += len(data)
        yield self._tail
