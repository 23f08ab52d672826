"""Replicated partitions under faults: many short runs, one for each seed.

`SEED=n pytest tests/sim/test_replica_sim.py -k one_seed` runs one seed, and shows the events before
a failure. `SEEDS=from-to` chooses the seeds of `test_seeds`.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from sim.replica_checker import Violation
from sim.replica_cluster import FAULTS, ReplicaCluster, simulate, torment
from sim.replica_mutants import MUTANTS
from sim.replica_scenes import SCENES
from sim.replica_scenes import Case as SceneCase
from sim.seeds import chosen, chunked, find, one_seed, run

SEEDS = chosen("SEEDS", recorded=5, drawn=10)
#: Seeds to try before a mutant counts as not found.
TRIES = 100


@chunked(SEEDS, 20)
def test_seeds(seeds: range) -> None:
    run(simulate, seeds)


def test_one_seed() -> None:
    """The seed of the environment, or a drawn one."""
    simulate(one_seed(), keep_trace=True)


def test_the_same_seed_is_the_same_run() -> None:
    one, again, other = (simulate(seed).world.fingerprint for seed in (3, 3, 5))
    assert one == again != other


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_alone(fault: str) -> None:
    cluster = torment(ReplicaCluster(len(fault)), (fault,), duration_ms=6_000)
    assert cluster.checker.acknowledged_count > 20


def test_a_leader_without_a_record_gets_back_in_sync() -> None:
    """Seed 2 found a follower that asked for ever from an epoch that no other broker had."""
    simulate(2)


# The simulation finds each mutant by the rule that it breaks.


class Case(NamedTuple):
    """A mutant that a few seeds find with the faults that they draw: the first seed to try, and the
    rules that may catch it."""

    mutant: str
    caught_by: tuple[str, ...]
    seed: int


CASES = [
    Case("keeps_a_divergent_tail", ("committed_prefix",), 2),
    Case("notes_no_epoch", ("noted_epoch",), 1),
    Case("tells_an_old_end", ("offsets_back",), 2),
    Case("believes_the_leader_beyond_its_log", ("high_watermark_in_log",), 2),
]


def test_every_mutant_has_a_case_or_a_scene() -> None:
    mutants = [case.mutant for case in CASES] + [case.mutant for case in SCENES]
    assert sorted(mutants) == sorted(MUTANTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant)
def test_a_broken_rule_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[case.mutant](monkeypatch)
    find(
        case.mutant,
        range(case.seed, case.seed + TRIES),
        simulate,
        Violation,
        lambda found: found.invariant in case.caught_by,
    )


@pytest.mark.parametrize("case", SCENES, ids=lambda case: case.mutant)
def test_a_broken_rule_is_found_in_a_scene(
    case: SceneCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[case.mutant](monkeypatch)
    with pytest.raises(Violation) as found:
        case.play()
    assert found.value.invariant in case.caught_by


@pytest.mark.parametrize(
    "case", {case.scene: case for case in SCENES}.values(), ids=lambda case: case.scene.__name__
)
def test_the_code_holds_in_a_scene(case: SceneCase) -> None:
    case.play()
