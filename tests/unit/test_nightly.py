"""`make nightly` continues after a failure, names it, and exits with an error code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from nightly import Command, Part, night, parts_of, run

if TYPE_CHECKING:
    from pathlib import Path


def part(name: str, program: str, *, limit_s: float = 60.0) -> Part:
    command = Command((sys.executable, "-c", program))
    return Part(name, lambda _: command, limit_s)


def test_a_part_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        part("first", "print('what went wrong'); raise SystemExit(3)"),
        part("slow", "import signal; signal.pause()", limit_s=0.1),
        part("last", "print('fine')"),
    ]
    assert night(parts, tmp_path) == 1
    out = capsys.readouterr().out
    assert "what went wrong" in out
    assert "exit code 3" in out
    assert "did not end in time" in out
    assert "last     passed" in out
    assert (tmp_path / "last.log").read_text() == "fine\n"


def test_all_parts_that_pass_end_with_0(tmp_path: Path) -> None:
    assert night([part("one", ""), part("two", "")], tmp_path) == 0


def test_a_timed_part_repeats_with_new_commands_and_ends_at_its_first_failure(
    tmp_path: Path,
) -> None:
    timed = Part(
        "timed",
        lambda n: Command((sys.executable, "-c", f"print({n}); raise SystemExit({n // 2})")),
        limit_s=60.0,
        seconds=60.0,
    )
    outcome = run(timed, tmp_path)
    assert outcome.commands == 3
    assert outcome.failure.endswith("exit code 1")
    assert (tmp_path / "timed.log").read_text().split() == ["0", "1", "2"]


def test_each_round_of_seeds_is_new_and_a_seed_repeats_a_night() -> None:
    seeds = next(p for p in parts_of(8, 1) if p.name == "seeds")
    again = next(p for p in parts_of(8, 1) if p.name == "seeds")
    ranges = [seeds.command(n).environment["CLUSTER_SEEDS"] for n in range(3)]
    assert len(set(ranges)) == 3
    assert ranges == [again.command(n).environment["CLUSTER_SEEDS"] for n in range(3)]
    assert seeds.seconds == pytest.approx(0.4 * 8 * 3600)
