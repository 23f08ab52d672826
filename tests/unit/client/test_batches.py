"""Decoding fetched batches: exact ranges, no control records, no aborted transactions."""

from __future__ import annotations

import pytest
from shoal.client.net.batches import AbortedTransactions, CorruptRecords, decode
from shoal.record.batch import assign
from shoal.record.control import build_marker
from shoal.record.records import build_batch


def batch(base: int, count: int, producer: int = -1, *, transactional: bool = False) -> bytes:
    data = build_batch(
        [(0, None, b"%d" % (base + i), ()) for i in range(count)],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )
    assign(data, 0, base, 0)
    return bytes(data)


def marker(base: int, producer: int, *, committed: bool) -> bytes:
    data = build_marker(
        committed=committed,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
    )
    assign(data, 0, base, 0)
    return bytes(data)


def offsets(data: bytes, aborted: list[tuple[int, int]] | None = None, **limits: int) -> list[int]:
    hidden = None if aborted is None else AbortedTransactions(aborted)
    return [record.offset for record in decode(data, aborted=hidden, **limits)]


def test_ranges_cut_batches_and_a_partial_tail_is_left() -> None:
    data = batch(10, 5) + batch(15, 5) + batch(20, 5)[:-1]
    assert offsets(data) == list(range(10, 20))
    assert offsets(data, first=13, last=16) == [13, 14, 15, 16]
    assert offsets(data, first=20) == []


def test_control_records_are_never_shown() -> None:
    data = batch(0, 2, 7, transactional=True) + marker(2, 7, committed=True) + batch(3, 1)
    assert offsets(data) == [0, 1, 3]
    assert offsets(data, []) == [0, 1, 3]


def test_aborted_transactions_are_hidden_and_no_others() -> None:
    """KIP-98: an aborted transaction begins at its first offset and ends with its marker."""
    data = b"".join(
        [
            batch(0, 1, 7, transactional=True),  # Committed by the marker at 1.
            marker(1, 7, committed=True),
            batch(2, 2, 7, transactional=True),  # Aborted by the marker at 6.
            batch(4, 1, 8, transactional=True),  # Another producer, committed at 7.
            batch(5, 1),
            marker(6, 7, committed=False),
            marker(7, 8, committed=True),
            batch(8, 1, 7, transactional=True),  # The next transaction of the first producer.
        ]
    )
    assert offsets(data, [(7, 2)]) == [0, 4, 5, 8]
    assert offsets(data) == [0, 2, 3, 4, 5, 8]


def test_a_wrong_crc_is_an_error() -> None:
    data = bytearray(batch(0, 2) + batch(2, 2))
    data[-1] ^= 1
    records = decode(bytes(data))
    assert [next(records).offset, next(records).offset] == [0, 1]
    with pytest.raises(CorruptRecords, match="offset 2"):
        next(records)
