"""Replicated partitions under faults: many short runs, each of a seed.

`SEED=n pytest tests/sim/test_replica_sim.py -k one_seed` runs one seed, and shows what happened
before it failed; `SEEDS=from-to` chooses those that `test_seeds` runs.
"""

from __future__ import annotations

import os

import pytest
from shoal.log.errors import OffsetOutOfRange
from sim.replica_checker import Violation
from sim.replica_cluster import FAULTS, ReplicaCluster, simulate, torment
from sim.replica_mutants import MUTANTS, RARE
from sim.seeds import chosen, chunked, run

FIRST, LAST = chosen("SEEDS", "1-120")
#: Mutants, and the most seeds that each gets.
SOUGHT = MUTANTS | (RARE if os.environ.get("RARE") else {})
MUTANT_SEEDS = LAST if os.environ.get("RARE") else 20


@chunked(FIRST, LAST, 20)
def test_seeds(seeds: range) -> None:
    run(simulate, seeds)


def test_one_seed() -> None:
    """The seed of the environment, or the first one."""
    seed = int(os.environ.get("SEED", FIRST))
    assert simulate(seed, keep_trace=True).checker.acknowledged_count > 0


def test_the_same_seed_is_the_same_run() -> None:
    for seed in (3, 5):
        assert simulate(seed).world.fingerprint == simulate(seed).world.fingerprint
    assert simulate(3).world.fingerprint != simulate(5).world.fingerprint


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_by_itself(fault: str) -> None:
    cluster = torment(ReplicaCluster(len(fault)), (fault,), duration_ms=6_000)
    assert cluster.checker.acknowledged_count > 20


def test_who_led_without_a_record_comes_back_into_step() -> None:
    """Seed 2 found a follower that asked for ever from an epoch that nobody else knew."""
    simulate(2)


@pytest.mark.parametrize("mutant", sorted(SOUGHT))
def test_a_broken_rule_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SOUGHT[mutant](monkeypatch)
    with pytest.raises((Violation, OffsetOutOfRange)):
        for seed in range(1, MUTANT_SEEDS + 1):
            simulate(seed)
