"""For each mutant of the cluster simulation, a seed with faults that is known to find it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sim.cluster_kernel import Violation
from sim.cluster_mutants import MUTANTS
from sim.cluster_run import simulate
from sim.seeds import find

if TYPE_CHECKING:
    import pytest

EOS = ("transactions",)
#: Seeds to try before a mutant counts as not found.
TRIES = 100
#: Mutants that are found by day, in about a second each: one for each of most checkers.
BY_DAY = {
    "commits_before_it_has_synced",
    "shows_open_transactions",
    "ends_locks_early",
    "leaves_out_a_task",
    "reads_the_last_record_again",
    "exceeds_a_tenants_limit_by_one",
}
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


def of_tenants(mutant: str, *caught_by: str, seed: int = 3, brokers: int = 1) -> Case:
    """Return the case of a broken rule of fairness between tenants, or of their limits."""
    return Case(mutant, caught_by, seed, brokers, [], parts=("tenants",), duration_s=4.0)


CASES = [
    # Broken rules of logs, transactions, consumer groups and classic groups.
    Case("commits_by_itself", LOST, 8, 3, ["partition"]),
    Case(
        "commits_before_it_has_synced",
        LOST,
        2,
        1,
        [*["slow_disk"] * 2, *["power_loss"] * 8],
        synced=True,
        duration_s=8.0,
    ),
    Case("reads_no_ids", ("unique-twice",), 2, 3, ["crash"] * 4, parts=("unique",)),
    Case("forgets_sequences", ("duplicate",), 5, 1, ["broken_connections"] * 10, duration_s=6.0),
    Case("takes_commits_of_old_members", ("offset-regression",), 24, 3, ["client_pause"] * 6),
    Case("keeps_share_state_in_memory", ("share-redelivered",), 1, 1, ["restart"]),
    Case("forgets_deliveries", ("share-delivery-count",), 4, 1, ["crash"] * 3),
    Case(
        "takes_accepts_of_all",
        ("share-two-holders", "share-late-accept"),
        12,
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
        4,
        1,
        ["client_pause"] * 6,
        parts=("classic",),
    ),
    # Broken rules of share groups, streams groups, key ranges, ordered transactions and tenants.
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
    of_queues("wakes_nobody", "share-stuck", seed=3),
    of_streams("gives_tasks_that_others_own", "streams-two-owners", seed=23),
    of_streams("gives_before_it_revokes", "streams-revoked-first", "streams-two-owners", seed=23),
    of_streams("forgets_copies", "streams-copies-two-owners", seed=12),
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
        "gives_key_ranges_that_others_own", "ranges-two-owners", "ranges-late-commit", seed=6
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
    of_ranges("starts_ranges_at_the_stable_offset", "ranges-redelivered", seed=7),
    of_ranges("forgets_positions_of_others", "ranges-redelivered", "offset-regression"),
    of_ranges("commits_for_all_ranges", "ranges-unfinished", "unseen"),
    of_ranges("reports_the_highest_position", "ranges-unfinished", seed=2),
    of_ranges("leaves_out_half_of_each_range", "unseen"),
    of_ranges("reads_the_last_record_again", "ranges-key-order"),
    of_ranges("reads_whole_partitions", "ranges-foreign-record"),
    of_order("commits_out_of_turn"),
    of_order("sends_out_of_turn"),
    of_tenants("grants_limits_by_partition", "tenant-limit"),
    of_tenants("grants_limits_by_broker", "tenant-limit", brokers=3),
    of_tenants("exceeds_a_tenants_limit_by_one", "tenant-limit"),
    of_tenants("fills_buckets_twice_as_fast", "tenant-rate"),
    of_tenants("forgets_who_waits_for_a_limit", "liveness"),
    of_tenants("serves_tenants_by_the_log", "tenant-starved", seed=2),
]


def find_mutant(case: Case, patch: pytest.MonkeyPatch) -> None:
    """Break the rule of a case, and fail if no run finds it."""
    MUTANTS[case.mutant](patch)
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
