"""Draws the chart of docs/performance.md as SVG: figures of Shoal in multiples of Apache Kafka's.

A bar that is better than Kafka's is green, and one that is worse orange. Both kinds are shown: the
chart answers where Shoal is faster and where it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping


class Bar(NamedTuple):
    """A figure of a load in the run of a bench, and its words in the chart."""

    bench: str
    load: str
    figure: str
    label: str


RATES = (
    Bar("one-broker", "jobs, 2 partitions, commit a poll", "rate", "jobs, a commit for each poll"),
    Bar("one-broker", "jobs, 2 partitions, commit a record", "rate", "jobs, a commit for each job"),
    Bar("one-broker", "share 1 KB implicit", "rate", "share group, 1 KB"),
    Bar("one-broker", "share 100 B explicit", "rate", "share group, 100 B, explicit"),
    Bar("cluster", "produce 1 KB, acks=all", "rate", "produce 1 KB, three brokers"),
    Bar("one-broker", "produce 1 KB acks=all", "rate", "produce 1 KB, one broker"),
    Bar("one-broker", "consume 1 KB, 1 partition, KIP-848", "rate", "consume 1 KB"),
    Bar("one-broker", "synchronous produce, 1 producer", "rate", "one record at a time"),
)
COSTS = (
    Bar("cluster", "produce 1 KB, acks=all", "cpu_s_gb", "CPU to produce a GB, three brokers"),
    Bar("one-broker", "memory", "idle_mb", "memory when idle"),
    Bar("one-broker", "start", "start_s", "start"),
    Bar("cluster", "kill -9 of a leader", "pause_s", "pause after kill -9 of a leader"),
    Bar("one-broker", "end to end, share consumer", "p99_ms", "99th percentile, end to end"),
    Bar("one-broker", "end to end, consumer", "p50_ms", "median, end to end, consumer"),
)
_WIDTH, _LEFT, _ROW = 860, 290, 26
#: The length of a bar that is as long as Kafka's, in pixels.
_UNIT = 160


def draw(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the chart of these runs, which are by bench. A figure that a run lacks is left out."""
    parts: list[str] = []
    y = 34
    for title, bars, more in (
        ("Rates: longer is better", RATES, True),
        ("Waits, CPU and memory: shorter is better", COSTS, False),
    ):
        found = [(bar, ratio) for bar in bars if (ratio := _find_ratio(documents, bar)) is not None]
        bottom = y + 12 + _ROW * len(found)
        parts.append(f'<text x="16" y="{y}" font-weight="bold">{title}</text>')
        parts.append(
            f'<line x1="{_LEFT + _UNIT}" x2="{_LEFT + _UNIT}" y1="{y}" y2="{bottom}" '
            'stroke="#37474f" stroke-dasharray="4 3"/>'
        )
        parts.append(f'<text x="{_LEFT + _UNIT}" y="{y - 5}" text-anchor="middle">Kafka</text>')
        for index, (bar, ratio) in enumerate(found):
            parts += _draw_bar(bar.label, ratio, y + 12 + _ROW * index, more=more)
        y = bottom + 44
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y - 20}" '
        'font-family="system-ui, sans-serif" font-size="14" fill="#263238" role="img">\n'
        "<title>Figures of Shoal in multiples of Apache Kafka's</title>\n"
        f'<rect width="{_WIDTH}" height="{y - 20}" rx="8" fill="#fafafa"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _find_ratio(documents: Mapping[str, Mapping[str, Any]], bar: Bar) -> float | None:
    for row in documents.get(bar.bench, {}).get("rows", ()):
        if (row["load"], row["figure"]) == (bar.load, bar.figure):
            ratio: float | None = row.get("ratio")
            return ratio
    return None


def _draw_bar(label: str, ratio: float, y: int, *, more: bool) -> list[str]:
    is_better = ratio >= 1 if more else ratio <= 1
    length = max(2, round(ratio * _UNIT))
    # The number does not lie on the line of Kafka.
    end = _UNIT if _UNIT - 50 < length < _UNIT else length
    return [
        f'<text x="{_LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{_LEFT}" y="{y + 2}" width="{length}" height="18" rx="2" '
        f'fill="{"#00796b" if is_better else "#ef6c00"}"/>',
        f'<text x="{_LEFT + end + 6}" y="{y + 15}">{ratio:.2f} ×</text>',
    ]
