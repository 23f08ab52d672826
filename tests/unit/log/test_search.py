"""Searches by timestamp: whatever the batches are, one step does a bounded amount of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.log import search
from shoal.log.config import LogConfig
from shoal.log.memory import MemoryStorage
from shoal.record import batch_validation
from shoal.record.batch import HEADER_SIZE, read_header, seal
from shoal.record.compression import OutputFull, compress
from shoal.record.records import build_batch, put_record, read_records
from support.storage.log_material import NOW_MS, batch, fill, find_since, open_log

if TYPE_CHECKING:
    from shoal.record.batch import Buffer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE = 70


def batch_with_holes(lags: list[int], deltas: set[int], codec: str) -> bytes:
    """Return a batch at offset `BASE` of which compaction has kept the records at `deltas`."""
    records = [(NOW_MS + lag, b"k", b"v", ()) for lag in lags]
    header = read_header(build_batch(records, base_offset=BASE, compression=codec))
    body = bytearray()
    for delta in sorted(deltas):
        put_record(body, lags[delta] - lags[0], delta, b"k", b"v")
    header = header._replace(record_count=len(deltas))
    return bytes(seal(header, compress(header.compression, body)))


@pytest.mark.parametrize("is_native", [True, False])
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.data(),
    st.sampled_from(CODECS),
    st.integers(-1, 6),
    st.integers(-2, 14),
)
def test_the_first_record_that_has_reached_the_timestamp(
    is_native: bool, lags: list[int], data: st.DataObject, codec: str, lag: int, start: int
) -> None:
    kept = data.draw(st.sets(st.integers(0, len(lags) - 1), min_size=1))
    whole = batch_with_holes(lags, kept, codec)
    expected = next(
        (
            (record.timestamp_ms, record.offset)
            for record in read_records(whole)
            if record.timestamp_ms >= NOW_MS + lag and record.offset >= BASE + start
        ),
        None,
    )
    with pytest.MonkeyPatch.context() as patch:
        if not is_native:
            patch.setattr(batch_validation, "native", None)
        found = search.find_in_batch(whole, NOW_MS + lag, BASE + start)
    assert (found and found[:2]) == expected


def test_a_batch_that_expands_too_far_is_refused_before_it_is_read() -> None:
    whole = bytes(build_batch([(NOW_MS, b"k", bytes(1 << 20), ())], compression="zstd"))
    assert search.find_in_batch(whole, NOW_MS, 0, bytes_max=2 << 20) == (NOW_MS, 0, -1)
    with pytest.raises(OutputFull):
        search.find_in_batch(whole, NOW_MS, 0, bytes_max=1 << 20)


def test_a_damaged_batch_counts_as_a_whole() -> None:
    header = read_header(build_batch([(NOW_MS, b"k", b"v", ())], base_offset=BASE))
    junk: Buffer = b"\xff" * (header.size - HEADER_SIZE)
    assert search.find_in_batch(bytes(seal(header, junk)), NOW_MS, 0) == (NOW_MS, BASE, -1)


def test_a_step_reads_a_bounded_number_of_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record with the largest timestamp was deleted, so the search goes through all others."""
    monkeypatch.setattr(search, "HEADERS_MAX", 10)
    log = open_log(MemoryStorage())
    fill(log, [batch(b"v", timestamp_ms=NOW_MS + 9), *[batch(b"v", timestamp_ms=NOW_MS)] * 34])
    log.advance_log_start(1)
    offsets: list[int | None] = [0]
    while (offset := offsets[-1]) is not None:
        offsets.append(log.search(NOW_MS + 9, offset, None).next_offset)
        assert len(offsets) < 9
    assert offsets == [0, 11, 21, 31, None]
    assert find_since(log, NOW_MS) == (NOW_MS, 1, 0)


def test_a_search_begins_at_the_log_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below it, the segment may have millions of batches."""
    monkeypatch.setattr(search, "HEADERS_MAX", 10)
    log = open_log(MemoryStorage(), LogConfig(index_interval_bytes=0))
    fill(log, [batch(b"v", timestamp_ms=NOW_MS)] * 100)
    log.advance_log_start(90)
    step = log.search(NOW_MS, 0, None)
    assert (step.next_offset, read_header(step.batch).base_offset) == (91, 90)
