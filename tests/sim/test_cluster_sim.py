"""Whole clusters of real brokers under faults: short runs, one for each seed.

`make sim SEED=n` runs one seed and shows the events before a failure. `CLUSTER_SEEDS=from-to`
chooses the seeds of `test_seeds`, which then runs on all cores, for as long as there is time at
night. Otherwise it runs a few short ones, some seconds each, most of them drawn for each run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from random import Random
from typing import Any, NamedTuple

import pytest
from sim.cluster_run import PARTS, of_seed, shown, simulate, try_seed
from sim.seeds import chosen, chunked, one_seed, run, run_on_all_cores
from support.runs.seeding import SEED

VARIABLE = "CLUSTER_SEEDS"
#: A simulated second of a cluster with all parts costs several of CPU.
SHORT_S = 1.0
SEEDS = chosen(VARIABLE, recorded=1, drawn=2)


@chunked(SEEDS, 100)
def test_seeds(seeds: range) -> None:
    """In this process, because other files run beside this one, unless the range is given."""
    if VARIABLE in os.environ:
        run_on_all_cores(try_seed, seeds)
    else:
        run(try_seed, seeds)


def test_one_seed() -> None:
    """The seed of the environment, or a drawn one."""
    run = of_seed(one_seed(), keep_trace=True)
    with shown(run):
        run.go()


class RunOfParts(NamedTuple):
    """A run of some parts: its options, its fingerprint, and what Python warned of."""

    options: dict[str, Any]
    fingerprint: str
    warnings: list[str]


def simulate_parts(**options: Any) -> str:
    """Run a cluster whose clients crash. Return the fingerprint."""
    run = simulate(12, faults=["client_crash"], duration_s=SHORT_S, **options)
    return run.kernel.fingerprint


@pytest.fixture(
    scope="module", params=[2, pytest.param(len(PARTS), marks=pytest.mark.nightly)], ids=str
)
def run_of_parts(request: pytest.FixtureRequest) -> RunOfParts:
    """By day some parts, others in each run."""
    options = {"brokers": 3, "parts": Random(SEED).sample(PARTS, request.param)}
    asyncio.run(asyncio.sleep(0))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fingerprint = simulate_parts(**options)
        gc.collect()
    return RunOfParts(options, fingerprint, [str(one.message) for one in warned])


def test_the_same_seed_is_the_same_run(run_of_parts: RunOfParts) -> None:
    """Byte for byte, also in another process, where sets have another order."""
    assert run_of_parts.fingerprint != simulate_parts(brokers=1, parts=[])
    program = (
        "from sim.test_cluster_sim import simulate_parts;"
        f" print(simulate_parts(**{run_of_parts.options}))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert there.stdout.strip() == run_of_parts.fingerprint


def test_a_run_leaves_nothing_behind(run_of_parts: RunOfParts) -> None:
    """Interrupted clients are closed completely. Otherwise a coroutine that ends without a loop
    would make another one fail to start after any `asyncio.run`."""
    assert run_of_parts.warnings == []
