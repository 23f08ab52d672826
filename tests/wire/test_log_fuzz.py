"""Hostile batches at a log: it accepts valid ones, refuses others, and can read what it
accepted."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.log.appends import AppendOrigin
from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused
from shoal.log.memory import MemoryStorage
from shoal.record.batch import iter_headers, sign
from shoal.record.compression import Compression, compress
from shoal.record.records import build_batch, read_records
from support.runs.example_counts import scale_examples
from support.storage.log_material import NOW_MS, batch, find_since, open_log

if TYPE_CHECKING:
    from shoal.log.log import Log

CONFIGS = [
    LogConfig(),
    LogConfig(cleanup_policy=("compact",)),
    LogConfig(compression_type="zstd"),
    LogConfig(message_timestamp_type="LogAppendTime", compression_type="gzip"),
    LogConfig(message_timestamp_before_max_ms=1000),
]


def offer(log: Log, data: bytes) -> None:
    """Append as any client may; the log then contains only complete batches."""
    for origin in AppendOrigin:
        end = log.log_end_offset
        try:
            log.append(data, now_ms=NOW_MS, leader_epoch=0, origin=origin)
        except AppendRefused as refused:
            if not refused.message:
                raise
        else:
            assert log.log_end_offset > end
    try:
        log.append_as_follower(data)
    except AppendRefused as refused:
        if not refused.message:
            raise
    at = log.log_start_offset
    while at < log.log_end_offset:
        found = log.read(at, 1 << 20)
        assert sum(h.size for _, h in iter_headers(found.data)) == len(found.data)
        if not found.data:
            break
        at = found.next_offset
    for timestamp in (0, NOW_MS):
        find_since(log, timestamp)  # also when records are garbled under a valid CRC


@settings(max_examples=scale_examples(200))
@given(st.binary(max_size=200), st.sampled_from(CONFIGS))
def test_random_bytes(data: bytes, config: LogConfig) -> None:
    offer(open_log(MemoryStorage(), config), data)


@settings(max_examples=scale_examples(400))
@given(
    st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
    st.lists(st.tuples(st.integers(0, 130), st.integers(0, 255)), max_size=5),
    st.booleans(),
    st.sampled_from(CONFIGS),
)
def test_mutated_batches(codec: str, flips: list, signed: bool, config: LogConfig) -> None:
    data = batch(b"one", b"two" * 9, key=b"k", compression=codec, producer=(5, 0, 0))
    for at, value in flips:
        if at < len(data):
            data[at] = value
    if signed and int.from_bytes(data[8:12], "big") + 12 == len(data):
        sign(data)
    offer(open_log(MemoryStorage(), config), bytes(data))


def test_a_bomb_is_refused_at_the_cost_of_its_bound() -> None:
    """Whatever the topic's settings. The expanded data is outside of Python's memory."""
    rows = build_batch([(NOW_MS, b"k", b"v", ())])
    bomb = rows[:61] + bytes(compress(Compression.ZSTD, bytes(400 << 20)))
    bomb[8:12] = (len(bomb) - 12).to_bytes(4, "big")
    bomb[21:23] = Compression.ZSTD.to_bytes(2, "big")
    sign(bomb)
    assert len(bomb) < 64_000
    for config in (CONFIGS[0], CONFIGS[2]):
        log = open_log(MemoryStorage(), config)
        tracemalloc.start()
        try:
            with pytest.raises(AppendRefused, match="expand past"):
                log.append(bomb, now_ms=NOW_MS, leader_epoch=0)
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 1 << 20
    assert list(read_records(rows))
