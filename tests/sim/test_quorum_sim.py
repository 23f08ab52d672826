"""The metadata quorum under faults: many short runs, one for each seed.

`SEED=n pytest tests/sim/test_quorum_sim.py -k one_seed` runs one seed, and shows the events before
a failure. `SEEDS=from-to` chooses the seeds of `test_seeds`, and `DISK_SEEDS` those of the runs in
which voters lose their disks.
"""

from __future__ import annotations

from sim import quorum_disks as disks
from sim.quorum_cluster import simulate
from sim.seeds import chosen, chunked, one_seed, run

SEEDS = chosen("SEEDS", recorded=4, drawn=15)
DISK_SEEDS = chosen("DISK_SEEDS", recorded=3, drawn=3)


@chunked(SEEDS, 20)
def test_seeds(seeds: range) -> None:
    run(simulate, seeds)


def test_one_seed() -> None:
    """The seed of the environment, or a drawn one."""
    simulate(one_seed(), keep_trace=True)


def test_the_same_seed_is_the_same_run() -> None:
    one, again, other = (simulate(seed).world.fingerprint for seed in (7, 7, 8))
    assert one == again != other


@chunked(DISK_SEEDS, 20)
def test_voters_that_lose_their_disks(seeds: range) -> None:
    """Voters lose their disks one after the other, never a majority at once."""
    lost = 0

    def one(seed: int) -> None:
        nonlocal lost
        lost += disks.simulate(seed).lost

    run(one, seeds)
    # Some runs lose none.
    assert lost > len(seeds) // 2 or (seeds.start > 1 and len(seeds) < 10)


def test_a_log_that_a_snapshot_replaced_begins_at_it_after_a_power_loss() -> None:
    """The old start offset came back, and with it a log that seemed to begin at 0. Its leader sent
    a follower back to 0, below the committed offset."""
    simulate(70708)


def test_an_election_that_is_won_after_a_later_one() -> None:
    """A paused candidate took the last vote of its epoch when another epoch had begun. The rules
    asked it for what that one had committed meanwhile."""
    simulate(572633711349)
