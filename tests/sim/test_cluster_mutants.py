"""The simulation of clusters finds broken rules of logs, transactions and consumer groups."""

from __future__ import annotations

import pytest
from sim.cluster_mutant_cases import OF_LOGS, OF_QUEUES, Case, find_mutant
from sim.cluster_mutants import MUTANTS


def test_every_mutant_has_a_case() -> None:
    assert sorted(case.mutant for case in (*OF_LOGS, *OF_QUEUES)) == sorted(MUTANTS)


@pytest.mark.parametrize("case", OF_LOGS, ids=lambda case: case.mutant)
def test_a_broken_rule_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find_mutant(case, monkeypatch)
