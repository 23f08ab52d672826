"""Results of benchmarks with their charts, which matplotlib draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from report import show
from results import Results
from unit.tools.test_bench_pages import found_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_result_names_the_sides_of_its_run(tmp_path: Path) -> None:
    """Figures of an earlier tree were shown as those of Kafka."""
    results = Results()
    for side in ("shoal", "kafka"):
        results.add("produce", side, {"rate": 100})
    show({**found_of(results), "sides": {"shoal": "this tree", "kafka": "3e8295a"}}, tmp_path)
    head = (tmp_path / "one-broker.md").read_text().splitlines()[0]
    assert "| this tree | this tree min-max | 3e8295a | 3e8295a min-max |" in head
