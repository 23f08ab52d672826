"""A simulated cluster continues under each fault alone."""

from __future__ import annotations

import pytest
from sim.cluster_faults import FAULTS
from sim.cluster_run import PARTS, simulate


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_alone(fault: str) -> None:
    # Drawn runs have the others, with all faults.
    parts = [part for part in PARTS if part not in ("ranges", "ordered")]
    run = simulate(len(fault), brokers=3, faults=[fault], duration_s=5.0, parts=parts)
    assert run.load.histories.counts["accepted"] > 20
