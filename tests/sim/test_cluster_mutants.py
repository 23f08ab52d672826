"""The simulation of clusters finds broken rules: of logs, transactions and consumer groups, and of
share groups, streams groups, key ranges, ordered transactions and tenants."""

from __future__ import annotations

import pytest
from sim.cluster_mutant_cases import BY_DAY, CASES, Case, find_mutant
from sim.cluster_mutants import MUTANTS
from sim.seeds import keep_by_day


def test_every_mutant_has_a_case() -> None:
    assert sorted(case.mutant for case in CASES) == sorted(MUTANTS)


@pytest.mark.parametrize(
    "case",
    keep_by_day(CASES, BY_DAY, "mutant"),
    ids=lambda case: case.mutant,
)
def test_a_broken_rule_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find_mutant(case, monkeypatch)
