"""Share groups with one rule broken, each by name: one for each rule of the checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.share import acquisition, records, selection
from shoal.coordinator.share.locks import Lock
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.state_store import ShareStateShard, StateChange
from shoal.coordinator.share.states import AVAILABLE, StateBatch
from shoal.server.handlers.share import describe_share_group_offsets
from shoal.server.share import group_settings
from shoal.server.share.dead_letters import DeadLetters
from shoal.server.share.service import ShareService
from sim.cluster_shares import LOCK_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

#: How much earlier or later than promised a lock may expire.
_ASTRAY_MS = 1_500


def _lock_for(patch: pytest.MonkeyPatch, astray_ms: int) -> None:
    """Make locks run for another time than the one that members get."""

    def lock(member_id: str, deadline_ms: int, **facts: Any) -> Lock:
        return Lock(member_id, deadline_ms + astray_ms, **facts)

    patch.setattr(acquisition, "Lock", lock)
    patch.setattr(selection, "Lock", lock)


def ends_locks_early(patch: pytest.MonkeyPatch) -> None:
    """Records are delivered to others while a member may still work on them."""
    _lock_for(patch, -_ASTRAY_MS)


def ends_locks_late(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement is accepted although its lock has expired."""
    _lock_for(patch, int(LOCK_S * 1000) + _ASTRAY_MS)


def renews_nothing(patch: pytest.MonkeyPatch) -> None:
    """A renewal is answered, and the lock ends when it would have ended without it."""
    patch.setattr(SharePartition, "_renew", lambda self, deadline_ms, member_id, ranges: None)


def passes_released_records(patch: pytest.MonkeyPatch) -> None:
    """The start offset moves past records that were delivered and became available again."""
    real = SharePartition.advance

    def advance(self: SharePartition) -> None:
        changes: list[StateBatch] = []
        runs = self.runs
        if len(runs) and runs.states[0] == AVAILABLE and runs.counts[0] > 0:
            self.archive(runs.firsts[0], runs.get_last(0), changes)
        real(self)

    patch.setattr(SharePartition, "advance", advance)


def loads_from_the_log_start(patch: pytest.MonkeyPatch) -> None:
    """A new leader starts at the log start, not at the group's start offset."""
    real = SharePartition.from_state_batches

    def load(_start_offset: int, _batches: Any, **options: Any) -> SharePartition:
        return real(options["log_start_offset"], (), **options)

    patch.setattr(SharePartition, "from_state_batches", load)


def takes_more_than_the_limit(patch: pytest.MonkeyPatch) -> None:
    """New records are acquired without a limit on records in flight."""
    patch.setattr(SharePartition, "in_flight", property(lambda self: 0))


def exceeds_the_limit_by_one(patch: pytest.MonkeyPatch) -> None:
    """One new record is acquired when as many are in flight as may be."""
    real = vars(SharePartition)["in_flight"].fget
    patch.setattr(SharePartition, "in_flight", property(lambda self: real(self) - 1))


def takes_back_each_delivery(patch: pytest.MonkeyPatch) -> None:
    """A delivery whose lock expired is not counted."""
    real = SharePartition._unlock

    def unlock(self: SharePartition, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **{**options, "undelivered": True})

    patch.setattr(SharePartition, "_unlock", unlock)


def counts_nothing_complete(patch: pytest.MonkeyPatch) -> None:
    """The count of complete records after the start offset is not persisted, so the lag is too high
    until the start offset has passed them."""
    real = ShareStateShard.write

    def write(self: ShareStateShard, *arguments: Any, **options: Any) -> StateChange:
        return real(self, *arguments, **{**options, "delivery_complete_count": 0})

    patch.setattr(ShareStateShard, "write", write)


def reports_no_complete_records(patch: pytest.MonkeyPatch) -> None:
    """The reported lag is the distance from the start offset to the end."""
    real = describe_share_group_offsets._build_partition

    def partition(index: int, summary: Mapping[str, Any], end: int) -> Any:
        return real(index, {**summary, "delivery_complete_count": 0}, end)

    patch.setattr(describe_share_group_offsets, "_build_partition", partition)


def forgets_settled_records_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A snapshot of a share partition's state contains only its start offset."""
    real = records.encode_snapshot
    patch.setattr(
        records,
        "encode_snapshot",
        lambda key, **fields: real(key, **{**fields, "state_batches": ()}),
    )


def knows_no_keys(patch: pytest.MonkeyPatch) -> None:
    """A group with key order gets records in log order, whatever their keys."""
    patch.setattr(group_settings, "build_selection_policy", lambda config: None)


def writes_no_dead_letters(patch: pytest.MonkeyPatch) -> None:
    """A record whose delivery failed permanently leaves its group without a dead letter."""
    patch.setattr(
        DeadLetters,
        "add",
        lambda self, ranges: self._leader.on_dead_letters_written(ranges, dropped=True),
    )


def wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """Waiting fetches are not woken by records that become available."""
    patch.setattr(ShareService, "wake", lambda self, leader: None)


SHARE_MUTANTS = (
    ends_locks_early,
    ends_locks_late,
    renews_nothing,
    passes_released_records,
    loads_from_the_log_start,
    takes_more_than_the_limit,
    exceeds_the_limit_by_one,
    takes_back_each_delivery,
    counts_nothing_complete,
    reports_no_complete_records,
    forgets_settled_records_in_snapshots,
    knows_no_keys,
    writes_no_dead_letters,
    wakes_nobody,
)
