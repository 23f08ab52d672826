"""Tables of a run's document: on the terminal, as JSON, as Markdown and as a picture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from results import PEERS
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from results import Row

#: Name and unit of each figure.
NAMES = {
    "rate": "rate, records/s",
    "p50_ms": "median latency, ms",
    "p99_ms": "99th percentile, ms",
    "wait_ms": "wait, ms",
    "cpu_s": "broker CPU, s",
    "client_cpu_s": "client CPU, s",
    "repeated": "redelivered records",
    "redelivered": "redelivered records",
    "record_cpu_ms": "CPU of a single record, ms",
    "secured_times": "its CPU to that without TLS, SCRAM and ACLs",
    "client_cpu_ms": "client CPU of a record, ms",
    "record_ms": "time of a single record, ms",
    "rss_mb": "memory, MB",
    "idle_mb": "memory when idle, MB",
    "loaded_mb": "memory after all loads, MB",
    "idle_cpu": "idle CPU, cores",
    "start_s": "start, s",
    "cpu_s_gb": "broker CPU, s/GB",
    "pause_ms": "longest turn, CPU ms",
    "heartbeat_cpu_ms": "CPU of a heartbeat, ms",
    "assignment_cpu_ms": "CPU of an assignment, ms",
    "record_cpu_us": "broker CPU of a record, µs",
    "record_bytes": "memory of a record, B",
    "mixed_record_bytes": "memory of a record in mixed states, B",
    "pause_s": "pause, s",
    "errors": "client errors",
    "whole_s": "duration, s",
    "others_p99_ms": "99th percentile of others, ms",
    "tls_times": "CPU of TLS to that of openssl speed",
    "tls_s_gb": "broker CPU of TLS, s/GB",
    "openssl_s_gb": "CPU of openssl speed, s/GB",
    "login_cpu_ms": "broker CPU of a login, ms",
    "lost_percent": "broker CPU lost, %",
    "failover_s": "all partitions led, s",
    "sync_s": "in sync, s",
    "partitions": "partitions survived",
    "unordered_per_s": "rate without order, records/s",
    "ordered_per_s": "rate with key order, records/s",
    "ratio": "with to without",
    "unordered_cpu_us": "broker CPU without order, µs",
    "ordered_cpu_us": "broker CPU with key order, µs",
    "unordered_members_cpu_us": "client CPU without order, µs",
    "ordered_members_cpu_us": "client CPU with key order, µs",
    "ratio_by_cpu": "with to without, by CPU",
    "plain_cpu_us": "broker CPU without fairness, µs",
    "fair_cpu_us": "broker CPU with fairness, µs",
    "plain_members_cpu_us": "client CPU without fairness, µs",
    "fair_members_cpu_us": "client CPU with fairness, µs",
    "fair_per_s": "rate with fairness, records/s",
    "times_cpu": "CPU to that without",
    "plain_p50_ms": "median wait without fairness, ms",
    "plain_p99_ms": "99th percentile without fairness, ms",
    "fair_p50_ms": "median wait with fairness, ms",
    "fair_p99_ms": "99th percentile with fairness, ms",
    "cpu_us_1": "broker CPU with 1 reader, µs a record",
    "cpu_us_2": "broker CPU with 2 readers, µs a record",
    "cpu_us_8": "broker CPU with 8 readers, µs a record",
    "ratio_by_readers": "8 readers to 2, by CPU",
    "busiest_before": "busiest member to the mean, before ranges moved",
    "busiest": "busiest member to the mean",
    "moved_percent": "hashes that moved, %",
    "workers_per_s": "rate of 100 key workers, records/s",
    "members_per_s": "rate of all members, records/s",
    "plain_per_s": "rate of a plain member, records/s",
    "share_per_s": "rate of a share group with key order, records/s",
    "ratio_to_plain": "to a plain member",
    "ratio_to_share": "to a share group with key order",
    "parallel_consumer_per_s": "rate of Parallel Consumer, records/s",
    "ratio_to_parallel_consumer": "key workers to Parallel Consumer",
    "others_per_s": "rate without a hot key, records/s",
    "others_beside_hot_per_s": "rate beside a hot key, records/s",
    "hot_per_s": "rate of the hot key, records/s",
    "bytes_each": "memory of a record, B",
    "commit_cpu_ms": "CPU of a commit, ms",
    "cpu_us": "broker CPU of a record, µs",
    "lost": "lost records",
    "twice": "repeated records",
    "written_before": "written before the kill",
    "rows_per_s": "rate, rows/s",
    "p50_s": "median latency, s",
    "max_s": "longest latency, s",
    "local_per_s": "rate from the disk, records/s",
    "without_per_s": "rate without, records/s",
    "ratio_to_local": "remote to local",
    "local_p99_ms": "99th percentile beside scans of the disk, ms",
    "alone_p99_ms": "99th percentile alone, ms",
    "without_p99_ms": "99th percentile without, ms",
    "late_ms": "longest turn, ms",
    "copied_mb_s": "copied, MB/s",
    "gets_gb": "GETs per GB",
    "puts_segment": "PUTs per segment beside its parts",
    "requests_segment": "requests per segment beside its parts",
    "stored_ratio": "bytes in the store to those of the logs",
    "local_mb": "on the disk, MB",
    "peers_to_local": "bytes from peers to those on the disk",
    "restore_s": "restored, s",
    "first_s": "first record, s",
    "all_s": "a record of each partition, s",
    "segments_mb": "memory of the segments, MB",
    "million_start_s": "start with 1,000,000 segments, s",
    "million_mb": "memory of 1,000,000 segments, MB",
}


def titles_of(document: dict[str, Any]) -> dict[str, str]:
    """Return the titles of the sides: Shoal and its peers, of which most documents have Kafka."""
    return document.get("sides") or {"shoal": "Shoal", "kafka": "Kafka"}


def number(value: float | None) -> str:
    """Format three digits, or a whole number with separators; empty for None."""
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def goal_of(row: Row) -> str:
    """Format a goal with its sign; "×" marks a ratio to the peer."""
    goal = row.get("goal")
    if not goal:
        return ""
    return f"{'≥' if goal['more'] else '≤'} {goal['value']:,g}{'' if goal['alone'] else ' ×'}"


def verdict(row: Row) -> str:
    if row.get("failed"):
        return "failed"
    return {True: "met", False: "missed", None: ""}[row["met"]]


def ratio(row: Row) -> str:
    """Format the ratio, with its peer unless that is Kafka."""
    found, peer = row.get("ratio"), row.get("peer")
    return "" if found is None else f"{found:.2f}" + (f" ({PEERS[peer]})" if peer else "")


def cells(row: Row, sides: Iterable[str] = ("shoal", "kafka")) -> list[str]:
    """Return a row as text, one number per cell; a range has two."""
    if row.get("failed"):
        return [
            row["load"],
            "; ".join(f"{s}: {e}" for s, e in row["failed"].items()),
            *[""] * (2 * len(list(sides)) + 2),
            "failed",
        ]
    found = [row["load"], NAMES[row["figure"]]]
    for side in sides:
        least_and_greatest = row["spread"].get(side)
        found += [
            number(row.get(side)),
            "-".join(map(number, least_and_greatest)) if least_and_greatest else "",
        ]
    return [*found, ratio(row), goal_of(row), verdict(row)]


def show(document: dict[str, Any], folder: Path) -> None:
    """Print the table, and write the document into `folder` as JSON, Markdown and a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    name, rows, titles = document["bench"], document["rows"], titles_of(document)
    sides = [text for title in titles.values() for text in (title, f"{title} min-max")]
    head = ["load", "figure", *sides, "ratio", "goal", ""]
    table = Table(*head)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        table.add_row(*cells(row, titles))
        lines.append("| " + " | ".join(cells(row, titles)) + " |")
    Console(width=170).print(table)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")
    picture(rows, titles, folder / f"{name}.png")
    print(f"Written to {folder}/{name}.json and .md. To publish this run:")
    print(f"  python bench/pages.py --publish {folder}/{name}.json", flush=True)


def picture(rows: list[Row], titles: dict[str, str], path: Path) -> None:
    """Draw bars of the ratios with a goal on a logarithmic axis; green bars meet the goal."""
    found = [
        r for r in rows if r.get("goal") and not r["goal"]["alone"] and r["ratio"] is not None
    ][::-1]
    if not found:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 0.32 * len(found) + 1.2))
    colours = ["#2a9d3a" if r["met"] else "#c0392b" for r in found]
    axes.barh(
        [f"{r['load']}: {NAMES[r['figure']]}" for r in found],
        [max(r["ratio"], 0.01) for r in found],
        color=colours,
    )
    for place, row in enumerate(found):
        axes.plot(
            [row["goal"]["value"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=2
        )
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel(f"{' / '.join(titles.values())} (black: the goal)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
