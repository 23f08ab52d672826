"""Each run of the tests draws new inputs, prints its seed, and says how to repeat a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim.seeds import find

TESTS = Path(__file__).resolve().parents[2]
#: Fails with its drawn inputs: the seed, Hypothesis' values without shrinking, simulation seeds.
SAMPLE = """
from hypothesis import Phase, given, settings, strategies
from support.runs.seeding import SEED, drawn_seeds

@settings(phases=[Phase.generate])
@given(strategies.lists(strategies.integers(), min_size=5))
def test_sample(numbers):
    assert not any(numbers), f"drawn {SEED} {numbers} {drawn_seeds(2)}"
"""


def failing_run(folder: Path, seed: str = "") -> tuple[str, str]:
    """Run the sample; return its output, and the inputs that it drew."""
    (folder / "test_sample.py").write_text(SAMPLE)
    environment = {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "CI": "true",
        "SEED": seed,
    }
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "test_sample.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    drawn = re.search(r"AssertionError: (drawn \d+ .*)", done.stdout)
    assert drawn is not None, done.stdout
    return done.stdout, drawn[1]


def test_each_run_draws_another_seed_and_can_be_repeated(tmp_path: Path) -> None:
    printed, drawn = failing_run(tmp_path)
    seed = re.search(r"^SEED=(\d+) ", printed, re.MULTILINE)
    assert seed is not None
    assert re.search(rf"^SEED={seed[1]} \S+ -m pytest test_sample.py::test_sample$", printed, re.M)
    assert "reproduce_failure" in printed
    assert draw_seed() != seed[1]
    printed, again = failing_run(tmp_path, seed[1])
    assert again == drawn
    assert f"SEED={seed[1]}" in printed


def draw_seed(seed: str = "") -> str:
    """Return the seed that another process draws, or its error."""
    done = subprocess.run(
        [sys.executable, "-c", "from support.runs import seeding; print(seeding.SEED)"],
        env={**os.environ, "PYTHONPATH": str(TESTS), "SEED": seed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def test_a_seed_that_is_no_number_is_refused() -> None:
    assert "SEED=abc is not a number" in draw_seed("abc")


def test_a_mutant_is_found_by_its_own_rule_alone() -> None:
    def simulate(seed: int) -> None:
        raise AssertionError(f"{'its-rule' if seed == 4 else 'another-rule'}: {1 / (seed - 5)}")

    def mutant(seeds: range) -> None:
        find("mutant", seeds, simulate, AssertionError, lambda error: "its-rule" in str(error))

    mutant(range(4, 5))
    with pytest.warns(UserWarning, match="seed 4 finds mutant, not 1"):
        mutant(range(1, 5))
    with pytest.raises(pytest.fail.Exception, match="seed 1 found another-rule instead"):
        mutant(range(1, 4))
    with pytest.raises(ZeroDivisionError):
        mutant(range(5, 9))
