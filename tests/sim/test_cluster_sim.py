"""Whole clusters of real brokers under faults: short runs, one for each seed.

`make sim SEED=n` runs one seed and shows the events before a failure. `CLUSTER_SEEDS=from-to`
chooses the seeds of `test_seeds`, which runs on all cores: a few by default, 600 short ones in
CI (half a second each, half of them drawn for each run), and as many as possible at night.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, NamedTuple

import pytest
from sim.cluster_faults import FAULTS
from sim.cluster_kernel import Violation
from sim.cluster_mutants import MUTANTS
from sim.cluster_run import PARTS, of_seed, shown, simulate, try_seed
from sim.seeds import chosen, chunked, find, one_seed, run_in, workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ProcessPoolExecutor

EOS = ("transactions",)
RECORDED, DRAWN = (300, 300) if os.environ.get("CI") else (5, 15)
SEEDS = chosen("CLUSTER_SEEDS", recorded=RECORDED, drawn=DRAWN)
#: Seeds to try before a mutant counts as not found.
TRIES = 100


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with workers() as pool:
        yield pool


@chunked(SEEDS, 100)
def test_seeds(seeds: range, pool: ProcessPoolExecutor) -> None:
    run_in(pool, try_seed, seeds)


def test_one_seed() -> None:
    """The seed of the environment, or a drawn one."""
    run = of_seed(one_seed(), keep_trace=True)
    with shown(run):
        run.go()


def test_the_same_seed_is_the_same_run() -> None:
    """Byte for byte, also in another process, where sets have another order."""
    here = simulate(4, parts=PARTS).kernel.fingerprint
    assert here == simulate(4, parts=PARTS).kernel.fingerprint
    assert here != simulate(11, parts=PARTS).kernel.fingerprint
    program = (
        "from sim.cluster_run import PARTS, simulate;"
        " print(simulate(4, parts=PARTS).kernel.fingerprint)"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert there.stdout.strip() == here


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_alone(fault: str) -> None:
    # Drawn runs have the others, with all faults.
    parts = [part for part in PARTS if part not in ("ranges", "ordered")]
    run = simulate(len(fault), brokers=3, faults=[fault], duration_s=5.0, parts=parts)
    assert run.load.histories.counts["accepted"] > 20


def test_a_run_leaves_nothing_behind() -> None:
    """Interrupted clients are closed completely. Otherwise a coroutine that ends without a loop
    would make another one fail to start after any `asyncio.run`."""
    asyncio.run(asyncio.sleep(0))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        simulate(
            len("client_crash"), brokers=3, faults=["client_crash"], duration_s=5.0, parts=PARTS
        )
        gc.collect()
    assert [str(one.message) for one in warned] == []


# Bugs that seeds have found: each seed and its faults fail without the fix.


@pytest.mark.parametrize("seed", [1865509800427, 3546460155474])
def test_a_commit_of_key_ranges_that_comes_late(seed: int) -> None:
    """The rules took a commit for lost that a cut had held back, and that was accepted after the
    client had timed out and committed more on another connection. Kafka has no fence for it."""
    try_seed(seed)


def test_a_join_that_comes_late_takes_no_key_range_away() -> None:
    """A join came late over a connection that its member had given up, and was assigned a key range
    that another member had just released. The member never heard of it, and nobody read it."""
    try_seed(700660)


def test_a_lock_that_ended_with_its_connection() -> None:
    """The rules compared a lock with a later one although it had ended: its member's connection to
    the leader broke while the member waited for another broker, before it looked at its records."""
    try_seed(60648319389)


def test_tasks_of_a_response_that_was_lost() -> None:
    """The rules took a task for a new one that a lost response had given to the member before."""
    try_seed(3868645292359)


def test_locks_end_when_a_clock_is_set_back() -> None:
    """A broker whose clock was set back by an hour kept the locks of dead members for that hour."""
    simulate(19, brokers=3, faults=["clock_jump"] * 4, parts=[])


def test_the_lag_is_known_where_the_partition_is_not() -> None:
    """A coordinator without a replica of a partition never learned the lag of its share group."""
    simulate(1, brokers=5, faults=[], parts=[])


def test_followers_hear_of_a_leader_that_came_back_from_a_loss_of_power() -> None:
    """Followers waited on the connection to the machine's earlier incarnation, up to
    replica.socket.timeout.ms, while it led again."""
    simulate(1, brokers=3, faults=["power_loss"], rest_s=10.0, parts=[])


# Bugs that the simulation has found.


def test_a_late_write_of_share_state_does_not_replace_newer_ones() -> None:
    """A write to another broker's share coordinator was stuck in a broken network and applied after
    later ones of the same leader. Accepted records would have been delivered again."""
    faults = ["partition", "partition", "one_way", "one_way", "partition"]
    simulate(18, brokers=3, faults=faults, synced=False, parts=[])


def test_a_sync_that_a_full_disk_keeps_from_beginning_is_tried_again() -> None:
    """A full disk refused an index before the sync of its log had begun, and the sync was not
    repeated. The log was reported as offline although it was not, and its follower waited for
    ever."""
    faults = [
        "broken_connections",
        "pause",
        "voter_removed",
        "blackout",
        "disk_full",
        "slow_network",
        "partition",
        "slow_disk",
        "one_way",
        "reassigned",
        "power_loss",
        "blackout",
    ]
    simulate(57, brokers=5, faults=faults, duration_s=25.0, synced=True, rest_s=30.0, parts=[])


def test_a_start_that_failed_is_no_clean_stop() -> None:
    """A broker that had stopped cleanly started on a full disk and wrote a part of a batch to the
    metadata log. The mark of the clean stop was still there, so the next start did not recover the
    log and could not read it."""
    faults = ["restart", "reassigned", "disk_full"]
    simulate(38, brokers=1, faults=faults, synced=True, parts=["transactions"])


def test_a_coordinator_that_cannot_write_waits_before_it_tries_again() -> None:
    """A transaction had to be aborted by its timeout on a full disk. The coordinator failed, loaded
    again, and retried at once for as long as the disk was full."""
    faults = ["disk_full"] * 4
    simulate(6, brokers=1, faults=faults, duration_s=8.0, synced=False, parts=["transactions"])


def test_a_share_partition_that_cannot_be_loaded_is_tried_again_after_a_pause() -> None:
    """Its coordinator had failed on a full disk and was loading. The share partition was refused
    and dropped, and its waiting fetches were woken and asked again at once, in a loop."""
    simulate(1, brokers=1, faults=["disk_full"] * 4, duration_s=8.0, synced=False, parts=[])


def test_a_deposed_coordinator_returns_no_old_offsets() -> None:
    """A broker that had been cut off learned from the new controller that it is fenced before it
    got the metadata with the new coordinators. Until then it returned its groups' offsets, which
    were older than the ones committed elsewhere."""
    simulate(38, brokers=3, faults=["partition"] * 4, parts=EOS, rest_s=30.0)


def test_a_member_confirms_an_assignment_that_was_taken_back() -> None:
    """A member was assigned a partition and then not, while it waited for a broker. Its owned
    partitions had not changed, so it reported nothing, and the partition stayed unassigned."""
    simulate(80, brokers=3, faults=["partition"] * 4, parts=EOS, rest_s=30.0)


def test_a_removed_member_commits_nothing_under_its_new_epoch() -> None:
    """A poll that had begun before returned records of a partition that another member owned by
    then. The position after them was committed, so the other member's next commit went back."""
    simulate(185, brokers=3, faults=["partition"] * 4, parts=EOS, rest_s=30.0)


