"""`make nightly` continues after a failure, names it, and exits with an error code."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.runs.nightly import (
    END_S,
    NODES,
    SIMULATIONS,
    SLACK_S,
    WITH_SPARK,
    Command,
    Part,
    Shares,
    night,
    parts_of,
    run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parents[2]


#: A night that no test here needs.
LONG_S = 600.0


def part(name: str, program: str) -> Part:
    command = Command((sys.executable, "-c", program))
    return Part(name, lambda _number, _seconds: command)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_part_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        part("first", "print('what went wrong'); raise SystemExit(3)"),
        part("last", "print('fine')"),
    ]
    assert night(parts, tmp_path, LONG_S) == 1
    out = capsys.readouterr().out
    assert "what went wrong" in out
    assert "exit code 3" in out
    assert "last       passed" in out
    assert (tmp_path / "last.log").read_text() == "fine\n"


def test_all_parts_that_pass_end_with_0(tmp_path: Path) -> None:
    assert night([part("one", ""), part("two", "")], tmp_path, LONG_S) == 0


@pytest.mark.usefixtures("interruptible")
def test_the_end_of_the_night_ends_what_runs_and_names_what_did_not_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that is cut short may still remove what it has started."""
    removes = "try: signal.pause()\nfinally: print('removed')"
    slow = part("slow", f"import signal; print('begun', flush=True)\n{removes}")
    assert night([slow, part("next", "print('begun')")], tmp_path, END_S + 2.0) == 1
    out = capsys.readouterr().out
    assert "slow: " in out
    assert "did not end in time" in out
    assert "next: no time was left to begin" in out
    assert not (tmp_path / "next.log").exists()
    assert re.search(r"The night took 0\.\d of 1\.0 min", out)
    assert (tmp_path / "slow.log").read_text().startswith("begun\nremoved\n")


def test_timed_parts_divide_what_is_left() -> None:
    """Those that begin together get their shares; the last one gets all that is left for it."""
    timed = [p for p in parts_of(8, 1) if p.share]
    end = time.monotonic() + SLACK_S + 1000.0
    shares = Shares(timed, end)
    given = {p.name: shares.take(p) for p in timed}
    assert given["seeds"] == pytest.approx(400.0, abs=5.0)
    # A third of what the other two had.
    assert given["fuzz"] == pytest.approx(1000.0 / 3, abs=5.0)
    assert given["faults"] == pytest.approx(1000.0, abs=5.0)
    assert Shares(timed, time.monotonic()).take(timed[0]) == 0.0
    assert {p.name for p in parts_of(8, 1) if not p.share} >= {"e2e", "tests", "compat"}


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
    assert night(parts, tmp_path / "logs", LONG_S, lanes=2) == 0


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_kills_what_runs_and_begins_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupts = f"import os, signal; os.kill({os.getpid()}, signal.SIGINT); signal.pause()"
    parts = [part("first", interrupts), part("next", "print('begun')")]
    assert night(parts, tmp_path, LONG_S) == 1
    assert "was interrupted" in capsys.readouterr().out
    assert not (tmp_path / "next.log").exists()


def test_a_timed_part_repeats_with_new_commands_and_ends_at_its_first_failure(
    tmp_path: Path,
) -> None:
    timed = Part(
        "timed",
        lambda n, _s: Command((sys.executable, "-c", f"print({n}); raise SystemExit({n // 2})")),
        share=1.0,
    )
    outcome = run(timed, tmp_path, threading.Event(), time.monotonic() + LONG_S, LONG_S)
    assert outcome.commands == 3
    assert outcome.failure.endswith("exit code 1")
    assert (tmp_path / "timed.log").read_text().split() == ["0", "1", "2"]


def test_each_round_of_seeds_is_new_and_a_seed_repeats_a_night() -> None:
    seeds = next(p for p in parts_of(8, 1) if p.name == "seeds")
    again = next(p for p in parts_of(8, 1) if p.name == "seeds")
    rounds = [seeds.command(n, 60.0) for n in range(3 * len(SIMULATIONS))]
    assert rounds == [again.command(n, 60.0) for n in range(len(rounds))]
    assert rounds != [part_of("seeds", 2).command(n, 60.0) for n in range(len(rounds))]
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
def test_a_long_night_has_half_an_hour_of_key_ranges(hours: float, soak_s: str) -> None:
    part = next(part for part in parts_of(hours, 7) if part.name == "tests")
    assert part.command(0, 0.0).environment["RANGES_S"] == soak_s
    assert "RANGES_S" in (TESTS / "cluster" / "test_range_soak.py").read_text()


@pytest.mark.parametrize("name", sorted({p.name for p in parts_of(8, 7)} - {"seeds"}))
def test_each_other_part_draws_from_the_seed_of_the_night(name: str) -> None:
    """`seeding` reads SEED. Another word for it, FAULTS_SEED, would take its place."""
    for seed in (7, 8):
        environment = part_of(name, seed).command(0, 60.0).environment
        assert environment["SEED"] == str(seed)
        assert "FAULTS_SEED" not in environment


def test_no_variable_of_a_part_looks_like_a_config() -> None:
    """SHOAL_RANGES_S was one. Brokers that tests started with their own environment refused it."""
    of_the_cluster = {"SHOAL_CLUSTER_INDEX", "SHOAL_NODES"}
    for part in parts_of(8, 7):
        names = {v for v in part.command(0, 60.0).environment if v.startswith("SHOAL_")}
        assert names <= (of_the_cluster if part.name.startswith("e2e") else set()), part.name


def test_every_test_on_kubernetes_is_in_one_part() -> None:
    """A file that is named twice, or no longer there, would be lost without notice."""
    named = [*WITH_SPARK, NODES]
    assert len({*named}) == len(named)
    assert all((TESTS.parent / path).exists() for path in named)
    ignored = {word.removeprefix("--ignore=") for word in part_of("e2e", 7).command(0, 0.0).words}
    assert {*named} <= ignored
    assert {*WITH_SPARK} <= {*part_of("e2e-spark", 7).command(0, 0.0).words}
    assert NODES in part_of("e2e-nodes", 7).command(0, 0.0).words
