"""The metadata quorum under faults: many short runs, each of a seed.

`SEED=n pytest tests/sim/test_quorum_sim.py -k one_seed` runs one seed, and shows what happened
before it failed; `SEEDS=from-to` chooses those that `test_seeds` runs.
"""

from __future__ import annotations

import os

import pytest
from sim.quorum_cluster import simulate

FIRST, LAST = (int(n) for n in os.environ.get("SEEDS", "1-200").split("-"))
CHUNK = 20
CHUNKS = [range(at, min(at + CHUNK, LAST + 1)) for at in range(FIRST, LAST + 1, CHUNK)]


@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda s: f"{s.start}-{s.stop - 1}")
def test_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            simulate(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}\nTo run it again: make sim SEED={seed}")


def test_one_seed() -> None:
    """The seed of the environment, or the first one."""
    seed = int(os.environ.get("SEED", FIRST))
    cluster = simulate(seed, keep_trace=True)
    assert cluster.checker.acknowledged_count > 0


def test_the_same_seed_is_the_same_run() -> None:
    for seed in (7, 23):
        assert simulate(seed).world.fingerprint == simulate(seed).world.fingerprint
    assert simulate(7).world.fingerprint != simulate(8).world.fingerprint
