"""The loop in C that finds the ids of records, beside the one in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.record import batch_validation
from shoal.record.batch import HEADER_SIZE, CorruptBatch
from shoal.record.dedup_ids import DEDUP_ID, find_ids, find_ids_in_python
from shoal.record.records import build_batch

#: The name of the header behind its size.
ENCODED = bytes((2 * len(DEDUP_ID),)) + DEDUP_ID.encode()
BYTES = st.sampled_from([None, b"", b"x", ENCODED + b"\x02i", b"y" * 200])
NAMES = st.sampled_from([DEDUP_ID, DEDUP_ID, "shoal.dedup.i", DEDUP_ID + "s", "", "\u00fc"])
HEADERS = st.lists(st.tuples(NAMES, BYTES), max_size=4)
RECORDS = st.lists(st.tuples(st.integers(0, 1 << 40), BYTES, BYTES, HEADERS), min_size=1)


def find(records: bytes, count: int, *, in_python: bool) -> object:
    """Return the ids, or the kind of the error."""
    try:
        return (find_ids_in_python if in_python else find_ids)(records, count)
    except CorruptBatch:
        return CorruptBatch


@pytest.mark.skipif(batch_validation.native is None, reason="there is no C compiler")
@given(records=RECORDS, data=st.data())
def test_both_find_the_same_ids_also_in_damaged_records(
    records: list[Any], data: st.DataObject
) -> None:
    body = bytearray(build_batch(records)[HEADER_SIZE:])
    assert find(bytes(body), len(records), in_python=False) == find(
        bytes(body), len(records), in_python=True
    )
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    damaged, count = bytes(body), len(records) + data.draw(st.integers(-1, 1))
    if ENCODED in damaged:  # Otherwise nobody looks further.
        assert find(damaged, count, in_python=False) == find(damaged, count, in_python=True)


def test_a_size_that_takes_more_bytes_than_it_needs_is_read_in_python() -> None:
    """There the name is not looked for, unless it also lies elsewhere in the record."""
    for value in (b"", ENCODED):
        headers: list[Any] = [(DEDUP_ID, b"a"), ("other", value)]
        body = bytes(build_batch([(0, None, b"", headers)])[HEADER_SIZE:])
        at = body.index(ENCODED)
        longer = body[:at] + bytes((ENCODED[0] | 0x80, 0)) + body[at + 1 :]
        longer = bytes((longer[0] + 2,)) + longer[1:]
        assert find(longer, 1, in_python=False) == find(longer, 1, in_python=True)


def test_the_first_header_counts_and_an_empty_one_is_none() -> None:
    rows: list[Any] = [
        (0, None, b"", [(DEDUP_ID, b"a"), (DEDUP_ID, b"b")]),
        (0, None, b"", [("other", b"a"), (DEDUP_ID, b"a")]),
        (0, None, b"", [(DEDUP_ID, b""), (DEDUP_ID, b"a")]),
        (0, None, b"", [(DEDUP_ID, None)]),
    ]
    ids = find_ids(bytes(build_batch(rows)[HEADER_SIZE:]), len(rows))
    assert [one.offset_delta for one in ids] == [0, 1]
    assert ids[0].digest == ids[1].digest
