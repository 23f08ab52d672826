"""The size of batches follows the time of records, within its bounds, and converges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal_spark.batch_size import FIRST_RECORDS, GROWTH_MAX, BatchSize


def run(
    pace: BatchSize, record_s: float, overhead_s: float, batches: int, there: int = 10**9
) -> int:
    """Run equal batches; return the size of the last one."""
    now_s, size = 0.0, 0
    for seq in range(1, batches + 1):
        size = min(pace.compute_limit(10_000), there)
        pace.note_given(seq, size, now_s)
        now_s += overhead_s + size * record_s
        pace.note_completed(seq, now_s)
    return size


def test_without_a_target_the_limit_is_the_querys() -> None:
    pace = BatchSize(0, 1)
    assert pace.compute_limit(50_000) == 50_000
    assert run(pace, 1.0, 1.0, 3) == 10_000


@given(st.floats(1e-6, 1.0), st.floats(0.01, 2.0))
def test_it_comes_to_rest_at_the_target(record_s: float, overhead_s: float) -> None:
    pace = BatchSize(10.0, 1)
    size = run(pace, record_s, overhead_s, 60)
    took_s = overhead_s + size * record_s
    assert size == 10_000 or took_s == pytest.approx(10.0, abs=max(0.5, 1.5 * record_s))


def test_few_records_are_no_measurement() -> None:
    pace = BatchSize(10.0, 1)
    run(pace, 0.0, 1.0, 50, there=3)
    assert pace.compute_limit(10_000) == FIRST_RECORDS


def test_bounds() -> None:
    pace = BatchSize(10.0, 60)
    assert run(pace, 100.0, 1.0, 5) == 60, "every core has something to do"
    grown = [BatchSize(10.0, 60).compute_limit(n) for n in (10, 10_000)]
    assert grown == [10, FIRST_RECORDS]
    pace = BatchSize(10.0, 60)
    run(pace, 0.0, 0.001, 1)
    assert pace.compute_limit(10**9) == FIRST_RECORDS * GROWTH_MAX


def test_an_incomplete_batch_is_no_measurement() -> None:
    pace = BatchSize(10.0, 1)
    pace.note_given(2, 1000, 0.0)
    pace.note_completed(1, 100.0)
    assert pace.compute_limit(10_000) == FIRST_RECORDS
    pace.note_completed(2, 100.0)
    pace.note_completed(2, 200.0)
    assert pace.compute_limit(10_000) == 100