def test_a_moved_write_has_the_state_of_its_own_time() -> None:
    """A write of share state waited for another broker when its own broker became the coordinator.
    It took the start offset and the complete count from the window of that later time. The
    committed lag left out incomplete records."""
    faults = ["one_way", "one_way", "slow_network", "power_loss", "restart"]
    simulate(
        16, brokers=5, faults=faults, synced=False, duration_s=2.3, parts=["queues"], rest_s=30.0
    )


def test_a_leader_that_is_behind_reports_no_lag() -> None:
    """A new leader's high watermark may lie below what was committed (KIP-207). A group coordinator
    that led the partition itself reported a lag that was too low, instead of an unknown one."""
    faults = ["slow_disk", "crash", "disk_error"]
    simulate(
        57,
        brokers=5,
        faults=faults,
        synced=True,
        duration_s=2.7372835806613076,
        parts=["queues"],
        rest_s=30.0,
    )


def test_a_leader_that_comes_back_syncs_what_it_has() -> None:
    """All brokers were killed, and one led again with records that were not on its disk. Its high
    watermark waited for a sync that only the next record would have requested."""
    faults = ["blackout", "one_way", "disk_full"]
    simulate(
        4294967364,
        brokers=5,
        faults=faults,
        duration_s=2.3028882634866616,
        synced=True,
        parts=[],
        rest_s=15.0,
    )


