"""Hostile bytes: only `CorruptBatch` is ever raised, and memory stays bounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.record.batch import CorruptBatch, check_crc, iter_headers, read_header, sign
from shoal.record.control import build_marker, read_marker
from shoal.record.records import build_batch, read_records
from support.runs.example_counts import scale_examples

TEXT = st.text(max_size=8)
VALUES = st.none() | st.binary(max_size=60)
RECORD = st.tuples(
    st.integers(0, 2**41), VALUES, VALUES, st.lists(st.tuples(TEXT, VALUES), max_size=3)
)
CODECS = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])


@given(st.lists(RECORD, min_size=1, max_size=20), CODECS, st.integers(0, 2**60))
def test_round_trip(rows: list, codec: str, base_offset: int) -> None:
    batch = build_batch(rows, compression=codec, base_offset=base_offset)
    header = read_header(batch)
    assert check_crc(batch, 0, header)
    assert list(iter_headers(batch)) == [(0, header)]
    expected = [(base_offset + i, t, k, v, tuple(h)) for i, (t, k, v, h) in enumerate(rows)]
    assert [tuple(r) for r in read_records(batch)] == expected


def walk(data: bytes) -> None:
    """Do all that a broker may do with bytes under a valid CRC."""
    try:
        for at, header in iter_headers(data):
            check_crc(data, at, header)
            for record in read_records(data, at, bytes_max=1 << 20):
                assert record.key is None or len(record.key) <= len(data) + (1 << 20)
            if header.is_control:
                read_marker(data, at)
    except CorruptBatch:
        pass


@settings(max_examples=scale_examples(400))
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    walk(data)


@settings(max_examples=scale_examples(400))
@given(
    st.lists(RECORD, min_size=1, max_size=5),
    CODECS,
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 400),
)
def test_mutated_batches(rows: list, codec: str, flips: list, cut: int) -> None:
    batch = build_batch(rows, compression=codec)
    for at, value in flips:
        if at < len(batch) and not 8 <= at < 12:
            batch[at] = value
    walk(bytes(batch))
    sign(batch)
    walk(bytes(batch))
    walk(bytes(batch[: len(batch) - min(cut, len(batch))]))


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_control_records_of_any_content(key: bytes, value: bytes) -> None:
    walk(bytes(build_batch([(0, key, value, ())], control=True, producer_id=1)))


def test_records_that_promise_more_than_there_is() -> None:
    batch = build_batch([(0, b"k", b"v", ())])
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="end early"):
        list(read_records(batch))
    batch[57:61] = (0).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="behind the last of 0"):
        list(read_records(batch))


def test_a_marker_records_how_a_transaction_ended() -> None:
    for committed in (True, False):
        data = build_marker(
            committed=committed,
            producer_id=5,
            producer_epoch=1,
            coordinator_epoch=9,
            timestamp_ms=77,
        )
        marker = read_marker(data)
        assert marker is not None
        assert (marker.control_type.name == "COMMIT") is committed
        assert marker.coordinator_epoch == 9
        assert read_header(data).is_control
