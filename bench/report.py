"""The table of a run: on the terminal, as JSON, as Markdown and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

UNITS = {
    "rate": "records/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "wait_ms": "ms",
    "cpu_s": "broker CPU s",
    "client_cpu_s": "client CPU s",
    "record_cpu_ms": "CPU ms a record by itself", "record_ms": "ms a record by itself",
    "rss_mb": "broker MB", "idle_mb": "idle MB", "loaded_mb": "loaded MB",
    "idle_cpu": "cores idle", "start_s": "seconds", "cpu_s_gb": "broker CPU s/GB",
    "pause_ms": "longest turn, CPU ms", "record_cpu_us": "CPU us a record",
    "record_bytes": "bytes a record", "mixed_record_bytes": "bytes a record, mixed",
    "pause_s": "pause s", "errors": "client errors", "whole_s": "seconds in all",
    "failover_s": "failover s", "sync_s": "in sync after s",
}  # fmt: skip


def number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cells(row: dict[str, Any]) -> list[str]:
    """A row as text: load, figure, Shoal, Kafka, ratio, goal, verdict. A goal is a ratio to Kafka,
    "x", or a limit in the figure's own unit."""
    spread = {b: f"{number(row[b])} ({number(least)}-{number(most)})"
              for b, (least, most) in row["spread"].items()}  # fmt: skip
    unit = "" if row.get("by_itself") else " x"
    goal = "" if row["goal"] is None else f"{'≥' if row['more'] else '≤'} {row['goal']:g}{unit}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    verdict = {True: "met", False: "missed", None: ""}[row["met"]]
    return [row["load"], UNITS[row["figure"]], spread["shoal"], spread.get("kafka", ""),
            ratio, goal, verdict]  # fmt: skip


HEAD = ["load", "figure", "Shoal (min-max)", "Kafka (min-max)", "ratio", "goal", ""]


def show(rows: list[dict[str, Any]], folder: Path, name: str = "latest") -> None:
    """Print the table and write it into `folder` as `name`.json, .md and .png."""
    folder.mkdir(parents=True, exist_ok=True)
    table = Table(*HEAD)
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    for row in rows:
        table.add_row(*cells(row))
        lines.append("| " + " | ".join(cells(row)) + " |")
    Console(width=150).print(table)
    (folder / f"{name}.json").write_text(json.dumps(rows, indent=1))
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
    picture(rows, folder / f"{name}.png")
    print(f"Written to {folder}/{name}.json, .md and .png")


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the ratios with a goal, on a logarithmic axis; green where the goal is met. What is
    aimed at by itself has no bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [r for r in rows if r["goal"] is not None and not r.get("by_itself")][::-1]
    figure, axes = pyplot.subplots(figsize=(10, 0.32 * len(found) + 1.2))
    colours = ["#2a9d3a" if r["met"] else "#c0392b" for r in found]
    axes.barh([f"{r['load']}: {UNITS[r['figure']]}" for r in found],
              [max(r["ratio"], 0.01) for r in found], color=colours)  # fmt: skip
    for place, row in enumerate(found):
        axes.plot([row["goal"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2)
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("Shoal / Apache Kafka (black: the goal)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