def test_every_share_group_forgets_a_partition_whose_lead_is_lost() -> None:
    """Three groups read a partition that got another leader. The first one removed its callback,
    which hid the second one's: that group kept delivering from its old window."""
    simulate(
        2352939297706,
        brokers=5,
        faults=["slow_disk", "crash"],
        duration_s=2.3853742030387535,
        synced=False,
        parts=["classic", "queues"],
    )


#: A network and leaders that change faster than brokers and clients learn of it.
HECTIC = [
    "slow_network",
    "reassigned",
    "reassigned",
    "slow_network",
    "one_way",
    "reassigned",
    "pause",
    "partition",
]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(34, id="a-batch-behind-a-refused-one"),
        pytest.param(55, id="metadata-of-a-leader-that-was-frozen"),
        pytest.param(161, id="share-fetches-of-a-leader-that-was-frozen"),
    ],
)
def test_old_leaders(seed: int) -> None:
    """A batch was written twice, after those behind a refused one had broken the sequence. A
    consumer believed a broker that had been frozen, and began again at offset 0. Such a broker
    delivered records that a share group had accepted."""
    simulate(seed, brokers=3, faults=HECTIC, duration_s=8.0, parts=["pipeline"])


#: The rule that shows the loss of an acknowledged record.
LOST = "leader_completeness", "committed_prefix", "lost-write", "inconsistent-offsets"


class Case(NamedTuple):
    """A seed and faults that are known to catch a mutant, and the rules that may catch it."""

    mutant: str
    caught_by: tuple[str, ...]
    seed: int
    brokers: int
    faults: list[str]
    synced: bool | None = None
    parts: tuple[str, ...] = ()
    duration_s: float = 0.0


def of_queues(mutant: str, *caught_by: str, seed: int = 1, faults: list[str] | None = None) -> Case:
    """Return the case of a broken rule of share groups, which one broker shows in seconds."""
    return Case(mutant, caught_by, seed, 1, faults or [], parts=("queues",), duration_s=4.0)


def of_streams(
    mutant: str, *caught_by: str, seed: int = 1, faults: list[str] | None = None
) -> Case:
    """Return the case of a broken rule of streams groups."""
    return Case(mutant, caught_by, seed, 1, faults or [], parts=("streams",), duration_s=8.0)


def of_ranges(mutant: str, *caught_by: str, seed: int = 1) -> Case:
    """Return the case of a broken rule of key ranges in a consumer group."""
    return Case(mutant, caught_by, seed, 1, [], parts=("ranges",), duration_s=8.0)


def of_order(mutant: str, seed: int = 1) -> Case:
    """Return the case of a broken rule of transactions in the order of a partition."""
    return Case(mutant, ("ordered-late",), seed, 1, [], parts=("ordered",), duration_s=4.0)


