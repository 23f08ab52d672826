"""The hash of keys: vectors that must never change, and its independence from the partitioner."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.client.produce.partitioner import choose_partition
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import batch_validation, key_hash
from shoal.record.key_ranges import KeyRanges
from support.runs.example_counts import scale_examples
from support.runs.machine import lacking

#: Version 1. `b"ABC"` is the example of Spark's documentation of `xxhash64`, without its lowest
#: bit: 4105715581806190027 >> 1.
VECTORS = [
    (b"", 5501336153254261634),
    (b"a", 4932144372486232166),
    (b"abc", 711828810925062259),
    (b"ABC", 2052857790903095013),
    (b"\x00", 4743374800004148115),
    (b"1234567", 7628948021880833024),
    (b"12345678", 3431520032567244545),
    (b"order-1", 4794753033359627009),
    (bytes(range(31)), 4728903986990291884),
    (bytes(range(32)), 4901307160923809849),
    (bytes(range(33)), 1023468047500873709),
    (b"k" * 100, 5270897451599910485),
    (bytes(range(256)), 8145105240723598366),
]
#: Of records without a key, by their offset.
OFFSETS = [
    (0, 6597109305806862902),
    (1, 3776062409821395165),
    (2**63 - 1, 8679742653839824119),
]
#: XXH64 with seed 0, from the xxHash specification and its test suites.
PUBLISHED = [
    (b"", 0xEF46DB3751D8E999),
    (b"a", 0xD24EC4F1A98C6E5B),
    (b"abc", 0x44BC2CF5AD770999),
    (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
]


@pytest.mark.parametrize(("key", "expected"), VECTORS, ids=lambda v: str(v)[:20])
def test_vectors(key: bytes, expected: int) -> None:
    assert key_hash.hash_key(key) == key_hash.hash_key_in_python(key) == expected
    assert key_hash.hash_key(memoryview(key)) == key_hash.hash_record(key, 7) == expected


@pytest.mark.parametrize(("offset", "expected"), OFFSETS)
def test_vectors_of_records_without_a_key(offset: int, expected: int) -> None:
    assert key_hash.hash_record(None, offset) == expected


@pytest.mark.parametrize(("key", "expected"), PUBLISHED, ids=lambda v: str(v)[:20])
def test_it_is_xxh64(key: bytes, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_hash, "_SEED", 0)
    assert key_hash.hash_key_in_python(key) == expected >> 1


@settings(max_examples=scale_examples(500), deadline=None)
@given(st.binary(max_size=200))
def test_the_compiled_hash_is_the_same(key: bytes) -> None:
    if batch_validation.native is None:
        lacking("the hash is not compiled: python -m shoal.compile, with a C compiler")
    assert 0 <= key_hash.hash_key(key) == key_hash.hash_key_in_python(key) <= KEY_HASH_MAX


def test_the_keys_of_one_partition_spread_over_all_ranges() -> None:
    """The partitioner's hash gives a partition every eighth key; each range gets its part of
    them."""
    keys = [b"key-%d" % n for n in range(16_000)]
    mine = [key for key in keys if choose_partition(key, 8) == 3]
    parts = [KeyRanges.from_part(n, 8) for n in range(1, 9)]
    counts = [sum(part.has_record(key, 0) for key in mine) for part in parts]
    assert sum(counts) == len(mine) > 1_800
    assert max(counts) < 1.25 * min(counts)
