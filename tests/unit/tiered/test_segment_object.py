"""A segment as one object: what is written is read, and damage is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.record.batch import CorruptBatch, iter_headers
from shoal.tiered.segment_object import (
    TRAILER_SIZE,
    DamagedObject,
    Footer,
    SegmentSource,
    find_footer_bytes_needed,
    read_footer,
    read_footer_size,
    scan,
)
from support.storage.segment_material import (
    BATCHES,
    CHUNK_BYTES,
    SECTIONS,
    describe,
    log_of,
    object_of,
    reader,
)


@given(BATCHES, SECTIONS, st.integers(0, 2**40))
def test_round_trip(batches, sections, base_offset) -> None:
    log = log_of(batches, base_offset)
    data = object_of(log, sections)
    assert data.startswith(log)
    needed = find_footer_bytes_needed(data[-TRAILER_SIZE:])
    assert needed == read_footer_size(data)
    footer = read_footer(data[-needed:])
    found = scan(reader(log), len(log), chunk_bytes=CHUNK_BYTES)
    assert footer.description == describe(log, found)
    assert footer.chunks == found.chunks
    assert set(footer.sections) == set(sections)
    for kind, expected in sections.items():
        start, end = footer.get_section_range(kind)
        assert data[start:end] == expected
        assert footer.open_section(kind, expected, None) == expected


@given(BATCHES, st.integers(0, 2**40))
def test_chunks_are_whole_batches_and_cover_the_log(batches, base_offset) -> None:
    log = log_of(batches, base_offset)
    footer = read_footer(object_of(log))
    at = 0
    for number, chunk in enumerate(footer.chunks):
        start, end = footer.get_chunk_range(number)
        assert start == at
        inside = list(iter_headers(log[start:end]))
        assert sum(header.size for _, header in inside) == end - start
        assert len(inside) == 1 or end - start <= CHUNK_BYTES
        assert chunk.base_offset == inside[0][1].base_offset
        assert chunk.max_timestamp == max(header.max_timestamp for _, header in inside)
        assert footer.open_chunk(number, log[start:end], None) == log[start:end]
        at = end
    assert at == len(log)


@given(BATCHES, st.integers(1, 4 * CHUNK_BYTES))
def test_chunks_do_not_depend_on_the_size_of_a_read(batches, read_bytes) -> None:
    log = log_of(batches)
    whole = scan(reader(log), len(log), chunk_bytes=CHUNK_BYTES, read_bytes=len(log))
    assert scan(reader(log), len(log), chunk_bytes=CHUNK_BYTES, read_bytes=read_bytes) == whole


@given(BATCHES, st.integers(0, 2**40))
def test_offsets_and_timestamps_find_their_chunk(batches, base_offset) -> None:
    log = log_of(batches, base_offset)
    footer = read_footer(object_of(log))
    all_headers = [header for _, header in iter_headers(log)]
    for header in all_headers:
        start, end = footer.get_chunk_range(footer.find_chunk(header.last_offset))
        assert header in [h for _, h in iter_headers(log[start:end])]
    for timestamp in sorted({h.max_timestamp for h in all_headers} - {-1}):
        first = next(h for h in all_headers if h.max_timestamp >= timestamp)
        number = footer.find_chunk_since(timestamp)
        assert number is not None
        start, end = footer.get_chunk_range(number)
        assert (
            next(h for _, h in iter_headers(log[start:end]) if h.max_timestamp >= timestamp)
            == first
        )
    assert footer.find_chunk_since(2**41) is None


@given(BATCHES, SECTIONS, st.data())
def test_every_changed_byte_is_found(batches, sections, data) -> None:
    log = log_of(batches)
    whole = object_of(log, sections)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedObject):
        read_all(bytes(damaged))
    read_all(whole)


@given(BATCHES, st.data())
def test_every_cut_is_found(batches, data) -> None:
    whole = object_of(log_of(batches))
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedObject):
        read_all(whole[:size])


def read_all(data: bytes) -> Footer:
    """Read every part of an object, as its users do together."""
    footer = read_footer(data[-find_footer_bytes_needed(data) :])
    for number in range(len(footer.chunks)):
        start, end = footer.get_chunk_range(number)
        footer.open_chunk(number, data[start:end], None)
    for kind in footer.sections:
        start, end = footer.get_section_range(kind)
        footer.open_section(kind, data[start:end], None)
    return footer


def test_a_format_of_a_newer_release_is_refused() -> None:
    data = bytearray(object_of(log_of([(1, 10, 5, 0)])))
    data[-8:-6] = b"\x00\x02"
    with pytest.raises(DamagedObject, match="format 2 of a newer release; this release reads 1"):
        read_footer(bytes(data))


def test_a_log_that_must_not_be_copied_is_refused() -> None:
    log = log_of([(2, 50, 5, 0), (2, 50, 6, 0)])
    damaged = bytearray(log)
    damaged[-1] ^= 1
    half = len(log) // 2
    for bad, reason in (
        (b"", "no batches"),
        (bytes(damaged), f"byte {half} has a wrong CRC"),
        (log[:-1], f"byte {half} is cut off"),
        (log[half:] + log[:half], f"byte {half} has offset 0 behind 3"),
    ):
        with pytest.raises(CorruptBatch, match=reason):
            scan(reader(bad), len(bad))


def test_a_file_that_became_shorter_fails_the_upload() -> None:
    log = log_of([(2, 50, 5, 0)])
    source = SegmentSource(reader(log[:-5]), len(log), b"tail")
    with pytest.raises(OSError, match="ends at byte"):
        list(source.iter_chunks())