CASES = [
    Case("commits_by_itself", LOST, 8, 3, ["partition"]),
    Case(
        "commits_before_it_has_synced", LOST, 12, 1, ["slow_disk", *["power_loss"] * 3], synced=True
    ),
    Case("forgets_sequences", ("duplicate",), 18, 3, ["broken_connections"] * 5),
    Case("takes_commits_of_old_members", ("offset-regression",), 24, 3, ["client_pause"] * 6),
    Case("keeps_share_state_in_memory", ("share-redelivered",), 1, 1, ["restart"]),
    Case("forgets_deliveries", ("share-delivery-count",), 3, 1, ["crash"] * 3),
    Case(
        "takes_accepts_of_all",
        ("share-two-holders", "share-late-accept"),
        1,
        1,
        ["client_pause"] * 12,
        duration_s=20.0,
    ),
    Case("shows_open_transactions", ("last_stable_offset", "dirty-read"), 1, 1, [], parts=EOS),
    Case("delivers_open_transactions", ("dirty-read",), 1, 1, [], parts=EOS),
    Case("forgets_aborted_transactions", ("dirty-read",), 1, 1, [], parts=EOS),
    Case("takes_records_of_fenced_producers", ("dirty-read",), 2, 1, [], parts=EOS),
    Case("lets_fenced_producers_end", ("dirty-read", "lost-transaction"), 2, 1, [], parts=EOS),
    Case("counts_offsets_of_aborted_transactions", ("not-exactly-once",), 1, 1, [], parts=EOS),
    Case(
        "takes_commits_of_old_generations",
        ("classic-old-generation", "offset-regression"),
        4,
        1,
        ["client_pause"] * 6,
        parts=("classic",),
    ),
    Case(
        "gives_what_others_own",
        ("group-two-owners",),
        37,
        1,
        ["one_way", "client_crash"] * 5,
        parts=("mixed",),
    ),
    Case(
        "counts_no_generations",
        ("classic-generation", "classic-two-owners"),
        1,
        1,
        ["client_pause"] * 6,
        parts=("classic",),
    ),
    of_queues("ends_locks_early", "share-lock-overlap"),
    of_queues("ends_locks_late", "share-late-accept"),
    of_queues("renews_nothing", "share-lock-overlap", seed=2),
    of_queues("passes_released_records", "share-start-offset"),
    of_queues(
        "loads_from_the_log_start", "share-start-offset", "share-redelivered", faults=["crash"]
    ),
    of_queues("takes_more_than_the_limit", "share-in-flight", seed=2),
    of_queues("exceeds_the_limit_by_one", "share-in-flight"),
    of_queues("takes_back_each_delivery", "share-delivery-count"),
    of_queues("counts_nothing_complete", "share-lag"),
    of_queues("reports_no_complete_records", "share-lag"),
    of_queues("forgets_settled_records_in_snapshots", "share-terminal"),
    of_queues("knows_no_keys", "share-key-order"),
    of_queues("writes_no_dead_letters", "share-dead-letters", seed=2),
    of_queues("wakes_nobody", "share-stuck"),
    of_streams("gives_tasks_that_others_own", "streams-two-owners", seed=23),
    of_streams("gives_before_it_revokes", "streams-revoked-first", "streams-two-owners", seed=23),
    of_streams("forgets_copies", "streams-copies-two-owners", seed=6),
    of_streams("leaves_out_a_task", "streams-coverage", seed=6),
    of_streams(
        "takes_commits_of_former_owners",
        "offset-regression",
        seed=12,
        faults=["client_pause"] * 6,
    ),
    of_streams("makes_a_partition_too_many", "streams-internal-topics", seed=6),
    of_streams("begins_with_epoch_one", "streams-epoch", seed=6, faults=["crash"]),
    of_ranges(
        "gives_key_ranges_that_others_own", "ranges-two-owners", "ranges-late-commit", seed=5
    ),
    Case(
        "takes_commits_of_former_range_owners",
        ("ranges-late-commit",),
        3,
        1,
        ["client_pause"] * 12,
        parts=("ranges",),
        duration_s=20.0,
    ),
    of_ranges("starts_ranges_at_the_stable_offset", "ranges-redelivered", seed=4),
    of_ranges("forgets_positions_of_others", "ranges-redelivered", "offset-regression"),
    of_ranges("commits_for_all_ranges", "ranges-unfinished", "unseen"),
    of_ranges("reports_the_highest_position", "ranges-unfinished", seed=2),
    of_ranges("leaves_out_half_of_each_range", "unseen"),
    of_ranges("reads_the_last_record_again", "ranges-key-order"),
    of_ranges("reads_whole_partitions", "ranges-foreign-record"),
    of_order("commits_out_of_turn"),
    of_order("sends_out_of_turn"),
]


def test_every_mutant_has_a_case() -> None:
    assert sorted(case.mutant for case in CASES) == sorted(MUTANTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant)
def test_a_broken_rule_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[case.mutant](monkeypatch)
    find(
        case.mutant,
        range(case.seed, case.seed + TRIES),
        lambda seed: simulate(
            seed,
            brokers=case.brokers,
            faults=case.faults,
            synced=case.synced,
            parts=case.parts,
            duration_s=case.duration_s,
            rest_s=30.0,
        ),
        Violation,
        lambda found: found.rule in case.caught_by,
    )
