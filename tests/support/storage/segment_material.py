"""Segments and their objects in memory, for tests of the object's formats."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from shoal.record.batch import assign
from shoal.record.records import build_batch
from shoal.tiered.segment_object import Section, SegmentDescription, SegmentSource, build_tail, scan
from support.storage.log_material import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.tiered.segment_object import ScanResult

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


def reader(data: bytes | bytearray) -> Callable[[int, int], bytes]:
    return lambda at, size: bytes(data[at : at + size])


def describe(log: bytes, found: ScanResult) -> SegmentDescription:
    return SegmentDescription(
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


def object_of(log: bytes, sections: Mapping[Section, bytes] | None = None) -> bytes:
    found = scan(reader(log), len(log), chunk_bytes=CHUNK_BYTES)
    end = build_tail(describe(log, found), found.chunks, sections or {})
    source = SegmentSource(reader(log), len(log), end)
    data = b"".join(source.iter_chunks())
    assert len(data) == source.size
    return data
