"""Line charts as SVG paths. The page draws them without a script; a script adds a readout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import floor, isnan, log10
from typing import TYPE_CHECKING, NamedTuple

from shoal.console import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The plot's size in units of its viewBox, without axes.
WIDTH, HEIGHT = 600.0, 120.0
PERIOD_S = 3_600.0


class ChartLine(NamedTuple):
    """One series: its style name, its label, and a value for each time; nan where unknown."""

    name: str
    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for the template `chart.html`.

    `paths` are (style name, label, SVG path, last value). `ticks` are (height, text). `readout` is
    JSON with the values for the script.
    """

    title: str
    summary: str
    paths: list[tuple[str, str, str, str]]
    ticks: list[tuple[float, str]]
    readout: str


def draw_chart(
    title: str,
    times: Sequence[float],
    lines: Sequence[ChartLine],
    *,
    now_s: float,
    form: Callable[[float | None], str] = figures.format_count,
) -> Chart:
    """Draw the last hour. The right edge is `now_s`; values start at 0."""
    first = next((index for index, t in enumerate(times) if t >= now_s - PERIOD_S), len(times))
    recent = times[first:]
    cut = [ChartLine(line.name, line.label, line.values[first:]) for line in lines]
    highest = max((v for line in cut for v in line.values if not isnan(v)), default=0.0)
    top = _round_up(highest)
    xs = [WIDTH * (1 - (now_s - t) / PERIOD_S) for t in recent]
    paths = [
        (line.name, line.label, _draw_path(xs, line.values, top), form(_get_last(line.values)))
        for line in cut
    ]
    ticks = [(HEIGHT, form(0.0)), (0.0, form(top))]
    # A count has no halves.
    if form is not figures.format_count or (top / 2).is_integer():
        ticks.append((HEIGHT / 2, form(top / 2)))
    summary = " ".join(_summarize(line, form) for line in cut)
    readout = {
        "x": [round(x, 1) for x in xs],
        "t": [round(now_s - t) for t in recent],
        "lines": [[line.label, [_format_value(v, form) for v in line.values]] for line in cut],
    }
    return Chart(title, summary, paths, ticks, json.dumps(readout, separators=(",", ":")))


def _summarize(line: ChartLine, form: Callable[[float | None], str]) -> str:
    known_values = [v for v in line.values if not isnan(v)]
    if not known_values:
        return f"{line.label}: no values yet."
    return (
        f"{line.label}: now {form(known_values[-1])}, lowest {form(min(known_values))},"
        f" highest {form(max(known_values))}."
    )


def _get_last(values: Sequence[float]) -> float | None:
    return None if not values or isnan(values[-1]) else values[-1]


def _format_value(value: float, form: Callable[[float | None], str]) -> str:
    return form(None if isnan(value) else value)


def _draw_path(xs: Sequence[float], values: Sequence[float], top: float) -> str:
    """Return the path of the known values; a gap interrupts it."""
    out = []
    pen = "M"
    for x, value in zip(xs, values, strict=True):
        if isnan(value):
            pen = "M"
            continue
        out.append(f"{pen}{x:.1f} {HEIGHT * (1 - value / top):.1f}")
        pen = "L"
    return "".join(out)


def _round_up(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is not less, and at least 1."""
    if value <= 1:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
