"""Brokers and members with one rule of key ranges broken, each by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.client.consume.range_positions import RangeCursor, RangePositions
from shoal.client.produce.transactional import TransactionalProducer
from shoal.coordinator.group.consumer.consumer_group import ConsumerGroup
from shoal.coordinator.group.key_ranges.key_slots import ALL
from shoal.coordinator.group.offsets import individual_commit, offsets, range_commits, requests
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.hashed_batches import HashedBatches, SelectedBatches
from shoal.record.key_ranges import KeyRanges
from sim import cluster_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest
    from shoal.coordinator.group.offsets.individual_commit import KeyRangePositions


def gives_key_ranges_that_others_own(patch: pytest.MonkeyPatch) -> None:
    """A member gets its key ranges at once, before their owners have given them up."""
    real = ConsumerGroup.find_free_slots

    def free(self: ConsumerGroup, partition: Any, member: Any) -> int:
        return ALL if partition in self.sharers else real(self, partition, member)

    patch.setattr(ConsumerGroup, "find_free_slots", free)


def takes_commits_of_former_range_owners(patch: pytest.MonkeyPatch) -> None:
    """A member may still commit key ranges that another one has got."""
    real = ConsumerGroup.check_offset_commit

    def check(self: ConsumerGroup, **request: Any) -> Any:
        if self.group_id == cluster_ranges.GROUP:
            return lambda name, topic_id, partition: ErrorCode.none
        return real(self, **request)

    patch.setattr(ConsumerGroup, "check_offset_commit", check)
    patch.setattr(range_commits.RangeCommits, "_check_owner", lambda self, request, topic, p: None)


def starts_ranges_at_the_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """OffsetFetch returns no positions of key ranges."""
    real = offsets._build_offset_response

    def fetched(*arguments: Any, **options: Any) -> Mapping[str, Any]:
        return real(*arguments, **{**options, "key_ranges_wanted": False})

    patch.setattr(offsets, "_build_offset_response", fetched)


def forgets_positions_of_others(patch: pytest.MonkeyPatch) -> None:
    """A commit replaces the positions of all key ranges of its partition."""
    real = individual_commit.apply_commits

    def committed(
        _current: KeyRangePositions | None, commits: Any, *rest: Any
    ) -> KeyRangePositions:
        return real(None, commits, *rest)

    patch.setattr(individual_commit, "apply_commits", committed)


def commits_for_all_ranges(patch: pytest.MonkeyPatch) -> None:
    """A commit of a key range counts for the key ranges of other members too."""
    real = individual_commit.apply_commits

    def committed(current: KeyRangePositions | None, commits: Any, *rest: Any) -> KeyRangePositions:
        return real(current, [(0, KEY_HASH_MAX, commit) for _, _, commit in commits], *rest)

    patch.setattr(individual_commit, "apply_commits", committed)


def reports_the_highest_position(patch: pytest.MonkeyPatch) -> None:
    """The stable offset is the highest position of the key ranges."""
    patch.setattr(
        individual_commit,
        "get_stable_offset",
        lambda pieces: max(p.stable_offset for *_, p in pieces),
    )


def leaves_out_half_of_each_range(patch: pytest.MonkeyPatch) -> None:
    """The broker leaves out records of the keys that a member asks for."""
    real = HashedBatches.select

    def select(
        self: HashedBatches, first: int, past: int, ranges: KeyRanges, *rest: Any, min_one: bool
    ) -> SelectedBatches:
        halves = KeyRanges((r.first, (r.first + r.last) // 2) for r in ranges)
        return real(self, first, past, halves, *rest, min_one=min_one)

    patch.setattr(HashedBatches, "select", select)


def reads_the_last_record_again(patch: pytest.MonkeyPatch) -> None:
    """The position of a member stays at the last record that it has got."""
    real = RangePositions.advance

    def advance(
        self: RangePositions,
        cursor: RangeCursor,
        position: int,
        *,
        delivered: bool,
        first: int = -1,
    ) -> None:
        real(self, cursor, position - delivered, delivered=delivered, first=first)

    patch.setattr(RangePositions, "advance", advance)


def reads_whole_partitions(patch: pytest.MonkeyPatch) -> None:
    """A member fetches the records of all keys."""
    real = RangePositions.make_cursors
    patch.setattr(
        RangePositions,
        "make_cursors",
        lambda self: [replace(cursor, key_ranges=None) for cursor in real(self)],
    )


def commits_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    """A commit in the order of a partition does not wait."""
    patch.setattr(requests.CommitRequest, "is_ordered", False)


def sends_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    """A producer sends the records of a transaction before it is its turn."""
    real = TransactionalProducer.begin

    def begin(self: TransactionalProducer) -> None:
        real(self)
        self._release()

    patch.setattr(TransactionalProducer, "begin", begin)


RANGES_MUTANTS = (
    gives_key_ranges_that_others_own,
    takes_commits_of_former_range_owners,
    starts_ranges_at_the_stable_offset,
    forgets_positions_of_others,
    commits_for_all_ranges,
    reports_the_highest_position,
    leaves_out_half_of_each_range,
    reads_the_last_record_again,
    reads_whole_partitions,
    commits_out_of_turn,
    sends_out_of_turn,
)
