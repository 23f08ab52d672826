"""Tables of figures match the runs in docs/benchmarks, failed loads included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pages
import pytest
import ratio_chart
from report import NAMES
from results import ROOT, Goal, Results

if TYPE_CHECKING:
    from pathlib import Path

BENCH, PACKAGES = ROOT / "bench", [str(ROOT / "broker_image")]


@pytest.mark.parametrize("path", sorted(pages.pages()), ids=lambda path: path.name)
def test_the_page_shows_the_run_that_it_names(path: Any) -> None:
    assert path.read_text() == pages.pages()[path], "python bench/pages.py"


def test_only_runs_that_the_page_shows_are_kept() -> None:
    shown = {match[2] for match in pages.TABLE.finditer(pages.PAGE.read_text())}
    assert {path.stem for path in pages.RUNS.glob("*.json")} == shown


def test_each_figure_of_a_bench_has_a_name() -> None:
    """A run of twelve minutes ended without a document, because a figure had none."""
    benches = ["run", "run_cluster", "run_deployed", "run_streams", "security_costs", "queues"]
    benches += ["tiered"]
    # In a process of its own: some modules have the same names as those of tests.
    program = "import importlib, json, sys\n"
    program += (
        "found = {name: list(importlib.import_module(name).FIGURES) for name in sys.argv[1:]}\n"
    )
    program += "print(json.dumps(found))"
    ended = subprocess.run(
        [sys.executable, "-c", program, *benches],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(BENCH), *PACKAGES])},
        capture_output=True,
        text=True,
        check=True,
    )
    for bench, figures in json.loads(ended.stdout).items():
        assert len(figures) > 2, bench
        assert set(figures) <= NAMES.keys(), bench


@pytest.mark.parametrize("path", [pages.PAGE, pages.GOALS], ids=lambda path: path.name)
def test_every_table_of_figures_names_a_run(path: Path) -> None:
    text = path.read_text()
    named = text.count("<!-- run: ")
    benches = {document["bench"] for document in pages.documents().values()}
    assert benches <= pages.TITLES.keys()
    assert named == len(benches)
    assert len(pages.TABLE.findall(text)) == named


def found_of(results: Results) -> dict[str, Any]:
    rows = results.rows(("rate", "cpu_s"), lambda load, figure: GOALS.get(figure))
    return {
        "bench": "one-broker",
        "date": "2026-01-02",
        "commit": "abc",
        "machine": "2 cores",
        "kafka": "4.4.0",
        "rows": rows,
    }


GOALS = {"rate": Goal(1.5), "cpu_s": Goal(0.5, more=False)}


def test_a_row_has_medians_ranges_ratio_goal_and_verdict() -> None:
    results = Results()
    for rate, cpu_s in ((100, 1.0), (300, 3.0), (200, 2.0)):
        results.add("produce", "shoal", {"rate": rate, "cpu_s": cpu_s})
        results.add("produce", "kafka", {"rate": 100, "cpu_s": 1.0})
    document = found_of(results)
    assert "| produce | rate, records/s | 2.00 | 200 | 100 |" in pages.summary(document, "x")
    goals = pages.summarize_goals(document, "x")
    assert "| produce | rate, records/s | 2.00 | ≥ 1.5 × | met |" in goals
    assert (
        "| produce | broker CPU, s | 3 | 2 | 1 | 3 | 1 | 1 | 1 | 2.00 | ≤ 0.5 × | missed |"
        in pages.run_page(document, "x")
    )


def test_a_failed_load_is_marked_and_has_no_figure() -> None:
    results = Results()
    for side in ("shoal", "kafka"):
        results.add("produce", side, {"rate": 100})
        results.add("consume", side, {"rate": 100})
    results.fail("produce", "kafka", "1 of 2 records are acknowledged\n| and more")
    results.fail("start", "shoal", OSError())
    assert results.failed
    assert results.has_failed("produce")
    document = found_of(results)
    table = pages.summary(document, "x")
    assert "| produce |  | failed |  |  |" in table
    assert "| consume | rate, records/s | 1.00 | 100 | 100 |" in table
    goals = pages.summarize_goals(document, "x")
    assert "| consume | rate, records/s | 1.00 | ≥ 1.5 × | missed |" in goals
    page = pages.run_page(document, "x")
    assert "kafka: 1 of 2 records are acknowledged / and more" in page
    assert "shoal: OSError()" in page


def test_a_goal_is_about_the_peer_that_it_names() -> None:
    results = Results()
    for side, rate in (("shoal", 300), ("kafka", 100), ("nats", 400)):
        results.add("jobs", side, {"rate": rate})
    for side, rate in (("shoal", 300), ("kafka", 100)):
        results.add("produce", side, {"rate": rate})
    goals = {"jobs": Goal(1.2, peer="nats"), "produce": Goal(1.2)}
    rows = results.rows(("rate",), lambda load, _: goals[load])
    sides = {"shoal": "Shoal", "kafka": "Kafka", "nats": "NATS"}
    document = found_of(Results()) | {"rows": rows, "sides": sides}
    table = pages.summary(document, "x")
    assert "| load | figure | ratio | Shoal | Kafka | NATS |" in table
    assert "| jobs | rate, records/s | 0.75 (NATS) | 300 | 100 | 400 |" in table
    assert "| produce | rate, records/s | 3.00 | 300 | 100 |  |" in table
    found = pages.summarize_goals(document, "x")
    assert "| jobs | rate, records/s | 0.75 (NATS) | ≥ 1.2 × | missed |" in found
    assert "| produce | rate, records/s | 3.00 | ≥ 1.2 × | met |" in found


def test_a_goal_about_a_peer_that_did_not_run_has_no_verdict() -> None:
    results = Results()
    for side in ("shoal", "kafka"):
        results.add("jobs", side, {"rate": 100})
    (row,) = results.rows(("rate",), lambda *_: Goal(1.2, peer="nats"))
    assert (row["ratio"], row["met"]) == (None, None)


def test_the_chart_shows_what_is_better_and_what_is_worse() -> None:
    rows = [
        {"load": bar.load, "figure": bar.figure, "ratio": ratio}
        for bar, ratio in ((ratio_chart.RATES[0], 2.0), (ratio_chart.RATES[2], 0.5))
    ]
    chart = ratio_chart.draw({"one-broker": {"rows": rows}})
    good, bad = (line for line in chart.splitlines() if 'height="18"' in line)
    assert ('width="320"' in good, 'width="80"' in bad) == (True, True)
    assert ("#00796b" in good, "#ef6c00" in bad) == (True, True)
    assert ratio_chart.RATES[1].label not in chart


def test_publishing_a_run_points_the_page_at_it() -> None:
    page = "before\n<!-- run: 2026-01-01-one-broker -->\nold\n<!-- end -->\nafter\n"
    document = found_of(Results())
    moved = pages.point_at(page, "one-broker", "2026-01-02-one-broker")
    rendered = pages.render(moved, {"2026-01-02-one-broker": document})
    assert "old" not in rendered
    assert ".md), commit abc, beside Apache Kafka 4.4.0.\n" in rendered
    assert rendered.startswith("before\n")
    assert rendered.endswith("<!-- end -->\nafter\n")
    with pytest.raises(SystemExit, match="has no table of queues"):
        pages.point_at(page, "queues", "2026-01-02-queues")
