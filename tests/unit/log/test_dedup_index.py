"""The index of ids against a dumb twin: a dictionary of all appends."""

from __future__ import annotations

import itertools
from collections import Counter
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.log import dedup_index
from shoal.log.dedup_index import DedupIndex
from shoal.record.dedup_ids import DIGEST_SIZE, digest_id

WINDOW_MS = 10_000


class Twin:
    """Every append that is not freed: (id, offset, time, transaction)."""

    def __init__(self) -> None:
        self.appends: list[tuple[bytes, int, int, int | None]] = []

    def find(self, digest: bytes, now_ms: int, window_ms: int) -> int | None:
        for known, offset, at_ms, _ in reversed(self.appends):
            if known == digest and now_ms - at_ms < window_ms:
                return offset
        return None

    def end(self, transaction: int, *, aborted: bool) -> None:
        if aborted:
            self.appends = [a for a in self.appends if a[3] != transaction]
        self.appends = [(*a[:3], None if a[3] == transaction else a[3]) for a in self.appends]


STEPS = st.lists(
    st.one_of(
        # A batch: ids, the time since the last one in milliseconds, the transaction.
        st.tuples(
            st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True),
            st.one_of(st.integers(0, 12), st.integers(9_985, 10_012)),
            st.sampled_from([None, None, 1, 2]),
        ),
        # The end of a transaction.
        st.tuples(st.sampled_from([1, 2]), st.booleans()),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 1 << 40))
def test_the_index_knows_what_the_twin_knows(
    steps: list[tuple[Any, ...]], base_offset: int
) -> None:
    index, twin = DedupIndex(WINDOW_MS, base_offset), Twin()
    offset, now_ms = base_offset, 1_000_000
    for step in steps:
        if len(step) == 2:
            index.note_marker(step[0], aborted=step[1])
            twin.end(step[0], aborted=step[1])
            offset += 1
            continue
        names, later_ms, transaction = step
        now_ms += later_ms
        index.expire(now_ms)
        digests = [digest_id(b"%d" % name) for name in names]
        found = [index.find(digest) for digest in digests]
        # An id expires with the last one of its slot, a thousandth of the window later at most.
        for digest, offset_found in zip(digests, found, strict=True):
            assert offset_found in (
                twin.find(digest, now_ms, WINDOW_MS),
                twin.find(digest, now_ms, WINDOW_MS + WINDOW_MS // 1_000),
            )
        new = [(i, digest) for i, digest in enumerate(digests) if found[i] is None]
        if new:
            index.note_batch(
                new,
                base_offset=offset,
                last_offset=offset + len(names) - 1,
                now_ms=now_ms,
                transaction=transaction,
            )
            twin.appends += [(d, offset + i, now_ms, transaction) for i, d in new]
            offset += len(names)


@pytest.mark.parametrize("joined_max", [0, 3])
def test_aborted_batches_are_found_in_whichever_order_transactions_end(
    joined_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, or apart if there are too many of them."""
    monkeypatch.setattr(dedup_index, "_JOINED_MAX", joined_max)
    index = DedupIndex(WINDOW_MS, 0)
    owners = (1, 2, 3, 2, 1, 1, 3, 4)
    for offset, owner in enumerate(owners):
        index.note_batch(
            [(0, digest_id(b"%d" % offset))],
            base_offset=offset,
            last_offset=offset,
            now_ms=0,
            transaction=owner,
        )
    for ended in (4, 2, 1):
        index.note_marker(ended, aborted=True)
    found = [index.find(digest_id(b"%d" % offset)) for offset in range(len(owners))]
    assert found == [None, None, 2, None, None, None, 6, None]


def test_nobody_makes_ids_that_share_a_bucket() -> None:
    """An id is compared with all others in its bucket, which bits of its digest choose."""
    alike = (name for name in itertools.count() if compute_unsalted_bits(name) == 0)
    names = list(itertools.islice(alike, 500))
    bits = Counter(digest_id(b"%d" % name)[0] % 64 for name in names)
    assert max(bits.values()) < 50


def compute_unsalted_bits(name: int) -> int:
    """Return the lowest bits of what everybody can compute of an id."""
    return blake2b(b"%d" % name, digest_size=DIGEST_SIZE).digest()[0] % 64


def add(index: DedupIndex, names: range, offset: int, now_ms: int) -> None:
    for name in names:
        index.note_batch(
            [(0, digest_id(b"%d" % name))],
            base_offset=offset + name,
            last_offset=offset + name,
            now_ms=now_ms,
            transaction=None,
        )


def test_every_id_is_found_however_often_the_table_has_grown() -> None:
    index = DedupIndex(WINDOW_MS, 7)
    add(index, range(5_000), 7, 0)
    assert [index.find(digest_id(b"%d" % name)) for name in range(5_000)] == [
        7 + name for name in range(5_000)
    ]
    assert index.find(digest_id(b"5000")) is None
    assert len(index) == 5_000


def test_an_id_takes_less_than_16_bytes() -> None:
    index = DedupIndex(WINDOW_MS, 0)
    add(index, range(20_000), 0, 0)
    assert index.size_bytes / 20_000 < 16


def test_ids_that_expire_make_room_for_others() -> None:
    """Also if the window never passes without an id, so that the table is never empty."""
    index = DedupIndex(WINDOW_MS, 0)
    for number in range(40):
        now_ms = number * 1_000
        index.expire(now_ms)
        assert len(index) <= 10_000
        add(index, range(number * 1_000, number * 1_000 + 1_000), 0, now_ms)
    assert index.size_bytes < 12_000 * 16


def test_an_id_is_known_for_no_less_than_the_window_and_a_thousandth_more() -> None:
    known = {}
    for now_ms in (9_999, 10_008, 10_009, 10_019, 10_020):
        index = DedupIndex(WINDOW_MS, 0)
        for name, appended_ms in enumerate((0, 9, 11, 20)):
            add(index, range(name, name + 1), 0, appended_ms)
        index.expire(now_ms)
        known[now_ms] = [index.find(digest_id(b"%d" % name)) for name in range(4)]
    assert known == {
        9_999: [0, 1, 2, 3],
        10_008: [0, 1, 2, 3],
        10_009: [None, None, 2, 3],
        10_019: [None, None, 2, 3],
        10_020: [None, None, None, None],
    }
