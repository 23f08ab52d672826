"""Which seeds a simulation runs, and what is said of those that fail."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import traceback
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest
from seeding import drawn_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

E = TypeVar("E", bound=AssertionError)
#: Seeds that a process is given at a time.
SHARE = 4


def chosen(variable: str, *, recorded: int, drawn: int) -> list[range]:
    """Return the seeds from 1 to `recorded`, which are the same in each run, and `drawn` ones of
    this run (`seeding`); or those that the environment names instead, as `from-to`."""
    named = os.environ.get(variable)
    if named is None:
        return [range(1, recorded + 1), drawn_seeds(drawn)]
    first, last = (int(n) for n in named.split("-"))
    return [range(first, last + 1)]


def one_seed() -> int:
    """Return the seed that `make sim SEED=n` names, or else one of this run."""
    return int(os.environ.get("SEED") or drawn_seeds(1).start)


def chunked(ranges: Iterable[range], size: int) -> pytest.MarkDecorator:
    """The parameter `seeds` of a test: `size` seeds each time."""
    chunks = [some[at : at + size] for some in ranges for at in range(0, len(some), size)]
    return pytest.mark.parametrize("seeds", chunks, ids=lambda s: f"{s.start}-{s.stop - 1}")


def run(simulate: Callable[[int], object], seeds: Iterable[int]) -> None:
    """Run seeds; the first that fails is told with how to run it again."""
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}\nTo run it again: make sim SEED={seed}")


@contextlib.contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """A process for each core, each with nothing in it that a test has left behind."""
    context = multiprocessing.get_context("spawn")
    # A run makes a hundred thousand callbacks, and few cycles.
    with ProcessPoolExecutor(
        os.cpu_count(), context, initializer=gc.set_threshold, initargs=(100_000,)
    ) as pool:
        yield pool


def first_failure(simulate: Callable[[int], object], seeds: Sequence[int]) -> tuple[int, str]:
    """Run seeds; the first that fails, and how, or 0."""
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as error:
            return seed, str(error)
        except Exception:  # Of a process in the simulation; the seed has to be told all the same.
            return seed, traceback.format_exc()
    return 0, ""


def run_in(
    pool: ProcessPoolExecutor, simulate: Callable[[int], object], seeds: Sequence[int]
) -> None:
    """`run` in several processes; all seeds that fail first in their share are told."""
    shares = [seeds[at : at + SHARE] for at in range(0, len(seeds), SHARE)]
    found = [f for f in pool.map(first_failure, [simulate] * len(shares), shares) if f[0]]
    if found:
        again = [
            f"seed {seed}: {what}\nTo run it again: make sim SEED={seed}" for seed, what in found
        ]
        pytest.fail("\n".join(again))


def find(
    mutant: str,
    seeds: range,
    simulate: Callable[[int], object],
    error: type[E],
    finds: Callable[[E], bool],
) -> None:
    """Run seeds until one fails by the `error` that shows a broken rule; that none does is a
    failure, and so is another error. The first seed is known to find it, the others are tried if a
    change of the code has moved the runs."""
    for seed in seeds:
        try:
            simulate(seed)
        except error as found:
            if finds(found):
                return
    pytest.fail(f"{len(seeds)} seeds from {seeds.start} on do not find {mutant}")
