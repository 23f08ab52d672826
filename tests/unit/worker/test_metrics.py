"""Counts of jobs that ended together are those of each by itself."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.record.records import Record
from shoal.worker.jobs import Delivery, Hold
from shoal.worker.metrics import BOUNDS_S, HandlerMetrics, Histogram

times = st.one_of(st.sampled_from(BOUNDS_S), st.floats(0, 3600))


def make_job(run_s: float, wait_s: float, delivery_count: int) -> Delivery:
    began_s = time.monotonic()
    timestamp_ms = int((time.time() - wait_s) * 1000)
    hold = Hold("t", 0, 1, None, delivery_count)
    job = Delivery(Record(0, timestamp_ms, None, b"", ()), hold, began_s)
    job.started_s, job.ended_s = began_s, began_s + run_s
    return job


@given(st.lists(times, min_size=1))
def test_times_are_counted_by_bucket(times_s: list[float]) -> None:
    together = Histogram()
    together.add(times_s)
    below = [sum(time_s <= bound for time_s in times_s) for bound in BOUNDS_S]
    expected = [after - before for before, after in zip([0, *below], below, strict=False)]
    assert together.counts == [*expected, len(times_s) - below[-1]]
    assert together.sum_s == pytest.approx(sum(times_s))


def test_jobs_that_ended_together() -> None:
    metrics = HandlerMetrics("group", "handler")
    metrics.add([make_job(0.25, 10, 1), make_job(0.75, 10, 3)])
    assert metrics.average_run_s == pytest.approx(0.5), "there was none before"
    # A producer whose clock is ahead has not waited for less than no time.
    metrics.add([make_job(0.5, -1000, 2)])
    assert metrics.redeliveries == 2
    assert metrics.wait.sum_s == pytest.approx(20, abs=0.1)
    assert metrics.run.sum_s == pytest.approx(1.5)
    assert sum(metrics.wait.counts) == sum(metrics.run.counts) == 3
    # Many jobs count like as many, so that the last twenty decide.
    metrics.add([make_job(2.0, 1, 1)] * 200)
    assert metrics.average_run_s == pytest.approx(2.0, rel=0.01)
