"""The simulation of clusters finds broken rules of share groups, streams groups, key ranges and
ordered transactions."""

from __future__ import annotations

import pytest
from sim.cluster_mutant_cases import OF_QUEUES, Case, find_mutant


@pytest.mark.parametrize("case", OF_QUEUES, ids=lambda case: case.mutant)
def test_a_broken_rule_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find_mutant(case, monkeypatch)
