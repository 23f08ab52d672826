"""Java's hash of a string, also of long ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from shoal.coordinator.java_order import string_hash


def hash_in_a_loop(text: str) -> int:
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = 31 * value + int.from_bytes(encoded[at : at + 2], "big")
    value %= 1 << 32
    return value - (1 << 32) if value >= 1 << 31 else value


@given(st.text(min_size=1, max_size=20), st.integers(0, 300))
def test_long_texts_are_hashed_as_short_ones(text: str, times: int) -> None:
    assert string_hash(text * times) == hash_in_a_loop(text * times)


def test_known_hashes() -> None:
    assert [string_hash(text) for text in ("", "a", "orders", "\U0001f600")] == [
        0,
        97,
        -1008770331,
        1772899,
    ]
