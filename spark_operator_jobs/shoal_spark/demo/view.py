"""A pipeline shown to people: a live view in the terminal, and a picture of the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_spark.demo.watch import Watch, shrunk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Group

BARS = " ▁▂▃▄▅▆▇█"
#: Columns of a chart in the terminal; the time axis is scaled to fit.
WIDTH = 64
#: Name, rows of its chart, and colour, in the order of the view.
ROWS = (
    ("backlog", 4, "red"),
    ("workers", 4, "blue"),
    ("throughput", 3, "green"),
    ("results", 2, "cyan"),
    ("dead_letters", 2, "magenta"),
)


def chart(values: Sequence[float], rows: int, mark: float | None = None) -> list[str]:
    """Return lines of a bar chart, the topmost first; `mark` is a dashed line behind the bars."""
    columns = shrunk(values, WIDTH)
    top = max([1.0, mark or 0.0, *columns])
    marked = -1 if mark is None else min(int(mark / top * rows), rows - 1)
    lines = []
    for row in reversed(range(rows)):
        eighths = [min(8, max(0, round(v / top * rows * 8) - row * 8)) for v in columns]
        line = "".join(BARS[n] for n in eighths).ljust(WIDTH)
        lines.append(line.replace(" ", "╌") if row == marked else line)
    return lines


def view(watch: Watch) -> Group:
    """Return the present state of the pipeline and its totals."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), show_edge=False)
    table.add_column("")
    table.add_column("now", justify="right")
    table.add_column("most", justify="right")
    table.add_column(f"over {watch.last.at_s:.0f} s")
    for name, rows, colour in ROWS:
        values = watch.series(name)
        title = watch.workers if name == "workers" else name.replace("_", " ")
        mark = None
        if name == "workers":
            title, mark = f"{title}\n({watch.last.wanted} wanted)\n╌ partitions", watch.partitions
        elif name == "throughput":
            title += "\n(a second)"
        drawn = Text("\n".join(chart(values, rows, mark)), style=colour, no_wrap=True)
        now, most = (f"{v:,.0f}" for v in (values[-1] if values else 0, max([0, *values])))
        table.add_row(title, now, most, drawn)
    head = f"{watch.fed:,} image tasks in {watch.partitions} partitions, {watch.broken} broken"
    state = Text(watch.state, style="dim", no_wrap=True, overflow="ellipsis")
    return Group(Text(head, style="bold"), table, state)


def picture(watch: Watch, path: Path) -> None:
    """Draw backlog and results, workers and partitions, throughput and dead letters over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    at = [s.at_s for s in watch.samples]
    figure, (upper, middle, lower) = pyplot.subplots(3, 1, figsize=(8, 7), sharex=True)
    upper.plot(at, watch.series("backlog"), label="backlog", color="#c0392b")
    upper.plot(at, watch.series("results"), label="results", color="#2a9d3a")
    upper.set_ylabel("records")
    middle.step(at, watch.series("workers"), where="post", label=f"{watch.workers} running")
    middle.step(at, watch.series("wanted"), where="post", linestyle=":", label="wanted")
    middle.axhline(watch.partitions, color="grey", linestyle="--", label="partitions")
    middle.set_ylabel(watch.workers)
    lower.plot(at, watch.throughput(), label="throughput", color="#2a9d3a")
    lower.set_ylabel("records a second")
    lower.set_xlabel("seconds since the queue was filled")
    letters = lower.twinx()
    letters.plot(at, watch.series("dead_letters"), label="dead letters", color="#8e44ad")
    letters.set_ylabel("dead letters")
    letters.set_ylim(bottom=0)
    handles = [line for axes in (lower, letters) for line in axes.get_lines()]
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3, "frameon": False}
    lower.legend(handles, [str(line.get_label()) for line in handles], **above)
    for axes in (upper, middle, lower):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    upper.legend(**above)
    middle.legend(**above)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
