"""What a demo shows, and what counts as a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from shoal_spark.demo.view import WIDTH, build_view, draw_chart, draw_picture
from shoal_spark.demo.watch import (
    PipelineSample,
    PipelineWatch,
    compare_keys,
    list_failures,
    shrink,
)

if TYPE_CHECKING:
    from pathlib import Path


def watched(*samples: PipelineSample, fed: int = 100, broken: int = 10) -> PipelineWatch:
    watch = PipelineWatch(fed, broken, 2)
    watch.samples.extend(samples)
    return watch


GOOD = (
    PipelineSample(0, 100, 0, 0, 0, 0),
    PipelineSample(5, 50, 4, 3, 45, 5),
    PipelineSample(10, 0, 0, 0, 90, 10),
)


@pytest.mark.parametrize(
    ("last", "distinct", "says"),
    [
        (PipelineSample(10, 0, 0, 0, 90, 10), 90, []),
        (PipelineSample(10, 0, 0, 0, 90, 10), 89, ["1 results are missing"]),
        (
            PipelineSample(10, 3, 0, 0, 87, 10),
            87,
            ["3 tasks are left in the queue", "3 results are missing"],
        ),
        (PipelineSample(10, 0, 0, 0, 90, 9), 90, ["1 dead letters are missing"]),
    ],
)
def test_a_lost_record_is_a_failure(last: PipelineSample, distinct: int, says: list[str]) -> None:
    assert list_failures(watched(*GOOD[:2], last), distinct) == says


def test_executors_that_never_outnumber_partitions_are_a_failure() -> None:
    few = [
        s.__class__(s.at_s, s.backlog, s.wanted, min(2, s.workers), s.results, s.dead_letters)
        for s in GOOD
    ]
    (said,) = list_failures(watched(*few), 90)
    assert said == "executors never outnumbered the 2 partitions: there were 2 at most"
    assert list_failures(PipelineWatch(100, 10, 2), 90)[-1].endswith("there were 0 at most")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["a", "b", "c"], []),
        (["c", "a"], ["1 of 3 results are lost: b"]),
        (["a", "b", "a", "c", "b"], ["2 of 3 results are there twice or more: a, b"]),
        # A double must not hide a loss, as it does in a count.
        (
            ["a", "a", "b"],
            ["1 of 3 results are lost: c", "1 of 3 results are there twice or more: a"],
        ),
        (["a", "b", "c", "x"], ["1 of 3 results are there without a task: x"]),
    ],
)
def test_each_task_has_one_result(keys: list[str], says: list[str]) -> None:
    assert compare_keys("results", {"a", "b", "c"}, keys) == says


def test_many_lost_results_are_counted_and_some_named() -> None:
    (said,) = compare_keys("results", {f"image-{n:04}" for n in range(2000)}, ())
    assert said.startswith("2,000 of 2,000 results are lost: image-0000, image-0001, ")
    assert said.endswith("image-0004 and 1,995 more")


def test_it_is_over_when_every_task_has_ended() -> None:
    assert watched(*GOOD).is_settled
    assert not watched(*GOOD[:2]).is_settled
    assert not watched(PipelineSample(1, 0, 0, 0, 0, 0)).is_settled, "nothing has been fed yet"


def test_throughput_is_over_the_seconds_before() -> None:
    assert watched(*GOOD).compute_throughput() == [0.0, 10.0, 10.0]


def test_charts_keep_their_width_and_peaks() -> None:
    values = [0.0] * 500 + [8.0] + [1.0] * 500
    assert max(shrink(values, WIDTH)) == 8.0
    lines = draw_chart(values, 4, mark=2)
    assert {len(line) for line in lines} == {WIDTH}
    assert "█" in lines[0]
    assert "╌" in lines[2]
    assert draw_chart([], 2) == [" " * WIDTH] * 2


def test_the_view_and_the_picture(tmp_path: Path) -> None:
    watch = watched(*GOOD)
    console = Console(width=120, record=True, file=(tmp_path / "out").open("w"))
    console.print(build_view(watch))
    shown = console.export_text()
    for word in ("backlog", "executors", "partitions", "throughput", "results", "dead letters"):
        assert word in shown
    assert "3 wanted" not in shown
    assert "0 wanted" in shown
    draw_picture(watch, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    draw_picture(PipelineWatch(1, 0, 2), tmp_path / "empty.png")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_view_fits_its_terminal(tmp_path: Path, columns: int) -> None:
    """With the longest numbers, and no row cut off: the newest sample is at the right."""
    watch = PipelineWatch(100_000, 1_000, 1, "tasks at once", is_scaled=False)
    watch.samples.extend(PipelineSample(n, 99_999, 4, 4, n, n) for n in range(100))
    console = Console(width=columns, record=True, file=(tmp_path / "out").open("w"))
    console.print(build_view(watch, columns))
    shown = console.export_text()
    assert "…" not in shown
    assert "wanted" not in shown
    rows = [line.rstrip() for line in shown.splitlines() if "█" in line]
    assert len({len(row) for row in rows[:4]}) == 1, "the backlog does not change, nor its chart"
    assert 0.9 * min(columns, 97) < len(rows[0]) <= columns
