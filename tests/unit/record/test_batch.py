"""The 61-byte header of a batch: fields that are read, changed in place, and refused."""

from __future__ import annotations

import pytest
from shoal.record import layout
from shoal.record.batch import (
    HEADER_SIZE,
    SEQUENCE_MAX,
    BatchHeader,
    CorruptBatch,
    TimestampType,
    UnsupportedMagic,
    advance_sequence,
    assign,
    build_prefix,
    check_crc,
    iter_headers,
    read_header,
)
from shoal.record.records import build_batch, build_own_batch, read_records

ROWS = [(1000, b"k", b"v", (("h", b"x"), ("n", None))), (900, None, None, ()), (1005, b"", b"", ())]


def test_the_fields_of_a_header() -> None:
    batch = build_batch(
        ROWS, base_offset=7, producer_id=3, producer_epoch=2, base_sequence=5, leader_epoch=9
    )
    header = read_header(batch)
    assert header.size == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 9, 10)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1005)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 2, 5)
    assert (header.last_sequence, header.leader_epoch, header.record_count) == (7, 9, 3)
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not (header.is_transactional)
    assert not (header.is_control)
    assert not (header.compression)
    assert header.delete_horizon_ms is None


def test_records_come_back_as_they_went_in() -> None:
    batch = build_batch(ROWS, base_offset=7)
    assert [tuple(r) for r in read_records(batch)] == [
        (7, 1000, b"k", b"v", (("h", b"x"), ("n", None))),
        (8, 900, None, None, ()),
        (9, 1005, b"", b"", ()),
    ]


def test_offset_and_epoch_stand_outside_the_crc() -> None:
    batch = build_batch(ROWS)
    assign(batch, 0, 2**40, 77)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 77)
    assert check_crc(batch, 0, header)
    assert build_prefix(build_batch(ROWS), 0, 2**40, 77) == batch[:16]


def test_log_append_time_changes_the_crc_and_is_every_records_timestamp() -> None:
    batch = build_batch(ROWS)
    assign(batch, 0, 5, 1, append_time_ms=4242)
    header = read_header(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert check_crc(batch, 0, header)
    assert [r.timestamp_ms for r in read_records(batch)] == [4242] * 3


def test_the_crc_sees_a_flipped_bit() -> None:
    batch = build_batch(ROWS)
    header = read_header(batch)
    assert check_crc(batch, 0, header)
    unseen = []
    for at in range(21, 61):
        batch[at] ^= 1
        if check_crc(batch, 0, header):
            unseen.append(at)
        batch[at] ^= 1
    assert not unseen


def test_a_batch_that_ends_early_has_no_right_crc() -> None:
    batch = build_batch(ROWS)
    assert not check_crc(batch[:-1], 0, read_header(batch))


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_magics_are_distinguished(magic: int) -> None:
    batch = build_batch(ROWS)
    batch[16] = magic
    with pytest.raises(UnsupportedMagic, match=f"magic {magic}"):
        read_header(batch)
    with pytest.raises(UnsupportedMagic):
        read_header(batch[:17])


@pytest.mark.parametrize(
    ("at", "new"),
    [(8, b"\xff\xff\xff\xff"), (8, b"\0\0\0\x30"), (23, b"\xff\xff\xff\xff"), (0, b"\xff" * 8)],
    ids=["length -1", "length under a header", "last offset delta -1", "base offset -1"],
)
def test_nonsense_is_corrupt(at: int, new: bytes) -> None:
    batch = build_batch(ROWS)
    batch[at : at + len(new)] = new
    with pytest.raises(CorruptBatch):
        read_header(batch)


def test_headers_of_many_batches_stop_before_a_partial_one() -> None:
    one, two = build_batch(ROWS), build_batch(ROWS[:1], base_offset=3)
    data = bytes(one + two)
    for end in range(len(data) + 1):
        found = [at for at, _ in iter_headers(data[:end])]
        whole = [0] * (end >= len(one)) + [len(one)] * (end >= len(data))
        assert found == whole
    assert HEADER_SIZE == 61


def test_the_layout_is_that_of_kafka() -> None:
    """Kafka's documentation, "Record Batch"."""
    assert layout.OFFSETS == {
        "base_offset": 0,
        "batch_length": 8,
        "leader_epoch": 12,
        "magic": 16,
        "crc": 17,
        "attributes": 21,
        "last_offset_delta": 23,
        "base_timestamp": 27,
        "max_timestamp": 35,
        "producer_id": 43,
        "producer_epoch": 51,
        "base_sequence": 53,
        "record_count": 57,
    }
    assert tuple(layout.OFFSETS) == BatchHeader._fields
    assert layout.build_format(*layout.OFFSETS) == layout.FORMAT
    assert layout.build_format("base_offset", "magic", "record_count") == ">q8xb40xi"
    assert (layout.OVERHEAD, layout.CRC_FROM, layout.HEADER_SIZE) == (12, 21, 61)


def test_sequences_wrap_behind_the_largest() -> None:
    """KIP-98 leaves it open; Kafka's DefaultRecordBatch continues with 0."""
    assert advance_sequence(SEQUENCE_MAX, 1) == 0
    assert advance_sequence(SEQUENCE_MAX - 1, 3) == 1
    batch = build_batch(ROWS, producer_id=1, producer_epoch=0, base_sequence=SEQUENCE_MAX)
    assert read_header(batch).last_sequence == 1


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1023, 1024, 100_000])
def test_the_brokers_own_batch_is_as_any_other(size: int) -> None:
    pairs = [(b"k" * size, b"v" * size), (b"k", None), (b"", b"v" * size)] * 30
    for records in (pairs[:1], pairs):
        built = build_batch(
            [(77, key, value, ()) for key, value in records], base_offset=1 << 40, leader_epoch=6
        )
        own = build_own_batch(records, timestamp_ms=77, base_offset=1 << 40, leader_epoch=6)
        assert own == built


def test_an_empty_batch_is_not_built() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])
