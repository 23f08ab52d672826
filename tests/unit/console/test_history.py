"""An hour of each queue's numbers in the console's memory."""

from __future__ import annotations

import itertools
from math import isnan, nan
from typing import TYPE_CHECKING

import pytest
from shoal.console import figures
from shoal.console.charts import HEIGHT, WIDTH, ChartLine, draw_chart
from shoal.console.sampling.history import (
    POINTS_MAX,
    QUEUES_MAX,
    STEP_S,
    Point,
    QueueHistory,
    Series,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def filled(interval_s: float, seconds: float, per_s: float = 10.0) -> Series:
    """Return a series of samples at an interval; records are done at a steady rate."""
    series = Series()
    for i in range(int(seconds / interval_s) + 1):
        at_s = 1_000 + i * interval_s
        series.add(Point(at_s, 5, nan, i * interval_s * per_s, i * interval_s * per_s, 0))
    return series


@pytest.mark.parametrize("interval_s", [1, 2, 5, 7, 10, 60])
def test_points_are_bounded_and_span_an_hour(interval_s: float) -> None:
    series = filled(interval_s, 8_000)
    times = series.get_column("at_s")
    assert len(series) <= POINTS_MAX
    assert times[-1] == 1_000 + int(8_000 / interval_s) * interval_s
    assert times[-1] - times[0] >= 3_600 - STEP_S
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert max(gaps) < STEP_S + interval_s
    assert min(gaps[:-1]) >= STEP_S


@pytest.mark.parametrize("interval_s", [1, 5, 30])
def test_rates(interval_s: float) -> None:
    series = filled(interval_s, 200)
    assert series.compute_rate("done") == pytest.approx(10)
    assert series.compute_rates("done")[1:] == pytest.approx([10] * (len(series) - 1))
    assert isnan(series.compute_rates("done")[0])


def test_a_rate_needs_two_known_points_that_grow() -> None:
    series = Series()
    assert series.compute_rate("done") is None
    series.add(Point(0, 0, 0, 0, 100, 0))
    assert series.compute_rate("done") is None
    series.add(Point(10, 0, 0, 0, 50, 0))
    assert series.compute_rate("done") is None, "offsets were reset"
    assert isnan(series.compute_rates("done")[1])
    series.add(Point(20, 0, 0, 0, nan, 0))
    assert series.compute_rate("done") is None


def test_how_long_a_counter_has_stood() -> None:
    series = Series()
    assert series.measure_unchanged_s("done") == 0
    for at_s, done in ((0, 1), (10, 2), (20, 2), (30, 2)):
        series.add(Point(at_s, 0, 0, 0, done, 0))
    assert series.measure_unchanged_s("done") == 20
    series.add(Point(40, 0, 0, 0, 3, 0))
    assert series.measure_unchanged_s("done") == 0


def test_queues_are_bounded_and_forgotten() -> None:
    history = QueueHistory()
    point = Point(0, 0, 0, 0, 0, 0)
    for i in range(QUEUES_MAX + 10):
        history.add((f"g{i}", "t"), point)
    assert len(history.get_series("g0", "t")) == 1
    assert len(history.get_series(f"g{QUEUES_MAX}", "t")) == 0
    history.keep({("g1", "t")})
    assert len(history.get_series("g0", "t")) == 0
    assert len(history.get_series("g1", "t")) == 1


def test_a_chart_ends_now_and_breaks_at_unknown_values() -> None:
    found = draw_chart(
        "t", [0, 100, 1900, 2800, 3700], [ChartLine("a", "A", [9, 4, nan, 8, 2])], now_s=3_700
    )
    ((_, label, path, last),) = found.paths
    assert (label, last) == ("A", "2")
    assert path == f"M0.0 {HEIGHT * 0.6:.1f}M{WIDTH * 0.75:.1f} {HEIGHT * 0.2:.1f}L{WIDTH:.1f} 96.0"
    assert found.ticks == [(HEIGHT, "0"), (0.0, "10"), (HEIGHT / 2, "5")]
    assert found.summary == "A: now 2, lowest 2, highest 8."


@pytest.mark.parametrize(
    ("highest", "form", "middle"),
    [
        (1, figures.format_count, None),
        (2, figures.format_count, "1"),
        (5, figures.format_count, None),
        (50, figures.format_count, "25"),
        (1, figures.format_rate, "0.5/s"),
        (5, figures.format_rate, "2.5/s"),
    ],
)
def test_the_middle_of_a_chart_has_its_value(
    highest: float, form: Callable[[float | None], str], middle: str | None
) -> None:
    found = draw_chart("t", [5], [ChartLine("a", "A", [highest])], now_s=10, form=form)
    assert dict(found.ticks).get(HEIGHT / 2) == middle


def test_a_chart_without_values() -> None:
    found = draw_chart("t", [], [ChartLine("a", "A", [])], now_s=10)
    assert found.paths == [("a", "A", "", figures.UNKNOWN)]
    assert found.summary == "A: no values yet."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (figures.format_duration(0.25), "250 ms"),
        (figures.format_duration(59.9), "59 s"),
        (figures.format_duration(60), "1 min"),
        (figures.format_duration(3_723), "1 h 2 min"),
        (figures.format_duration(90_000), "1 d 1 h"),
        (figures.format_duration(None), "–"),
        (figures.format_size(1023), "1023 B"),
        (figures.format_size(1 << 20), "1.0 MiB"),
        (figures.format_size(-1), "–"),
        (figures.format_rate(0), "0/s"),
        (figures.format_rate(0.001), "<0.01/s"),
        (figures.format_rate(3.14159), "3.1/s"),
        (figures.format_rate(1234.5), "1,234/s"),
        (figures.format_count(1234567), "1,234,567"),
        (figures.format_instant(0), "1970-01-01T00:00:00.000Z"),
        (figures.format_instant(-1), "–"),
        (figures.format_instant(1 << 62), "4611686018427387904 ms"),
    ],
)
def test_figures_have_units(text: str, wanted: str) -> None:
    assert text == wanted
