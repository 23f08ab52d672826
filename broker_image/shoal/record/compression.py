"""The codecs of record batches. Decompression uses bounded memory.

Data that expands beyond a limit is refused (`OutputFull`). The output buffer starts small, and a
large one gets its pages as they are written, so its cost depends on the real content.
`decompress_into` writes to the caller's buffer, and releases the GIL meanwhile.

* gzip: RFC 1952. zstd: RFC 8878, with or without a content size.
* snappy: written in the framing of xerial's SnappyOutputStream, as in Kafka's Java clients. Read
  with or without it, because librdkafka sends a raw block.
* lz4: the frame format, written with independent blocks, which Kafka's reader requires.
"""

from __future__ import annotations

import mmap
import struct
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import TYPE_CHECKING

from shoal.record.batch import Buffer, CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Largest expanded size of a batch, in bytes. With the default max.message.bytes of 1 MiB, text may
#: expand a hundredfold.
EXPANDED_BYTES_MAX = 128 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
#: SnappyOutputStream's default block size.
_XERIAL_BLOCK = 32 * 1024
_SIZE = struct.Struct(">i")
#: Messages of cramjam for a too small output buffer: of all codecs but snappy, and of snappy.
_OUTPUT_FULL = ("failed to write whole buffer", "is smaller than required")
_LZ4_MAGIC = 0x184D2204
_UINT = struct.Struct("<I")


class OutputFull(CorruptBatch):
    """The data expands past the end of the output buffer, or past a limit. It may be valid."""


class Compression(IntEnum):
    """The codecs, by their number in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Compression:
        """Return the codec of a `compression.type`. Topics write "uncompressed" for none."""
        return cls.NONE if name == "uncompressed" else cls[name.upper()]


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data`. `level` is specific to the codec, None for its default."""
    if codec == Compression.NONE:
        return data
    import cramjam  # It takes 2 MB, which only brokers pay that meet compressed batches.

    match codec:
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=None if level in (None, -1) else level))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            frame.compress(bytes(data))
            return bytes(frame.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))
    raise ValueError(f"no codec has the number {codec}")


def decompress(codec: int, data: Buffer, limit: int = EXPANDED_BYTES_MAX) -> Buffer:
    """Decompress to at most `limit` bytes. Raises `CorruptBatch`, and `OutputFull` past the
    limit."""
    if codec == Compression.NONE:
        return data
    # Most batches expand less than fourfold.
    out = bytearray(min(limit, max(4 * len(data), 4096)))
    try:
        with memoryview(out) as space:
            return memoryview(out)[: decompress_into(codec, data, space)]
    except OutputFull:
        pass
    if len(out) < limit:
        # A bytearray of this size would be zeroed first, which holds the GIL.
        with suppress(OutputFull), output_buffer(limit) as space:
            return bytes(space[: decompress_into(codec, data, space)])
    raise OutputFull(f"{Compression(codec).name.lower()}: expands past {limit} bytes")


@contextmanager
def output_buffer(size: int) -> Iterator[memoryview]:
    """Yield new memory for `size` bytes, whose pages are allocated as they are written."""
    # Unlike a bytearray it is not zeroed, and closing it releases the GIL.
    with mmap.mmap(-1, size) as fresh, memoryview(fresh) as space:
        yield space


@contextmanager
def expand(codec: int, data: memoryview, bytes_max: int) -> Iterator[memoryview]:
    """Yield the decompressed data, in memory that is freed at the end. Holds the GIL for no longer
    than a moment. Raises `CorruptBatch`, and `OutputFull` past `bytes_max`."""
    if codec == Compression.NONE:
        if len(data) > bytes_max:
            raise OutputFull
        yield data
        return
    with output_buffer(bytes_max) as space:
        size = decompress_into(codec, data, space)
        with space[:size] as body:
            yield body


def decompress_into(codec: int, data: Buffer, out: memoryview) -> int:
    """Decompress to the start of `out`, and return the number of bytes written.

    Raises `OutputFull` if `out` is too small, and `CorruptBatch`, also for trailing bytes.
    """
    import cramjam

    match codec:
        case Compression.GZIP:
            return _call_decompressor(cramjam.gzip.decompress_into, "gzip", data, out)
        case Compression.SNAPPY if data[:8] == _XERIAL_MAGIC:
            written = 0
            for block in _split_xerial_blocks(data):
                with out[written:] as rest:
                    written += _call_decompressor(
                        cramjam.snappy.decompress_raw_into, "snappy", block, rest
                    )
            return written
        case Compression.SNAPPY:
            return _call_decompressor(cramjam.snappy.decompress_raw_into, "snappy", data, out)
        case Compression.LZ4:
            _check_single_lz4_frame(memoryview(data))
            return _call_decompressor(cramjam.lz4.decompress_into, "lz4", data, out)
        case Compression.ZSTD:
            return _call_decompressor(cramjam.zstd.decompress_into, "zstd", data, out)
    raise CorruptBatch(f"no codec has the number {codec}")


def _call_decompressor(
    call: Callable[[Buffer, Buffer], int], name: str, data: Buffer, out: bytearray | memoryview
) -> int:
    import cramjam

    try:
        return call(data, out)
    except cramjam.DecompressionError as error:
        message = str(error)
        if any(words in message for words in _OUTPUT_FULL):
            raise OutputFull from None
        raise CorruptBatch(f"{name}: {message}") from None


def _check_single_lz4_frame(data: memoryview) -> None:
    """Raise `CorruptBatch` unless `data` is one whole frame. Java clients read only one."""
    try:
        (magic,) = _UINT.unpack_from(data)
        flags = data[4]
        # Magic, flags, block size, content size, dictionary, header checksum.
        at = 7 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
        while magic == _LZ4_MAGIC and (size := _UINT.unpack_from(data, at)[0] & 0x7FFFFFFF):
            at += 4 + size + 4 * (flags >> 4 & 1)
    except (struct.error, IndexError):
        raise CorruptBatch("lz4: a torn frame") from None
    at += 4 + 4 * (flags >> 2 & 1)
    if magic != _LZ4_MAGIC or at != len(data):
        raise CorruptBatch(f"lz4: {len(data)} bytes are not one frame")


def _split_xerial_blocks(data: Buffer) -> Iterator[memoryview]:
    """Iterate over the blocks of one or more streams in a row. Raises `CorruptBatch`."""
    view, at = memoryview(data), 0
    while at < len(view):
        if view[at : at + 8] == _XERIAL_MAGIC:
            at += len(_XERIAL_HEAD)
            if at > len(view):
                raise CorruptBatch("snappy: a torn stream header")
            continue
        if at + 4 > len(view):
            raise CorruptBatch("snappy: a torn block size")
        (size,) = _SIZE.unpack_from(view, at)
        at += 4
        if size < 0 or at + size > len(view):
            raise CorruptBatch(f"snappy: a block of {size} bytes where {len(view) - at} are left")
        yield view[at : at + size]
        at += size


def _compress_xerial(data: Buffer) -> Buffer:
    import cramjam

    view, out = memoryview(data), bytearray(_XERIAL_HEAD)
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK]))
        out += _SIZE.pack(len(block))
        out += block
    return out
