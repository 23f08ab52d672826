"""The walk over a batch's records, compiled and in Python: the same verdict for any bytes."""

from __future__ import annotations

from random import Random
from typing import Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.record import batch_validation
from shoal.record.batch_validation import BatchValidation, Fault, validate_records
from support.attacks.faulty_batches import headers, record, varint
from support.runs.example_counts import scale_examples
from support.runs.machine import lacking

MANY = settings(max_examples=scale_examples(150))
LONG = 2**63
longs = st.integers(-LONG, LONG - 1) | st.integers(-3, 3)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    if batch_validation.native is None:
        lacking("the walk is not compiled: python -m shoal.compile, with a C compiler")


def both(body: bytes, count: int, **options: Any) -> BatchValidation:
    """Return the verdict, which both kinds must share."""
    options = {"base_timestamp": 0, **options}
    found = validate_records(body, count, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_validation, "native", None)
        assert validate_records(body, count, **options) == found
    return found


@pytest.mark.parametrize(
    ("fault", "middle"),
    [
        (Fault.SIZE, record(1, size=5)),
        (Fault.SIZE, record(1, size=-1)),
        (Fault.SIZE, record(1, size=2**31 - 1)),
        (Fault.VARINT, record(1, size_field=b"\xff\xff\xff\xff\x7f")),
        (Fault.VARINT, record(1, timestamp_field=b"\x80" * 10 + b"\0")),
        (Fault.OFFSET, record(2)),
        (Fault.OFFSET, record(-1)),
        (Fault.KEY, record(1, key_field=varint(-2))),
        (Fault.KEY, record(1, key_field=varint(2**31 - 1))),
        (Fault.VALUE, record(1, value_field=varint(-2))),
        (Fault.VALUE, record(1, value_field=varint(9) + b"value")),
        (Fault.HEADERS, record(1, headers=headers(count=-1))),
        (Fault.HEADERS, record(1, headers=headers(count=2**31 - 1))),
        (Fault.HEADER_KEY, record(1, headers=headers((None, b"b")))),
        (Fault.HEADER_VALUE, record(1, headers=varint(1) + b"\x02a" + varint(-2))),
        (Fault.END, record(1, tail=b"\0")),
    ],
)
def test_the_first_faulty_record_is_named(fault: Fault, middle: bytes) -> None:
    found = both(record(0) + middle + record(2), 3)
    assert (found.fault, found.record, found.place) == (fault, 1, len(record(0)))


def test_the_number_of_records() -> None:
    body = record(0) + record(1)
    assert both(body, 2)[:3] == (Fault.SOUND, 2, len(body))
    assert both(body, 3)[:3] == (Fault.TOO_FEW, 2, len(body))
    assert both(body, 1)[:3] == (Fault.TRAILING, 1, len(record(0)))
    assert both(b"", 2**31 - 1)[:3] == (Fault.TOO_FEW, 0, 0)


def test_records_to_blame_are_listed_up_to_a_bound() -> None:
    body = b"".join(
        record(i, key=None if i % 2 else b"k", timestamp_delta=10 * i) for i in range(6)
    )
    found = both(body, 6, base_timestamp=100, oldest=110, newest=130, keyed=True, flags_max=9)
    assert found.flags == [(0, 100), (1, None), (3, None), (4, 140), (5, None)]
    assert (found.flagged, found.max_timestamp) == (5, 150)
    assert len(both(body, 6, newest=-5, flags_max=2).flags) == 2


def test_timestamps_wrap_as_in_java_and_minus_one_is_none() -> None:
    far = record(0, timestamp_delta=LONG - 1)
    assert both(far, 1, base_timestamp=2, oldest=0, flags_max=1).flags == [(0, -LONG + 1)]
    assert both(record(0), 1, base_timestamp=-1, oldest=0, flags_max=1).flags == []
    assert both(record(0), 1, base_timestamp=-7).max_timestamp == -1


header_pairs = st.lists(
    st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=3
)
fields = st.tuples(
    longs, st.none() | st.binary(max_size=70), st.none() | st.binary(max_size=200), header_pairs
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw valid records and their number."""
    rows = draw(st.lists(fields, min_size=1, max_size=6))
    parts = [
        record(i, timestamp_delta=delta, key=key, value=value, headers=headers(*pairs))
        for i, (delta, key, value, pairs) in enumerate(rows)
    ]
    return b"".join(parts), len(rows)


@MANY
@given(bodies(), longs, longs, longs, st.booleans(), st.integers(0, 5))
def test_sound_records_pass(
    body: tuple[bytes, int], base: int, oldest: int, newest: int, keyed: bool, flags_max: int
) -> None:
    found = both(
        *body, base_timestamp=base, oldest=oldest, newest=newest, keyed=keyed, flags_max=flags_max
    )
    assert (found.fault, found.record, found.place) == (Fault.SOUND, body[1], len(body[0]))
    assert len(found.flags) == min(flags_max, found.flagged)


@MANY
@given(bodies(), st.data())
def test_mutations_get_one_verdict(body: tuple[bytes, int], data: st.DataObject) -> None:
    changed = bytearray(body[0])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed)))
        cut = data.draw(st.integers(0, 3))
        changed[at : at + cut] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"\xff" * 4 + b"\x0f", b"\x80" * 9, b"\x01"])
        )
    count = max(0, body[1] + data.draw(st.integers(-1, 1)))
    both(bytes(changed), count, base_timestamp=data.draw(longs), keyed=True, flags_max=3)


@MANY
@given(st.binary(max_size=60), st.integers(0, 2**31 - 1) | st.integers(0, 4))
def test_any_bytes_get_one_verdict(body: bytes, count: int) -> None:
    both(body, count, keyed=True, flags_max=2)


@MANY
@given(st.binary(max_size=300))
def test_the_checksum_in_c_is_that_of_the_package(data: bytes) -> None:
    """One CRC-32C serves all C sources: `record/native/crc32c.h`."""
    native: Any = batch_validation.native
    for view in (data, memoryview(data)[len(data) // 3 :]):
        assert native.crc32c(view) == native.crc32c_by_table(view) == crc32c.crc32c(view)


@given(st.sampled_from([8, 768, 12_288]), st.integers(1, 4), st.integers(-9, 9), st.integers())
def test_the_checksum_of_long_data(block: int, blocks: int, more: int, seed: int) -> None:
    """The instruction runs over three lanes of 4096 bytes, then of 256, then over words."""
    native: Any = batch_validation.native
    data = Random(seed).randbytes(max(0, block * blocks + more))
    assert native.crc32c(data) == native.crc32c_by_table(data) == crc32c.crc32c(data)
