"""Bugs of brokers, clients and rules that simulated clusters have found.

Each seed with its faults failed without the fix. The night runs those that correct the rules of the
simulation, and those of which a scene or a unit test has the bug in less time.
"""

from __future__ import annotations

import pytest
from sim.cluster_run import simulate, try_seed

EOS = ("transactions",)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1865509800427, 3546460155474])
def test_a_commit_of_key_ranges_that_comes_late(seed: int) -> None:
    """The rules took a commit for lost that a cut had held back, and that was accepted after the
    client had timed out and committed more on another connection. Kafka has no fence for it."""
    try_seed(seed)


@pytest.mark.nightly
def test_a_join_that_comes_late_takes_no_key_range_away() -> None:
    """A join came late over a connection that its member had given up, and was assigned a key range
    that another member had just released. The member never heard of it, and nobody read it."""
    try_seed(700660)


@pytest.mark.nightly
def test_a_lock_that_ended_with_its_connection() -> None:
    """The rules compared a lock with a later one although it had ended: its member's connection to
    the leader broke while the member waited for another broker, before it looked at its records."""
    try_seed(60648319389)


@pytest.mark.nightly
def test_tasks_of_a_response_that_was_lost() -> None:
    """The rules took a task for a new one that a lost response had given to the member before."""
    try_seed(3868645292359)


@pytest.mark.nightly
def test_locks_end_when_a_clock_is_set_back() -> None:
    """A broker whose clock was set back by an hour kept the locks of dead members for that hour."""
    simulate(19, brokers=3, faults=["clock_jump"] * 4, parts=[])


def test_the_lag_is_known_where_the_partition_is_not() -> None:
    """A coordinator without a replica of a partition never learned the lag of its share group. Each
    run ends when all lags are 0."""
    simulate(1, brokers=5, faults=[], duration_s=1.0, parts=[])


def test_followers_hear_of_a_leader_that_came_back_from_a_loss_of_power() -> None:
    """Followers waited on the connection to the machine's earlier incarnation, up to
    replica.socket.timeout.ms, while it led again."""
    simulate(1, brokers=3, faults=["power_loss"], rest_s=10.0, parts=[])


@pytest.mark.nightly
def test_a_late_write_of_share_state_does_not_replace_newer_ones() -> None:
    """A write to another broker's share coordinator was stuck in a broken network and applied after
    later ones of the same leader. Accepted records would have been delivered again."""
    faults = ["partition", "partition", "one_way", "one_way", "partition"]
    simulate(18, brokers=3, faults=faults, synced=False, parts=[])


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_deposed_coordinator_returns_no_old_offsets() -> None:
    """A broker that had been cut off learned from the new controller that it is fenced before it
    got the metadata with the new coordinators. Until then it returned its groups' offsets, which
    were older than the ones committed elsewhere."""
    simulate(38, brokers=3, faults=["partition"] * 4, parts=EOS, rest_s=30.0)


@pytest.mark.nightly
def test_a_member_confirms_an_assignment_that_was_taken_back() -> None:
    """A member was assigned a partition and then not, while it waited for a broker. Its owned
    partitions had not changed, so it reported nothing, and the partition stayed unassigned."""
    simulate(80, brokers=3, faults=["partition"] * 4, parts=EOS, rest_s=30.0)


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
