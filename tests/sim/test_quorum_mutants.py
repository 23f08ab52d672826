"""The simulation finds each broken rule: a mutant fails in its seeds.

Each case begins with a seed that is known to catch its mutant, and tries others if a code change
has changed the runs. The last three were real bugs.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from sim import quorum_disks
from sim.quorum_cluster import simulate
from sim.quorum_mutants import MUTANTS, knows_voters_by_their_id
from sim.seeds import find, keep_by_day

#: Seeds to try before a mutant counts as not found.
TRIES = 1000


class Case(NamedTuple):
    mutant: str
    caught_by: str
    seed: int
    faults: tuple[str, ...] = ()
    voters: int = 0


CASES = [
    Case("commits_earlier_epochs", "own_epoch", 1),
    Case("forgets_its_vote", "single_vote", 1),
    Case("forgets_its_epoch", "single_vote", 1),
    Case("votes_twice", "single_vote", 25),
    Case("votes_for_shorter_logs", "leader_completeness", 1),
    Case("fetches_before_it_has_synced", "majority_durable", 1),
    Case("leader_counts_itself_unsynced", "majority_durable", 3),
    Case("half_is_a_majority", "leader_completeness", 16),
    Case("keeps_a_divergent_tail", "within a batch", 102),
    Case("leads_on_after_a_restart", "committed_prefix", 11),
    Case("takes_any_response", "must not become", 1),
    Case(
        "changes_voters_before_commit",
        "single_leader",
        35,
        ("voter_removed", "voter_removed", "partition", "voter_added"),
        3,
    ),
    Case("stands_only_as_a_voter", "liveness", 194),
    Case(
        "stands_by_the_set_at_its_high_watermark",
        "liveness",
        156,
        ("voter_removed", "voter_added", "restart", "torn_write"),
        1,
    ),
    Case(
        "fetches_before_its_cut_is_durable",
        "committed_prefix",
        24,
        ("blackout", "slow_disk", "partition"),
        3,
    ),
]


#: Mutants that take more than a second: the night finds them.
SLOW = {
    "forgets_its_vote",
    "votes_twice",
    "leads_on_after_a_restart",
    "stands_only_as_a_voter",
    "stands_by_the_set_at_its_high_watermark",
    "fetches_before_its_cut_is_durable",
}


def test_every_mutant_has_a_case() -> None:
    assert sorted(case.mutant for case in CASES) == sorted(MUTANTS)


@pytest.mark.parametrize(
    "case",
    keep_by_day(CASES, {case.mutant for case in CASES} - SLOW, "mutant"),
    ids=lambda case: case.mutant,
)
def test_a_broken_rule_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[case.mutant](monkeypatch)
    find(
        case.mutant,
        range(case.seed, case.seed + TRIES),
        lambda seed: simulate(seed, faults=case.faults, voters=case.voters),
        AssertionError,
        lambda found: case.caught_by in str(found),
    )


def test_an_empty_disk_taken_for_a_voter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    knows_voters_by_their_id(monkeypatch)
    find(
        "knows_voters_by_their_id",
        range(4, 4 + TRIES),
        quorum_disks.simulate,
        AssertionError,
        lambda found: "leader_completeness" in str(found),
    )


@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("case", [c for c in CASES if c.faults], ids=lambda case: case.mutant)
def test_the_unbroken_core_passes(case: Case, count: int) -> None:
    for seed in range(case.seed, case.seed + count):
        simulate(seed, faults=case.faults, voters=case.voters)
