"""The source's record reader compared with the general one, and on arbitrary bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shoal.client.net.batches import CorruptRecords
from shoal.client.queues.timestamps import DATE_MS_MAX
from shoal.record.batch import CorruptBatch, assign, read_header, sign
from shoal.record.records import build_batch, encode_header_key, read_records
from shoal_spark.columns import FIRST_MS, ColumnBuffer, build_schema
from shoal_spark.ranges import OffsetRange
from support.attacks.accepted_batches import Accepted, batches, build

BYTES = st.none() | st.binary(max_size=300) | st.just(b"x" * 20_000)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**42),
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=80,
)


@given(
    RECORDS,
    st.integers(0, 2**40),
    st.integers(0, 90),
    st.integers(0, 90),
    st.sampled_from(["none", "zstd"]),
    st.booleans(),
    st.booleans(),
)
def test_columns_are_the_records(
    records: list, base: int, first: int, count: int, codec: str, headers: bool, appended: bool
) -> None:
    data = build_batch(records, compression=codec)
    assign(data, 0, base, 3, 777 if appended else None)
    r = OffsetRange("t", 5, base + first, base + first + count, 2)
    columns = ColumnBuffer("t", 5, with_headers=headers, with_errors=False)
    columns.add(bytes(data), 0, read_header(data), r)
    wanted = [record for record in read_records(data) if r.first <= record.offset <= r.last]
    assert columns.offsets == [record.offset for record in wanted]
    if not wanted:
        return
    rows = columns.take().to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(w.key, w.value) for w in wanted]
    assert [row["timestamp"].timestamp() for row in rows] == pytest.approx(
        [w.timestamp_ms / 1000 for w in wanted], abs=1e-4
    )
    same = {
        (row["topic"], row["partition"], row["timestampType"], row["deliveryCount"]) for row in rows
    }
    assert same == {("t", 5, int(appended), 2)}
    if headers:
        assert [[(h["key"], h["value"]) for h in row["headers"]] for row in rows] == [
            list(w.headers) for w in wanted
        ]
    assert columns.offsets == []


def test_batches_gather_until_they_make_a_good_one() -> None:
    columns = ColumnBuffer("t", 0, with_headers=False, with_errors=False)
    for base in range(0, 12_000, 10):
        data = build_batch([(0, None, b"v", ())] * 10, base_offset=base)
        columns.add(bytes(data), 0, read_header(data), OffsetRange("t", 0, 0, 20_000))
        assert columns.is_full == (base >= 9_990)
    batch = columns.take()
    assert isinstance(batch, pa.RecordBatch)
    assert (batch.num_rows, batch.schema) == (12_000, build_schema(False, False))


@given(RECORDS, st.data())
def test_damaged_bytes_are_an_error_and_never_a_row(records: list, data: st.DataObject) -> None:
    whole = build_batch(records)
    at = data.draw(st.integers(61, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    columns = ColumnBuffer("t", 0, with_headers=False, with_errors=False)
    with pytest.raises(CorruptRecords):
        columns.add(bytes(whole), 0, read_header(whole), OffsetRange("t", 0, 0, 100))


def signed(whole: bytes | bytearray, body: bytes) -> bytes:
    """Return the batch with other records, and the right size and CRC."""
    batch = bytearray(whole[:61] + body)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    sign(batch)
    return bytes(batch)


@given(st.binary(max_size=200), st.integers(1, 20))
def test_records_of_any_bytes_end(body: bytes, count: int) -> None:
    """A valid CRC may cover nonsense, which is refused, or read within its bounds."""
    whole = signed(build_batch([(0, None, None, ())] * count), body)
    columns = ColumnBuffer("t", 0, with_headers=False, with_errors=False)
    try:
        columns.add(whole, 0, read_header(whole), OffsetRange("t", 0, 0, 2**62))
    except (CorruptBatch, CorruptRecords):
        return
    assert len(columns.offsets) <= count


def test_a_value_that_passes_its_record_is_refused() -> None:
    whole = build_batch([(0, None, b"abc", ()), (0, None, b"def", ())])
    body = bytearray(whole[61:])
    assert body[5:9] == b"\x06abc", "the length of the value, and the value"
    body[5] = 2 * 9
    damaged = signed(whole, bytes(body))
    columns = ColumnBuffer("t", 0, with_headers=False, with_errors=False)
    with pytest.raises(CorruptBatch, match="offset 0 passes its end"):
        columns.add(damaged, 0, read_header(damaged), OffsetRange("t", 0, 0, 9))


@settings(max_examples=40)
@given(batches)
@example(build([(2**63 - 1, None, b"far", []), (-2, None, b"behind it by 64 bits", [])], "none"))
def test_accepted_batches_become_rows(batch: Accepted) -> None:
    """Header keys are text, and timestamps outside the years 1 to 9999 are null."""
    columns = ColumnBuffer("t", 0, with_headers=True, with_errors=False)
    columns.add(
        batch.data, 0, read_header(batch.data), OffsetRange("t", 0, 0, len(batch.records), 1)
    )
    rows = columns.take().to_pylist()
    for row, (timestamp_ms, key, value, headers) in zip(rows, batch.records, strict=True):
        assert (row["key"], row["value"]) == (key, value)
        names = [encode_header_key(name).decode(errors="replace") for name, _ in headers]
        assert [header["key"] for header in row["headers"]] == names
        if FIRST_MS <= timestamp_ms <= DATE_MS_MAX:
            assert row["timestamp"].timestamp() == pytest.approx(timestamp_ms / 1000)
        else:
            assert row["timestamp"] is None


def test_undecodable_records_are_rows_with_the_error() -> None:
    data = bytes(build_batch([(5, b"k", b"v", ())] * 3, base_offset=10))
    columns = ColumnBuffer("t", 0, with_headers=True, with_errors=True)
    header, locked = read_header(data), OffsetRange("t", 0, 11, 20, 2, 9)
    columns.add(data, 0, header, locked)
    columns.add_undecodable(header, locked, "CorruptBatch: why")
    rows = columns.take().to_pylist()
    assert [row["offset"] for row in rows] == [11, 12] * 2
    assert [row["value"] for row in rows] == [b"v"] * 2 + [None] * 2
    assert [row["decodeError"] for row in rows] == [None] * 2 + ["CorruptBatch: why"] * 2
    assert {row["deliveryCount"] for row in rows} == {2}
