"""The rate of dead letters over a minute, compared with a plain list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from shoal.coordinator.share.dead_letter_rate import WINDOW_MS, DeadLetterRate

STEP_MS = 1_000


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 50)), max_size=40),
    st.integers(1, 200),
)
def test_the_last_minute_is_counted_and_when_it_falls_below_a_limit(
    notes: list[tuple[int, int]], limit: int
) -> None:
    rate, now_ms = DeadLetterRate(), 1_000_000
    seen: list[Any] = []

    def total(at_ms: int) -> int:
        """Count dead letters whose second began less than a minute before."""
        return sum(n for ms, n in seen if ms - ms % STEP_MS + WINDOW_MS > at_ms)

    for pause_ms, dead_letters in notes:
        now_ms += pause_ms
        rate.note(now_ms, dead_letters)
        seen.append((now_ms, dead_letters))
        assert rate.get_total(now_ms) == total(now_ms)
    ends_ms = rate.find_end_ms(now_ms, limit)
    if ends_ms is None:
        assert total(now_ms) < limit
    else:
        assert total(ends_ms) < limit <= total(ends_ms - 1)


def test_without_a_limit_nothing_is_exceeded() -> None:
    rate = DeadLetterRate()
    rate.note(0, 1_000_000)
    assert rate.find_end_ms(0, 0) is None
