"""A segment as one object: what is written is read, and damage is found."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_material import NOW_MS
from shoal.record.batch import CorruptBatch, assign, headers
from shoal.record.records import build_batch
from shoal.tiered.segment_object import (
    TRAILER_SIZE,
    DamagedObject,
    Description,
    Footer,
    Section,
    SegmentSource,
    footer_bytes_needed,
    footer_size,
    read_footer,
    scan,
    tail,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK_BYTES = 400
#: Per batch: number of records, size of each, timestamp, offsets that compaction removed before it.
BATCHES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 200), st.integers(-1, 2**40), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)
SECTIONS = st.dictionaries(st.sampled_from(Section), st.binary(max_size=60))


def log_of(batches: Sequence[tuple[int, int, int, int]], base_offset: int = 0) -> bytes:
    out, offset = bytearray(), base_offset
    for count, size, timestamp, gap in batches:
        offset += gap
        data = build_batch([(timestamp, b"k", bytes(size), ()) for _ in range(count)])
        assign(data, 0, offset, 3)
        out += data
        offset += count
    return bytes(out)


def reader(data: bytes):
    return lambda at, size: data[at : at + size]


def describe(log: bytes, found) -> Description:
    return Description(
        cluster_id="cluster",
        topic="orders",
        topic_id=uuid.UUID(int=7),
        partition=3,
        segment_id=uuid.UUID(int=9),
        base_offset=found.chunks[0].base_offset,
        end_offset=found.end_offset,
        max_timestamp=found.max_timestamp,
        log_size=len(log),
        leader_epochs=((1, 0), (3, 5)),
        broker_id=2,
        leader_epoch=3,
        copied_ms=NOW_MS,
    )


def object_of(log: bytes, sections=None) -> bytes:
    found = scan(reader(log), len(log), chunk_bytes=CHUNK_BYTES)
    end = tail(describe(log, found), found.chunks, sections or {})
    source = SegmentSource(reader(log), len(log), end)
    data = b"".join(source.chunks())
    assert len(data) == source.size
    return data


@given(BATCHES, SECTIONS, st.integers(0, 2**40))
def test_round_trip(batches, sections, base_offset) -> None:
    log = log_of(batches, base_offset)
    data = object_of(log, sections)
    assert data.startswith(log)
    needed = footer_bytes_needed(data[-TRAILER_SIZE:])
    assert needed == footer_size(data)
    footer = read_footer(data[-needed:])
    found = scan(reader(log), len(log), chunk_bytes=CHUNK_BYTES)
    assert footer.description == describe(log, found)
    assert footer.chunks == found.chunks
    assert set(footer.sections) == set(sections)
    for kind, expected in sections.items():
        start, end = footer.section_range(kind)
        assert data[start:end] == expected
        footer.check_section(kind, expected)


@given(BATCHES, st.integers(0, 2**40))
def test_chunks_are_whole_batches_and_cover_the_log(batches, base_offset) -> None:
    log = log_of(batches, base_offset)
    footer = read_footer(object_of(log))
    at = 0
    for number, chunk in enumerate(footer.chunks):
        start, end = footer.chunk_range(number)
        assert start == at
        inside = list(headers(log[start:end]))
        assert sum(header.size for _, header in inside) == end - start
        assert len(inside) == 1 or end - start <= CHUNK_BYTES
        assert chunk.base_offset == inside[0][1].base_offset
        assert chunk.max_timestamp == max(header.max_timestamp for _, header in inside)
        footer.check_chunk(number, log[start:end])
        at = end
    assert at == len(log)


@given(BATCHES, st.integers(0, 2**40))
def test_offsets_and_timestamps_find_their_chunk(batches, base_offset) -> None:
    log = log_of(batches, base_offset)
    footer = read_footer(object_of(log))
    all_headers = [header for _, header in headers(log)]
    for header in all_headers:
        start, end = footer.chunk_range(footer.chunk_at(header.last_offset))
        assert header in [h for _, h in headers(log[start:end])]
    for timestamp in sorted({h.max_timestamp for h in all_headers} - {-1}):
        first = next(h for h in all_headers if h.max_timestamp >= timestamp)
        number = footer.chunk_since(timestamp)
        assert number is not None
        start, end = footer.chunk_range(number)
        assert next(h for _, h in headers(log[start:end]) if h.max_timestamp >= timestamp) == first
    assert footer.chunk_since(2**41) is None


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
    footer = read_footer(data[-footer_bytes_needed(data) :])
    for number in range(len(footer.chunks)):
        start, end = footer.chunk_range(number)
        footer.check_chunk(number, data[start:end])
    for kind in footer.sections:
        start, end = footer.section_range(kind)
        footer.check_section(kind, data[start:end])
    return footer


def test_a_format_of_a_newer_release_is_refused() -> None:
    data = bytearray(object_of(log_of([(1, 10, 5, 0)])))
    data[-8:-6] = b"\x00\x01"
    with pytest.raises(DamagedObject, match="format 1 of a newer release; this release reads 0"):
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
        list(source.chunks())
