"""Parts of tiered storage without a broker: chunks, keys of objects, retention over both tiers."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.log.memory import MemoryStorage
from shoal.log.search import TimestampOffset
from shoal.record.batch import assign, iter_headers
from shoal.record.records import build_batch
from shoal.server.tiered.chunk_cache import ChunkCache, ChunkKey
from shoal.server.tiered.metadata_topic import compute_index
from shoal.tiered import keys, retention
from shoal.tiered.chunk import ChunkIndex
from shoal.tiered.retention import SegmentRange
from support.storage.log_material import NOW_MS

#: Per batch: records, size of each, and offsets that are missing before it.
BATCHES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 9000), st.integers(0, 3)), min_size=1, max_size=12
)


def chunk_of(batches) -> bytes:
    out, offset = bytearray(), 0
    for count, size, gap in batches:
        offset += gap
        data = build_batch([(NOW_MS + offset, b"k", bytes(size), ())] * count)
        assign(data, 0, offset, 2)
        out += data
        offset += count
    return bytes(out)


@given(BATCHES, st.integers(0, 60), st.integers(0, 40_000), st.integers(0, 60), st.booleans())
def test_reads_of_a_chunk(batches, offset, max_bytes, bound, min_one) -> None:
    data = chunk_of(batches)
    index = ChunkIndex(data)
    all_headers = list(iter_headers(data))
    assert index.last_offset == all_headers[-1][1].last_offset

    def read(at: int, size: int) -> bytes:
        return data[at : at + size]

    position = index.find(read, offset)
    expected = next((at for at, h in all_headers if h.last_offset >= offset), None)
    assert position == expected
    if position is None:
        return
    found = index.find_range(read, position, max_bytes=max_bytes, bound=bound, min_one=min_one)
    size, next_offset = 0, -1
    for at, header in all_headers:
        if at < position:
            continue
        first = at == position and min_one
        if header.next_offset > bound or (size + header.size > max_bytes and not first):
            break
        size, next_offset = size + header.size, header.next_offset
    assert found == (position, size, next_offset)


def test_a_search_by_time_in_a_chunk() -> None:
    data = chunk_of([(2, 10, 0), (2, 20_000, 1), (1, 10, 0)])
    index = ChunkIndex(data)

    def read(at: int, size: int) -> bytes:
        return data[at : at + size]

    assert index.find_first_record_since(read, NOW_MS + 1, 0) == TimestampOffset(NOW_MS + 3, 3, 2)
    assert index.find_first_record_since(read, NOW_MS, 1) == TimestampOffset(NOW_MS, 1, 2)
    assert index.find_first_record_since(read, NOW_MS, 4) == TimestampOffset(NOW_MS + 3, 4, 2)
    assert index.find_first_record_since(read, NOW_MS + 6, 0) is None


def test_the_cache_drops_what_was_read_longest_ago() -> None:
    storage = MemoryStorage()
    data = chunk_of([(1, 1000, 0)])
    cache = ChunkCache(storage, "data", 2 * len(data))
    cache.open()
    first, second, third = (ChunkKey(UUID(int=n), n) for n in (1, 2, 3))
    for key in (first, second):
        cache.add(key, cache.write(key, data))
    held = cache.get(first)
    cache.add(third, cache.write(third, data))
    assert [cache.has(key) for key in (first, second, third)] == [True, False, True]
    assert len(storage.list_directory("data/remote-chunks")) == 2
    assert held is not None
    assert held.read(0, 10, 10, True) == (data, 1)
    assert held.read(1, 10, 10, True) is None
    cache.drop_segment(UUID(int=1))
    assert (cache.get(first), cache.size_bytes) == (None, len(data))
    cache.open()
    assert storage.list_directory("data/remote-chunks") == []


def test_keys_separate_clusters_and_topics() -> None:
    topic_id, segment_id = UUID(int=5), UUID(int=6)
    prefix = keys.format_partition_prefix("cluster", "orders", topic_id, 3)
    key = keys.format_segment_key(prefix, 42, segment_id)
    assert key == (
        "cluster/orders-AAAAAAAAAAAAAAAAAAAABQ/3/00000000000000000042-AAAAAAAAAAAAAAAAAAAABg.segment"
    )
    assert keys.parse_segment_id(key) == segment_id
    assert keys.parse_segment_id(f"{prefix}/manifest") is None
    others = {
        keys.format_partition_prefix("other", "orders", topic_id, 3),
        keys.format_partition_prefix("cluster", "orders", UUID(int=7), 3),
        keys.format_partition_prefix("cluster", "orders", topic_id, 4),
    }
    assert prefix not in others
    assert len(others) == 3


@pytest.mark.parametrize(
    ("topic_id", "partition", "expected"),
    [
        ("00000000-0000-0001-0000-000000000002", 3, 15),
        ("00000000-0000-0001-0000-000000000002", 7, 23),
        ("12345678-9abc-def0-fedc-ba9876543210", 41, 7),
    ],
)
def test_metadata_is_in_the_partition_that_kafka_uses(topic_id, partition, expected) -> None:
    """RemoteLogMetadataTopicPartitioner of Kafka 4.3.1 returned these."""
    assert compute_index((UUID(topic_id), partition), 50) == expected


REMOTE = [
    SegmentRange(0, 10, 100, 1000),
    SegmentRange(10, 20, 100, 2000),
    SegmentRange(10, 20, 100, 2000),
]
LOCAL = [
    SegmentRange(15, 20, 50, 2000),
    SegmentRange(20, 30, 100, 3000),
    SegmentRange(30, 35, 50, 4000),
]


def start(**changes) -> int:
    settings = {
        "log_start_offset": 0,
        "high_watermark": 35,
        "now_ms": 5000,
        "retention_ms": -1,
        "retention_bytes": -1,
    }
    return retention.find_start_offset(retention.join_tiers(REMOTE, LOCAL), **settings | changes)


def test_segments_of_both_tiers_count_once() -> None:
    assert retention.join_tiers(REMOTE, LOCAL) == [*REMOTE[:2], *LOCAL]
    assert retention.join_tiers([], LOCAL) == LOCAL
    assert retention.join_tiers([*REMOTE, SegmentRange(20, 30, 100, 3000)], LOCAL) == [
        *REMOTE[:2],
        *LOCAL,
    ]


def test_retention_over_both_tiers() -> None:
    assert start() == 0
    assert start(retention_ms=3500) == 10
    assert start(retention_ms=2500) == 20
    assert start(retention_ms=1500) == 30
    assert start(retention_ms=0) == 30, "the active segment stays"
    assert start(retention_ms=1500, high_watermark=25) == 20
    assert start(retention_ms=1500, log_start_offset=32) == 32
    assert start(retention_bytes=300) == 10
    assert start(retention_bytes=301) == 0
    assert start(retention_bytes=0) == 30
    assert start(retention_bytes=300, log_start_offset=10) == 10
