"""A simulated cluster continues under each fault alone."""

from __future__ import annotations

import pytest
from sim.cluster_faults import FAULTS
from sim.cluster_run import PARTS, simulate
from sim.seeds import draw_by_day

#: Drawn runs have the others, with all faults.
WHOLE = tuple(part for part in PARTS if part not in ("ranges", "ordered"))


# A simulated second of a whole cluster costs several of CPU, and the runs of drawn seeds have all
# faults together.
@pytest.mark.parametrize(
    ("duration_s", "accepted_min", "parts"),
    [
        pytest.param(1.5, 5, ("transactions", "queues"), id="short"),
        pytest.param(5.0, 20, WHOLE, id="whole", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("fault", draw_by_day(sorted(FAULTS), 2))
def test_each_fault_alone(
    fault: str, duration_s: float, accepted_min: int, parts: tuple[str, ...]
) -> None:
    run = simulate(len(fault), brokers=3, faults=[fault], duration_s=duration_s, parts=parts)
    assert run.load.histories.counts["accepted"] > accepted_min
