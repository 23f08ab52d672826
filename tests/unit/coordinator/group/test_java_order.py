"""Java's hash of a string, also of long ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from shoal.coordinator.java_order import hash_string, sort_by_hash, sort_computed_by_hash


def hash_in_a_loop(text: str) -> int:
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        value = 31 * value + int.from_bytes(encoded[at : at + 2], "big")
    value %= 1 << 32
    return value - (1 << 32) if value >= 1 << 31 else value


@given(st.text(min_size=1, max_size=20), st.integers(0, 300))
def test_long_texts_are_hashed_as_short_ones(text: str, times: int) -> None:
    assert hash_string(text * times) == hash_in_a_loop(text * times)


def test_known_hashes() -> None:
    assert [hash_string(text) for text in ("", "a", "orders", "\U0001f600")] == [
        0,
        97,
        -1008770331,
        1772899,
    ]


def test_a_computed_key_is_the_first_of_its_bucket() -> None:
    """As Kafka 4.4's assignor showed. The map of two has room for both."""
    first = ("29ef43e0-f870-4703-b958-1a87b6d5efb0", "d903bf96-7e56-4d98-8324-2b077e58a171")
    assert sort_by_hash(first, capacity=2) == [*first]
    assert sort_computed_by_hash(first, capacity=2) == [*reversed(first)]
    second = ("8fa842e1-3737-4fc3-9691-af485fae2c64", "ff7ee19d-6435-4018-b968-9cbf3bc4b151")
    assert sort_computed_by_hash(second, capacity=2) == [*second]
    assert sort_computed_by_hash((*second, second[0]), capacity=2) == [*reversed(second)]
