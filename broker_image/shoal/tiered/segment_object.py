"""A closed segment as one object.

    the `.log` file, byte for byte
    sections: offset, time and transaction index, producer snapshot, leader epochs, as their files
    footer: a description of the segment, its chunks and its sections
    trailer: size and CRC-32C of the footer, format version, magic

Kafka's tools read the first part. If chunks are compressed or encrypted (`sealing`), they take the
place of the log one behind the other, and the object has format 1 instead of 0.

A chunk is a run of whole batches with a checksum: the unit in which the object is read. The footer
has the first offset and the largest timestamp of each chunk, so a read by offset or by time needs
the footer and one chunk. The description suffices to rebuild the metadata of the segment from the
object alone.

`scan` finds the chunks of a log. `SegmentSource` and `SealedSource` are the contents of objects of
format 0 and 1, and `read_footer` parses the end of either. Numbers are big-endian.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shoal.protocol import compiler
from shoal.protocol.errors import WireError
from shoal.protocol.schema import FieldSpec, MessageSpec
from shoal.record.batch import HEADER_SIZE, OVERHEAD, CorruptBatch, check_crc, read_header
from shoal.record.crc import crc32c
from shoal.tiered.sealing import CHUNK, SECTION, Envelope, KeyRing, Sealer, open_envelope, unseal
from shoal.tiered.store import ByteRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from shoal.record.batch import Buffer

#: Size of a chunk in bytes: 128 reads per GB. A larger batch is a chunk of its own.
CHUNK_BYTES = 8 << 20
#: Bytes of a log that are read and checked at a time: they stay in the processor's cache, which
#: takes two thirds of the time of a chunk at a time.
READ_BYTES = 1 << 20
#: Footer size, its CRC-32C, format version, magic.
_TRAILER = struct.Struct(">IIH6s")
TRAILER_SIZE = _TRAILER.size
#: The format with sealed parts, the newest that this release reads.
VERSION = 1
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


class SegmentDescription(NamedTuple):
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

    @property
    def owner(self) -> bytes:
        """The object that an envelope belongs to."""
        place = f"{self.cluster_id}/{self.topic_id}/{self.partition}/{self.segment_id}"
        return f"segment {place} of topic {self.topic}".encode()


class SegmentChunk(NamedTuple):
    """A run of whole batches: its position in the object, the base offset of its first batch, the
    largest timestamp in it (-1 without one), and the CRC-32C of its bytes in the object.

    A sealed chunk also has its codec (`Compression`), and its size in bytes before that.
    """

    position: int
    base_offset: int
    max_timestamp: int
    crc: int
    codec: int = 0
    plain_size: int = 0


class SectionLocation(NamedTuple):
    """A section's position in the object, its size in bytes and its CRC-32C there. A sealed section
    also has what a sealed chunk has."""

    position: int
    size: int
    crc: int
    codec: int = 0
    plain_size: int = 0


class ScanResult(NamedTuple):
    """What a log holds: its chunks, its last offset and its largest timestamp."""

    chunks: tuple[SegmentChunk, ...]
    end_offset: int
    max_timestamp: int


_FOOTER = MessageSpec(
    "SegmentFooter",
    "0-1",
    (
        FieldSpec("cluster_id", "string"),
        FieldSpec("topic", "string"),
        FieldSpec("topic_id", "uuid"),
        FieldSpec("partition", "int32"),
        FieldSpec("segment_id", "uuid"),
        FieldSpec("base_offset", "int64"),
        FieldSpec("end_offset", "int64"),
        FieldSpec("max_timestamp", "int64"),
        FieldSpec("log_size", "int64"),
        FieldSpec(
            "leader_epochs", (FieldSpec("epoch", "int32"), FieldSpec("start_offset", "int64"))
        ),
        FieldSpec("broker_id", "int32"),
        FieldSpec("leader_epoch", "int32"),
        FieldSpec("copied_ms", "int64"),
        FieldSpec(
            "chunks",
            (
                FieldSpec("position", "int64"),
                FieldSpec("base_offset", "int64"),
                FieldSpec("max_timestamp", "int64"),
                FieldSpec("crc", "uint32"),
                FieldSpec("codec", "int8", "1+"),
                FieldSpec("plain_size", "int64", "1+"),
            ),
        ),
        FieldSpec(
            "sections",
            (
                FieldSpec("kind", "int8"),
                FieldSpec("position", "int64"),
                FieldSpec("size", "int64"),
                FieldSpec("crc", "uint32"),
                FieldSpec("codec", "int8", "1+"),
                FieldSpec("plain_size", "int64", "1+"),
            ),
        ),
        # Bytes of the sealed chunks together.
        FieldSpec("sealed_size", "int64", "1+"),
        # The envelope, without which the parts are not encrypted.
        FieldSpec("key_id", "string", "1+", nullable="1+"),
        FieldSpec("key_nonce", "bytes", "1+", nullable="1+"),
        FieldSpec("data_key", "bytes", "1+", nullable="1+"),
    ),
    flexible="0+",
)
#: A chunk or a section in the footer.
_Entry = TypeVar("_Entry", SegmentChunk, SectionLocation)
_LAYOUTS = {version: _FOOTER.get_struct(version) for version in (0, 1)}


class Footer(NamedTuple):
    """The parsed footer: how to read the object."""

    description: SegmentDescription
    chunks: tuple[SegmentChunk, ...]
    sections: Mapping[Section, SectionLocation]
    #: Bytes of the object before the sections: the log, or its sealed chunks.
    chunks_end: int
    is_sealed: bool = False
    #: Of an encrypted object.
    envelope: Envelope | None = None

    def open_cipher(self, ring: KeyRing) -> AESGCM | None:
        """Return what opens the parts, None if they are not encrypted. Raises `KeyUnavailable`."""
        if self.envelope is None:
            return None
        return open_envelope(ring, self.envelope, self.description.owner)

    def find_chunk(self, offset: int) -> int:
        """Return the number of the chunk that has `offset`, if the segment has it."""
        return max(0, bisect_right(self.chunks, offset, key=lambda c: c.base_offset) - 1)

    def find_chunk_since(self, timestamp: int) -> int | None:
        """Return the first chunk with a timestamp of at least `timestamp`."""
        for number, chunk in enumerate(self.chunks):
            if chunk.max_timestamp >= timestamp:
                return number
        return None

    def get_chunk_range(self, number: int) -> ByteRange:
        start = self.chunks[number].position
        after = number + 1
        end = self.chunks_end
        return ByteRange(start, self.chunks[after].position if after < len(self.chunks) else end)

    def open_chunk(self, number: int, data: Buffer, cipher: AESGCM | None) -> Buffer:
        """Return the batches of a chunk, whose bytes in the object are `data`. Raises
        `DamagedObject`."""
        entry = self.chunks[number]
        start, end = self.get_chunk_range(number)
        is_whole = len(data) == end - start and crc32c(data) == entry.crc
        return self._unseal_part(CHUNK, number, data if is_whole else None, entry, cipher)

    def get_section_range(self, kind: Section) -> ByteRange:
        place = self.sections[kind]
        return ByteRange(place.position, place.position + place.size)

    def open_section(self, kind: Section, data: Buffer, cipher: AESGCM | None) -> Buffer:
        """Return the file of a section, whose bytes in the object are `data`. Raises
        `DamagedObject`."""
        entry = self.sections[kind]
        is_whole = len(data) == entry.size and crc32c(data) == entry.crc
        return self._unseal_part(SECTION, kind, data if is_whole else None, entry, cipher)

    def _unseal_part(
        self,
        kind: int,
        number: int,
        data: Buffer | None,
        part: SegmentChunk | SectionLocation,
        cipher: AESGCM | None,
    ) -> Buffer:
        """Return a part as it was before it was sealed. `data` is None if it is not whole."""
        reason = ""
        if data is not None:
            if not self.is_sealed:
                return data
            size, codec = part.plain_size, part.codec
            try:
                return unseal(data, kind=kind, number=number, codec=codec, size=size, cipher=cipher)
            except ValueError as error:
                reason = f": {error}"
        description = self.description
        name = f"chunk {number}" if kind == CHUNK else f"the {Section(number).name}"
        raise DamagedObject(
            f"{name} of segment {description.segment_id} of "
            f"{description.topic}-{description.partition} is "
            f"damaged{reason}"
        )


def scan(
    read: Callable[[int, int], bytes],
    size: int,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    read_bytes: int = READ_BYTES,
) -> ScanResult:
    """Check every batch of a log of `size` bytes, and divide the log into chunks.

    `read(at, size)` returns the bytes of the log. Raises `CorruptBatch`, also for an empty log.
    """
    chunks: list[SegmentChunk] = []
    position, end_offset = 0, -1
    while position < size:
        data = read(position, min(max(read_bytes, HEADER_SIZE), size - position))
        first = read_header(data)
        used = position - chunks[-1].position if chunks else 0
        if not chunks or used + first.size > chunk_bytes:
            chunks.append(SegmentChunk(position, first.base_offset, -1, 0))
            used = 0
        if first.size > len(data):
            data = read(position, min(first.size, size - position))
        view = memoryview(data)[: max(first.size, chunk_bytes - used)]
        end, end_offset, timestamp = _scan_batches(view, position, end_offset)
        last = chunks[-1]
        chunks[-1] = last._replace(
            max_timestamp=max(last.max_timestamp, timestamp), crc=crc32c(view[:end], last.crc)
        )
        position += end
    if not chunks:
        raise CorruptBatch("the segment has no batches")
    return ScanResult(tuple(chunks), end_offset, max(chunk.max_timestamp for chunk in chunks))


def _scan_batches(data: Buffer, position: int, last_offset: int) -> tuple[int, int, int]:
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


def build_tail(
    description: SegmentDescription,
    chunks: Sequence[SegmentChunk],
    sections: Mapping[Section, Buffer],
) -> bytes:
    """Return everything behind the log of an object of format 0: sections, footer and trailer."""
    places = []
    position = description.log_size
    for kind in sorted(sections):
        data = sections[kind]
        places.append((kind, SectionLocation(position, len(data), crc32c(data))))
        position += len(data)
    footer = _encode_footer(description, chunks, places, 0, {})
    return b"".join([*(sections[kind] for kind, _ in places), footer])


def _encode_footer(
    description: SegmentDescription,
    chunks: Sequence[SegmentChunk],
    sections: Sequence[tuple[Section, SectionLocation]],
    version: int,
    more: Mapping[str, Any],
) -> bytes:
    """Return footer and trailer."""
    fields: dict[str, Any] = description._asdict() | dict(more)
    fields["leader_epochs"] = [
        {"epoch": epoch, "start_offset": start} for epoch, start in description.leader_epochs
    ]
    fields["chunks"] = [chunk._asdict() for chunk in chunks]
    fields["sections"] = [{"kind": int(kind), **place._asdict()} for kind, place in sections]
    out = bytearray()
    compiler.get_writer(_LAYOUTS[version])(out, fields)
    out += _TRAILER.pack(len(out), crc32c(out), version, MAGIC)
    return bytes(out)


def read_footer_size(tail_bytes: Buffer) -> int:
    """Return the size in bytes of footer and trailer, at the end of a tail."""
    return _TRAILER.unpack_from(tail_bytes, len(tail_bytes) - TRAILER_SIZE)[0] + TRAILER_SIZE


def find_footer_bytes_needed(end: Buffer) -> int:
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
    needed = find_footer_bytes_needed(end)
    if len(end) < needed:
        raise DamagedObject(f"the footer has {needed} bytes, and {len(end)} were read")
    _, crc, version, _ = _TRAILER.unpack_from(end, len(end) - TRAILER_SIZE)
    data = memoryview(end)[len(end) - needed : len(end) - TRAILER_SIZE]
    if crc32c(data) != crc:
        raise DamagedObject("the footer has a wrong checksum")
    try:
        fields, _ = compiler.get_reader(_LAYOUTS[version])(data, 0)
        return _parse_footer(fields, version)
    except (WireError, ValueError, TypeError) as error:
        raise DamagedObject(f"the footer is invalid: {error}") from None


def _parse_footer(fields: dict[str, Any], version: int) -> Footer:
    epochs = tuple((entry["epoch"], entry["start_offset"]) for entry in fields["leader_epochs"])
    values = {name: fields[name] for name in SegmentDescription._fields}
    description = SegmentDescription(**values | {"leader_epochs": epochs})
    chunks = tuple(_from_fields(SegmentChunk, entry) for entry in fields["chunks"])
    if not chunks:
        raise ValueError("it has no chunks")
    # Sections that a newer release adds are ignored.
    known_kinds = {int(kind) for kind in Section}
    sections = {
        Section(place["kind"]): _from_fields(SectionLocation, place)
        for place in fields["sections"]
        if place["kind"] in known_kinds
    }
    if version == 0:
        return Footer(description, chunks, sections, description.log_size)
    envelope = None
    if fields["key_id"] is not None:
        nonce, data_key = bytes(fields["key_nonce"]), bytes(fields["data_key"])
        envelope = Envelope(fields["key_id"], nonce, data_key)
    return Footer(description, chunks, sections, fields["sealed_size"], True, envelope)


def _from_fields(kind: type[_Entry], fields: Mapping[str, Any]) -> _Entry:
    """Return an entry of a list. Older formats lack its last fields."""
    return kind(**{name: fields[name] for name in kind._fields if name in fields})


class SegmentSource:
    """The contents of a segment's object of format 0, read from its file piece by piece."""

    __slots__ = ("_log_size", "_read", "_tail", "size")

    def __init__(self, read: Callable[[int, int], bytes], log_size: int, tail_: bytes) -> None:
        self._read = read
        self._log_size = log_size
        self._tail = tail_
        self.size = log_size + len(tail_)

    @property
    def footer(self) -> bytes:
        """Footer and trailer."""
        return self._tail[len(self._tail) - read_footer_size(self._tail) :]

    def iter_chunks(self) -> Iterator[Buffer]:
        """Iterate over the contents. Raises `OSError` if the file has become shorter."""
        position = 0
        while position < self._log_size:
            data = self._read(position, min(READ_BYTES, self._log_size - position))
            if not data:
                raise OSError(f"the segment ends at byte {position} of {self._log_size}")
            yield data
            position += len(data)
        yield self._tail


