"""Codecs: exchange with Kafka in both directions, and bounded costs of decompression bombs."""

from __future__ import annotations

import struct
import tracemalloc

import cramjam
import pytest
from shoal.record.batch import CorruptBatch
from shoal.record.compression import Compression, OutputFull, compress, decompress

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
DATA = [b"", b"a", b"hello " * 10_000, bytes(range(256)) * 700]


@pytest.mark.parametrize("codec", [Compression.NONE, *CODECS])
@pytest.mark.parametrize("data", DATA, ids=len)
def test_there_and_back(codec: Compression, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data
    assert bytes(decompress(codec, memoryview(bytes(compress(codec, bytearray(data)))))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_what_expands_past_the_bound_differs_from_what_is_corrupt(codec: Compression) -> None:
    data = bytes(compress(codec, bytes(100_000)))
    assert len(decompress(codec, data, 100_000)) == 100_000
    with pytest.raises(OutputFull, match="expands past 99999 bytes"):
        decompress(codec, data, 99_999)
    with pytest.raises(CorruptBatch) as caught:
        decompress(codec, data[:-1] if codec != Compression.LZ4 else data[5:])
    assert caught.type is CorruptBatch


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_its_bound_and_not_its_size(codec: Compression) -> None:
    bomb = bytes(compress(codec, bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(CorruptBatch):
        decompress(codec, bomb, 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 << 20


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"\xff" * 50, b"\0" * 50, b"\x1f\x8b\x08", b"(\xb5/\xfd"])
def test_garbage_is_corrupt(codec: Compression, data: bytes) -> None:
    try:
        assert len(decompress(codec, data)) <= len(data)
    except CorruptBatch:
        pass


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_corrupt_or_a_prefix(codec: Compression) -> None:
    whole = b"some text, some text, some more text " * 40
    data = bytes(compress(codec, whole))
    for end in range(len(data)):
        try:
            found = bytes(decompress(codec, data[:end]))
        except CorruptBatch:
            continue
        assert whole.startswith(found)


def test_snappy_is_read_raw_as_librdkafka_sends_it() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"abc" * 99))
    assert decompress(Compression.SNAPPY, raw) == b"abc" * 99


def test_snappy_is_written_in_xerials_blocks() -> None:
    """SnappyOutputStream: magic, version 1, compatible with 1, then (size, block) pairs."""
    data = bytes(compress(Compression.SNAPPY, b"x" * 70_000))
    assert data[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    at, sizes = 16, []
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        sizes.append(cramjam.snappy.decompress_raw_len(data[at + 4 : at + 4 + size]))
        at += 4 + size
    assert sizes == [32_768, 32_768, 4_464]


def test_a_snappy_length_that_lies_allocates_nothing() -> None:
    lie = b"\xff\xff\xff\x3f" + b"\0" * 20  # 128 MiB announced by 24 bytes
    tracemalloc.start()
    with pytest.raises(CorruptBatch):
        decompress(Compression.SNAPPY, lie)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_lz4_blocks_are_independent() -> None:
    """Kafka's reader refuses frames of dependent blocks (Lz4BlockInputStream)."""
    data = bytes(compress(Compression.LZ4, b"abc" * 100_000))
    assert data[:4] == b"\x04\x22\x4d\x18"
    assert data[4] & 0b1110_0000 == 0b0110_0000  # version 1, independent blocks


def test_levels_are_the_codecs_own() -> None:
    data = bytes(range(256)) * 400
    for codec, low, high in ((Compression.GZIP, 1, 9), (Compression.ZSTD, 1, 19)):
        assert len(compress(codec, data, high)) <= len(compress(codec, data, low))


def test_names_of_codecs() -> None:
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [Compression.from_name(name) for name in names] == list(range(5))
    assert Compression.from_name("uncompressed") is Compression.NONE
    with pytest.raises(CorruptBatch, match="number 5"):
        decompress(5, b"")
