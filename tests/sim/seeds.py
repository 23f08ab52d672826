"""The choice of seeds for a simulation, and the report of failed seeds."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest
from support.runs.seeding import SEED, drawn_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from _pytest.mark import ParameterSet

E = TypeVar("E", bound=AssertionError)
T = TypeVar("T")
#: Seeds that a process runs at a time.
SHARE = 4


def chosen(variable: str, *, recorded: int, drawn: int) -> list[range]:
    """Return the seeds from 1 to `recorded`, which are the same in each run, and `drawn` ones of
    this run (`seeding`); or only those that the environment variable names, as `from-to`. The first
    drawn seed is left to `one_seed`."""
    named = os.environ.get(variable)
    if named is None:
        return [range(1, recorded + 1), drawn_seeds(1 + drawn)[1:]]
    first, last = (int(n) for n in named.split("-"))
    return [range(first, last + 1)]


def draw_by_day(cases: Sequence[T], count: int) -> list[T | ParameterSet]:
    """Return the parameters of a test: by day `count` of the cases, others in each run, and at
    night the rest. Each case of a simulated cluster costs seconds of CPU."""
    by_day = set(random.Random(SEED).sample(range(len(cases)), count))
    nightly = pytest.mark.nightly
    return [one if n in by_day else pytest.param(one, marks=nightly) for n, one in enumerate(cases)]


def keep_by_day(
    cases: Iterable[T], kept: Collection[str], attribute: str = "__name__"
) -> list[T | ParameterSet]:
    """Return the parameters of a test: by day the cases whose name, in this attribute, is among
    those `kept`, and at night the rest. A checker that finds some mutants by day works; whether it
    finds all is for the night."""
    named = {getattr(one, attribute): one for one in cases}
    assert named.keys() >= set(kept)
    return [
        one if name in kept else pytest.param(one, marks=pytest.mark.nightly)
        for name, one in named.items()
    ]


def one_seed() -> int:
    """Return the seed that `make sim SEED=n` names, or else one of this run."""
    return int(os.environ.get("SEED") or drawn_seeds(1).start)


def chunked(ranges: Iterable[range], size: int) -> pytest.MarkDecorator:
    """The parameter `seeds` of a test: `size` seeds each time."""
    chunks = [some[at : at + size] for some in ranges for at in range(0, len(some), size)]
    return pytest.mark.parametrize("seeds", chunks, ids=lambda s: f"{s.start}-{s.stop - 1}")


def run(simulate: Callable[[int], object], seeds: Sequence[int]) -> None:
    """Run seeds; fail at the first failure with the command that repeats it."""
    _report([first_failure(simulate, seeds)])


def first_failure(simulate: Callable[[int], object], seeds: Sequence[int]) -> tuple[int, str]:
    """Run seeds; return the first that fails and its error, or 0."""
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as error:
            return seed, str(error)
        except Exception:  # An error of a simulated process must be reported with its seed.
            return seed, traceback.format_exc()
    return 0, ""


def run_on_all_cores(simulate: Callable[[int], object], seeds: Sequence[int]) -> None:
    """`run` in a process for each core, started without state of earlier tests; report the first
    failed seed of each."""
    shares = [seeds[at : at + SHARE] for at in range(0, len(seeds), SHARE)]
    context = multiprocessing.get_context("spawn")
    # A run makes a hundred thousand callbacks, and few reference cycles.
    with ProcessPoolExecutor(
        os.cpu_count(), context, initializer=gc.set_threshold, initargs=(100_000,)
    ) as pool:
        _report(list(pool.map(first_failure, [simulate] * len(shares), shares)))


def _report(failures: Sequence[tuple[int, str]]) -> None:
    lines = [
        f"seed {seed}: {what}\nTo run it again: make sim SEED={seed}"
        for seed, what in failures
        if seed
    ]
    if lines:
        pytest.fail("\n".join(lines))


def find(
    mutant: str,
    seeds: range,
    simulate: Callable[[int], object],
    error: type[E],
    finds: Callable[[E], bool],
) -> None:
    """Run seeds until one fails with the `error` of the broken rule. The first seed is known to
    find it. The others are tried if a code change has changed the runs, and a warning names the
    seed to record instead.

    It is a failure if no seed finds it, or if an error of another type occurs. A violation of
    another rule does not count; the failure names what such seeds found.
    """
    others: dict[str, int] = {}
    for seed in seeds:
        try:
            simulate(seed)
        except error as found:
            if finds(found):
                if seed != seeds.start:
                    warnings.warn(f"seed {seed} finds {mutant}, not {seeds.start}", stacklevel=2)
                return
            others.setdefault(str(found).partition(":")[0], seed)
    instead = "".join(f"\nseed {seed} found {what} instead" for what, seed in others.items())
    pytest.fail(f"{len(seeds)} seeds from {seeds.start} on do not find {mutant}{instead}")
