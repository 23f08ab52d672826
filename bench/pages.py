"""Renders the tables of docs/performance.md, those of its goals, its chart, and the pages of runs
from documents in docs/benchmarks.

`python bench/pages.py` renders them again. `python bench/pages.py --publish FILE` adds the document
of a new run from bench/results and makes the page use it. A table in the page is between `<!-- run:
NAME -->` and `<!-- end -->`, where NAME is that of a document in docs/benchmarks. It shows figures
with a goal, one number per cell, for readers without the goal. The page for contributors has the
goals, and the run's own page all figures with their ranges. A test compares pages and documents.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ratio_chart
from report import NAMES, goal_of, number, ratio, titles_of, verdict
from results import ROOT, Row

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = ROOT / "docs"
PAGE = DOCS / "performance.md"
GOALS = DOCS / "contributing" / "performance-goals.md"
CHART = DOCS / "images" / "performance.svg"
RUNS = DOCS / "benchmarks"
TITLES = {
    "one-broker": "One broker against Apache Kafka",
    "queues": "Queues",
    "cluster": "Three brokers against three of Apache Kafka",
    "spark": "Spark",
    "security": "TLS, logins and permissions against Apache Kafka",
    "streams": "Streams groups against Apache Kafka",
    "tiered": "Tiered storage against Apache Kafka and the disk",
    "earlier": "One broker against an earlier tree",
    "deployed": "Three brokers as deployed against Apache Kafka and NATS JetStream",
}
_LIST = re.compile(r"(<!-- runs -->\n).*?(<!-- end -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- run: ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def sides_of(document: dict[str, Any]) -> dict[str, str]:
    """Return the titles of the sides that have figures."""
    titles, rows = titles_of(document), document["rows"]
    return {side: t for side, t in titles.items() if any(r.get(side) is not None for r in rows)}


def name_of(row: Row) -> str:
    return NAMES[row["figure"]] if row["figure"] else ""


def summary(document: dict[str, Any], name: str) -> str:
    """Return a table of the figures with a goal, ratios first, and of failed loads."""
    sides = sides_of(document)
    compares = any(row.get("ratio") is not None for row in document["rows"])
    head = ["load", "figure", *(["ratio"] if compares else []), *sides.values()]
    lines = [
        [
            row["load"],
            name_of(row),
            *(["failed" if row.get("failed") else ratio(row)] if compares else []),
            *(number(row.get(side)) for side in sides),
        ]
        for row in _select(document)
    ]
    source = cite_run(document, f"benchmarks/{name}.md")
    return f"\n{table(head, lines)}\n{source}\n\n{notes_of(document)}"


def summarize_goals(document: dict[str, Any], name: str) -> str:
    """Return a table of the goals, each with the ratio or the figure that it is about."""
    lines = [
        [
            row["load"],
            name_of(row),
            ratio(row) if "×" in goal_of(row) else number(row.get("shoal")),
            goal_of(row),
            verdict(row),
        ]
        for row in _select(document)
    ]
    source = cite_run(document, f"../benchmarks/{name}.md")
    return f"\n{table(['load', 'figure', 'reached', 'goal', 'result'], lines)}\n{source}\n\n"


def cite_run(document: dict[str, Any], link: str) -> str:
    """Return a sentence that says which run the figures are from."""
    peer = f", beside Apache Kafka {document['kafka']}" if "kafka" in document else ""
    return f"[Run of {document['date']}]({link}), commit {document['commit']}{peer}."


def _select(document: dict[str, Any]) -> list[Row]:
    return [row for row in document["rows"] if row.get("goal") or row.get("failed")]


def notes_of(document: dict[str, Any]) -> str:
    notes = "".join(f"* {note}\n" for note in document.get("notes") or ())
    return f"{notes}\n" if notes else ""


def run_page(document: dict[str, Any], name: str) -> str:
    """Return the page of a run: place, time, and all figures with their ranges."""
    sides = sides_of(document)
    facts = [
        ["date", document["date"]],
        ["commit", document["commit"]],
        ["machine", document["machine"]],
        *(
            [key.replace("_", " "), str(document[key])]
            for key in ("load_before", "kafka", "kafka_heap", "scale")
            if document.get(key) is not None
        ),
    ]
    if document.get("seconds"):
        facts.append(["duration", f"{document['seconds'] / 60:.0f} min"])
    head = ["load", "figure", "rounds"]
    for title in sides.values():
        head += [title, "least", "greatest"]
    lines = []
    for row in document["rows"]:
        cells = [row["load"], name_of(row), str(row.get("rounds") or "")]
        for side in sides:
            least, greatest = (row.get("spread") or {}).get(side) or (None, None)
            cells += [number(row.get(side)), number(least), number(greatest)]
        failed = "; ".join(f"{s}: {e}" for s, e in (row.get("failed") or {}).items())
        lines.append([*cells, ratio(row), goal_of(row), one_line(failed) or verdict(row)])
    return (
        f"# {TITLES[document['bench']]}, {document['date']}\n\n"
        f"Made by `bench/pages.py` from [{name}.json]({name}.json).\n\n"
        f"{table(['', ''], facts)}\n{notes_of(document)}"
        f"{table([*head, 'ratio', 'goal', 'result'], lines)}"
    )


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def list_of_runs(page: str, documents: dict[str, dict[str, Any]]) -> str:
    """Return the page with its list of runs, newest first."""
    newest = sorted(documents.items(), key=lambda found: found[1]["date"], reverse=True)
    lines = [[f"[{d['date']}]({name}.md)", TITLES[d["bench"]], d["commit"]] for name, d in newest]
    rows = table(["run", "bench", "commit"], lines)
    return _LIST.sub(lambda m: f"{m[1]}\n{rows}\n{m[2]}", page)


def render(
    page: str,
    documents: dict[str, dict[str, Any]],
    make: Callable[[dict[str, Any], str], str] = summary,
) -> str:
    """Return the page with each table made from its document."""
    return TABLE.sub(lambda m: m[1] + make(documents[m[2]], m[2]) + m[3], page)


def draw_chart(page: str, documents: dict[str, dict[str, Any]]) -> str:
    """Return the chart of the runs that the page names."""
    named = [documents[match[2]] for match in TABLE.finditer(page)]
    return ratio_chart.draw({document["bench"]: document for document in named})


def documents() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(RUNS.glob("*.json"))}


def pages() -> dict[Path, str]:
    """Return the output of `python bench/pages.py` by file."""
    found = documents()
    runs = {RUNS / f"{name}.md": run_page(document, name) for name, document in found.items()}
    index = RUNS / "README.md"
    return {
        PAGE: render(PAGE.read_text(), found),
        GOALS: render(GOALS.read_text(), found, summarize_goals),
        CHART: draw_chart(PAGE.read_text(), found),
        index: list_of_runs(index.read_text(), found),
        **runs,
    }


def point_at(page: str, bench: str, name: str) -> str:
    """Return the page with the table of a bench naming another run."""
    marker = re.compile(rf"<!-- run: [\d-]+-{re.escape(bench)} -->")
    if not marker.search(page):
        sys.exit(f"{PAGE} has no table of {bench}: add <!-- run: {name} --> and <!-- end -->.")
    return marker.sub(f"<!-- run: {name} -->", page)


def publish(path: Path) -> None:
    """Add a run's document and make the page's table of that bench use it. A document of an earlier
    run on the same day is replaced.
    """
    document = json.loads(path.read_text())
    name = f"{document['date']}-{document['bench']}"
    moved = {path: point_at(path.read_text(), document["bench"], name) for path in (PAGE, GOALS)}
    (RUNS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    for path, page in moved.items():
        path.write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", type=Path, action="append", default=[], metavar="FILE")
    for path in parser.parse_args().publish:
        publish(path)
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
