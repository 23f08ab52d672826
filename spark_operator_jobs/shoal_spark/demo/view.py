"""A pipeline shown to people: a live view in the terminal, and a picture of the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_spark.demo.watch import PipelineWatch, format_count, shrink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Group

BARS = " ▁▂▃▄▅▆▇█"
#: Columns of a chart in the terminal at most; the time axis is scaled to fit.
WIDTH = 64
#: Columns of a row beside its chart.
BESIDE = 33
#: Name, explanation, rows of its chart, and colour, in the order of the view.
ROWS = (
    ("backlog", "not finished", 4, "red"),
    ("workers", "", 4, "blue"),
    ("throughput", "a second", 3, "green"),
    ("results", "in a topic", 2, "cyan"),
    ("dead_letters", "broken tasks", 2, "magenta"),
)
RED, BLUE, GREEN, PURPLE = "#c0392b", "#2c6fbb", "#2a9d3a", "#8e44ad"


def draw_chart(
    values: Sequence[float], rows: int, mark: float | None = None, width: int = WIDTH
) -> list[str]:
    """Return lines of a bar chart, the topmost first; `mark` is a dashed line behind the bars."""
    columns = shrink(values, width)
    top = max([1.0, mark or 0.0, *columns])
    marked = -1 if mark is None else min(int(mark / top * rows), rows - 1)
    lines = []
    for row in reversed(range(rows)):
        eighths = [min(8, max(0, round(v / top * rows * 8) - row * 8)) for v in columns]
        line = "".join(BARS[n] for n in eighths).ljust(width)
        lines.append(line.replace(" ", "╌") if row == marked else line)
    return lines


def build_view(watch: PipelineWatch, columns: int = WIDTH + BESIDE) -> Group:
    """Return the present state of the pipeline and its totals, for a terminal of `columns`."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("now", justify="right")
    table.add_column("most", justify="right")
    table.add_column(f"over {watch.last.at_s:.0f} s", no_wrap=True)
    for name, meaning, rows, colour in ROWS:
        values = watch.get_series(name)
        title = Text(watch.workers if name == "workers" else name.replace("_", " "))
        mark = None
        if name == "workers":
            mark = watch.partitions
            meaning = f"╌ {format_count(mark, 'partition')}"
            if watch.is_scaled:
                meaning = f"{watch.last.wanted} wanted\n{meaning}"
        title.append(f"\n{meaning}", style="dim")
        lines = draw_chart(values, rows, mark, max(8, min(WIDTH, columns - BESIDE)))
        now, most = (f"{v:,.0f}" for v in (values[-1] if values else 0, max([0, *values])))
        table.add_row(title, now, most, Text("\n".join(lines), style=colour))
    tasks = f"{format_count(watch.fed, 'image task')}, {watch.broken:,} of them broken on purpose"
    head = f"{tasks}, in a queue of {format_count(watch.partitions, 'partition')}"
    state = Text(watch.state, style="dim", no_wrap=True, overflow="ellipsis")
    return Group(Text(head, style="bold"), table, state)


def draw_picture(watch: PipelineWatch, path: Path) -> None:
    """Draw backlog, results, dead letters, workers beside partitions and throughput over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    times_s = [s.at_s for s in watch.samples]
    figure, (upper, middle, lower) = pyplot.subplots(
        3, 1, figsize=(8, 7.5), sharex=True, height_ratios=(5, 4, 4)
    )
    upper.plot(times_s, watch.get_series("backlog"), label="backlog", color=RED)
    upper.plot(times_s, watch.get_series("results"), label="results", color=GREEN)
    # On a scale of their own, as they are a hundredth of the results.
    right = upper.twinx()
    right.plot(
        times_s, watch.get_series("dead_letters"), label="dead letters (right)", color=PURPLE
    )
    right.set_ylabel("dead letters", color=PURPLE)
    upper.set_title("Every task leaves the queue once, by a result or as a dead letter")
    upper.set_ylabel("records")
    middle.step(times_s, watch.get_series("workers"), where="post", label=watch.workers, color=BLUE)
    if watch.is_scaled:
        wanted_counts = watch.get_series("wanted")
        middle.step(
            times_s, wanted_counts, where="post", linestyle=":", label="wanted", color="#e0a030"
        )
    middle.axhline(watch.partitions, color="black", linestyle="--", label="partitions")
    middle.set_title("More workers than partitions share the queue")
    middle.set_ylabel(watch.workers)
    lower.plot(times_s, watch.compute_throughput(), label="tasks finished a second", color=GREEN)
    lower.set_title(f"Throughput, {watch.last.results + watch.last.dead_letters:,} tasks in all")
    lower.set_ylabel("a second")
    lower.set_xlabel("seconds")
    for axes in (upper, right, middle, lower):
        axes.set_xlim(left=0)
        # The legend has the upper part to itself.
        axes.set_ylim(0, 1.25 * max(1.0, axes.get_ylim()[1]))
    for axes in (upper, middle, lower):
        axes.grid(alpha=0.25)
        axes.title.set_fontsize(10)
    lines = [*upper.get_lines(), *right.get_lines()]
    upper.legend(handles=lines, loc="upper center", ncols=3, frameon=False)
    middle.legend(loc="upper center", ncols=3, frameon=False)
    if watch.verdict:
        figure.suptitle(watch.verdict.replace(". ", ".\n", 1), fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
