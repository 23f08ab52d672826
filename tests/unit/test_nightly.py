"""`make nightly` continues after a failure, names it, and exits with an error code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nightly import SIMULATIONS, Command, Part, night, parts_of, run

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parents[1]


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


def test_two_lanes_run_two_parts_at_once(tmp_path: Path) -> None:
    """Each part ends when the other one has begun."""
    pipes = tmp_path / "here", tmp_path / "there"
    for pipe in pipes:
        os.mkfifo(pipe)
    here, there = map(str, pipes)
    parts = [
        part("one", f"open({here!r}, 'w').close(); open({there!r}).close()"),
        part("two", f"open({here!r}).close(); open({there!r}, 'w').close()"),
        part("three", ""),
    ]
    assert night(parts, tmp_path / "logs", lanes=2) == 0


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_kills_what_runs_and_begins_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupts = f"import os, signal; os.kill({os.getpid()}, signal.SIGINT); signal.pause()"
    parts = [part("first", interrupts), part("next", "print('begun')")]
    assert night(parts, tmp_path) == 1
    assert "was interrupted" in capsys.readouterr().out
    assert not (tmp_path / "next.log").exists()


def test_a_timed_part_repeats_with_new_commands_and_ends_at_its_first_failure(
    tmp_path: Path,
) -> None:
    timed = Part(
        "timed",
        lambda n: Command((sys.executable, "-c", f"print({n}); raise SystemExit({n // 2})")),
        limit_s=60.0,
        seconds=60.0,
    )
    outcome = run(timed, tmp_path, threading.Event())
    assert outcome.commands == 3
    assert outcome.failure.endswith("exit code 1")
    assert (tmp_path / "timed.log").read_text().split() == ["0", "1", "2"]


def test_each_round_of_seeds_is_new_and_a_seed_repeats_a_night() -> None:
    seeds = next(p for p in parts_of(8, 1) if p.name == "seeds")
    again = next(p for p in parts_of(8, 1) if p.name == "seeds")
    rounds = [seeds.command(n) for n in range(3 * len(SIMULATIONS))]
    assert rounds == [again.command(n) for n in range(len(rounds))]
    assert rounds != [part_of("seeds", 2).command(n) for n in range(len(rounds))]
    assert seeds.seconds == pytest.approx(0.4 * 8 * 3600)
    for number, simulation in enumerate(SIMULATIONS):
        chosen: list[int] = []
        for command in rounds[number :: len(SIMULATIONS)]:
            assert simulation.path in command.words
            assert (TESTS.parent / simulation.path).read_text().count(f'"{simulation.variable}"')
            begin, last = map(int, command.environment[simulation.variable].split("-"))
            chosen += range(begin, last + 1)
        assert len(set(chosen)) == 3 * simulation.seeds


def part_of(name: str, seed: int) -> Part:
    return next(part for part in parts_of(8, seed) if part.name == name)


@pytest.mark.parametrize(("hours", "soak_s"), [(8, "1800"), (1, "225")])
def test_a_whole_night_has_half_an_hour_of_key_ranges(hours: float, soak_s: str) -> None:
    part = next(part for part in parts_of(hours, 7) if part.name == "tests")
    assert part.command(0).environment["RANGES_S"] == soak_s
    assert "RANGES_S" in (TESTS / "cluster" / "test_range_soak.py").read_text()


@pytest.mark.parametrize("name", ["tests", "fuzz", "faults", "e2e"])
def test_each_other_part_draws_from_the_seed_of_the_night(name: str) -> None:
    """`seeding` reads SEED. Another word for it, FAULTS_SEED, would take its place."""
    for seed in (7, 8):
        environment = part_of(name, seed).command(0).environment
        assert environment["SEED"] == str(seed)
        assert "FAULTS_SEED" not in environment


def test_no_variable_of_a_part_looks_like_a_config() -> None:
    """SHOAL_RANGES_S was one. Brokers that tests started with their own environment refused it."""
    for part in parts_of(8, 7):
        assert not [v for v in part.command(0).environment if v.startswith("SHOAL_")], part.name