class SealedSource:
    """The contents of a segment's object of format 1. Each chunk is read from the file and sealed
    when it is sent, so nothing but a chunk is in memory, and nothing is on the disk."""

    __slots__ = ("_chunks", "_described", "_read", "_sealer", "_sections", "footer", "size")

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        description: SegmentDescription,
        chunks: Sequence[SegmentChunk],
        sections: Mapping[Section, Buffer],
        sealer: Sealer,
    ) -> None:
        """`chunks` are those of the log, as `scan` returns them."""
        self._read = read
        self._described = description
        self._chunks = chunks
        self._sections = sections
        self._sealer = sealer
        #: About the size before the first read of all contents, and the size afterwards.
        self.size = description.log_size + sum(map(len, sections.values()))
        #: Footer and trailer, after the first read of all contents.
        self.footer = b""

    def iter_chunks(self) -> Iterator[Buffer]:
        """Iterate over the contents. Each time they are the same. Raises `OSError` if the file was
        changed since it was scanned."""
        sealed: list[SegmentChunk] = []
        position = 0
        for number, chunk in enumerate(self._chunks):
            data = self._read_plain(number)
            codec, out = self._sealer.seal_chunk(number, data)
            sealed.append(
                chunk._replace(
                    position=position, crc=crc32c(out), codec=codec, plain_size=len(data)
                )
            )
            position += len(out)
            yield out
        places: list[tuple[Section, SectionLocation]] = []
        sealed_size = position
        for kind in sorted(self._sections):
            section = self._sections[kind]
            codec, out = self._sealer.seal_section(kind, section)
            places.append(
                (kind, SectionLocation(position, len(out), crc32c(out), codec, len(section)))
            )
            position += len(out)
            yield out
        footer = self._build_footer(sealed, places, sealed_size)
        if self.footer not in (b"", footer):
            raise OSError(f"{self._described.owner.decode()} is sealed to other bytes than before")
        self.footer, self.size = footer, position + len(footer)
        yield footer

    def _read_plain(self, number: int) -> bytes:
        start, after = self._chunks[number].position, number + 1
        log_size = self._described.log_size
        end = self._chunks[after].position if after < len(self._chunks) else log_size
        data = self._read(start, end - start)
        if len(data) != end - start or crc32c(data) != self._chunks[number].crc:
            raise OSError(f"bytes {start} to {end} of the segment have changed")
        return data

    def _build_footer(
        self,
        chunks: Sequence[SegmentChunk],
        sections: Sequence[tuple[Section, SectionLocation]],
        sealed_size: int,
    ) -> bytes:
        envelope = self._sealer.envelope
        more = {
            "sealed_size": sealed_size,
            "key_id": None if envelope is None else envelope.key_id,
            "key_nonce": None if envelope is None else envelope.nonce,
            "data_key": None if envelope is None else envelope.data_key,
        }
        return _encode_footer(self._described, chunks, sections, 1, more)
