"""Brokers with one rule broken, each by name. They measure what the cluster simulation finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from shoal.coordinator.group.classic.classic_group import ClassicGroup
from shoal.coordinator.group.consumer.consumer_group import ConsumerGroup
from shoal.coordinator.group.key_ranges.key_slots import ALL
from shoal.coordinator.group.offsets.offsets import OffsetManager
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.state_store import ShareStateShard, StateChange
from shoal.log import deduplication
from shoal.log.producers import BatchMetadata, ProducerStateManager
from shoal.protocol.errors import ErrorCode
from shoal.replication.partition import Partition
from shoal.server.share.leader import ShareLeader
from shoal.transaction.shard import ProducerIdentity, TransactionShard
from sim.cluster_ranges_mutants import RANGES_MUTANTS
from sim.cluster_share_mutants import SHARE_MUTANTS
from sim.cluster_streams_mutants import STREAMS_MUTANTS
from sim.cluster_tenants_mutants import TENANTS_MUTANTS
from sim.replica_mutants import commits_by_itself

if TYPE_CHECKING:
    from shoal.coordinator.contract import CoordinatorResult
    from shoal.record.batch import BatchHeader

Mutant = Callable[[pytest.MonkeyPatch], None]


def commits_before_it_has_synced(patch: pytest.MonkeyPatch) -> None:
    """Records that must be on disk before the acknowledgement are acknowledged from memory."""
    real = Partition._on_appended

    def grown(self: Partition, size: int) -> None:
        real(self, size)
        if self.leadership is None:
            self._set_high_watermark(self.log.log_end_offset)

    patch.setattr(Partition, "_on_appended", grown)


def forgets_sequences(patch: pytest.MonkeyPatch) -> None:
    """A batch that was sent again is stored again."""
    patch.setattr(ProducerStateManager, "check", lambda self, header, client: None)


def takes_commits_of_old_members(patch: pytest.MonkeyPatch) -> None:
    """A member that was removed from a group may still commit offsets."""
    patch.setattr(
        ConsumerGroup,
        "check_offset_commit",
        lambda self, **_: lambda name, topic_id, partition: ErrorCode.none,
    )


def keeps_share_state_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Acknowledgements of share members are answered and never written."""
    real = ShareStateShard.write

    def write(self: ShareStateShard, *arguments: Any, **options: Any) -> StateChange:
        change = real(self, *arguments, **options)
        return change if change.refusal else StateChange(None)

    patch.setattr(ShareStateShard, "write", write)


def forgets_deliveries(patch: pytest.MonkeyPatch) -> None:
    """Share-group state is written without the delivery counts."""
    real = ShareStateShard.write

    def write(self: ShareStateShard, *arguments: Any, **options: Any) -> StateChange:
        batches: Sequence[tuple[int, int, int, int]] = options.pop("batches")
        forgotten = [(first, last, state, 0) for first, last, state, _ in batches]
        return real(self, *arguments, batches=forgotten, **options)

    patch.setattr(ShareStateShard, "write", write)


def takes_accepts_of_all(patch: pytest.MonkeyPatch) -> None:
    """The member that accepts a record counts as the one that holds it."""
    real = SharePartition.acknowledge

    def acknowledge(
        self: SharePartition, now_ms: int, member_id: str, acknowledgements: Any, *rest: Any
    ) -> Any:
        offset = acknowledgements[0][0]
        if self.runs.start <= offset < self.runs.end:
            lock = self.locks.live.get(self.runs.locks[self.runs.find_run(offset)])
            member_id = lock.member_id if lock is not None else member_id
        return real(self, now_ms, member_id, acknowledgements, *rest)

    patch.setattr(SharePartition, "acknowledge", acknowledge)


def shows_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """The last stable offset ignores transactions."""
    patch.setattr(
        ProducerStateManager, "find_first_unstable_offset", lambda self, high_watermark: None
    )


def delivers_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """A read-committed share group gets records of open transactions."""
    patch.setattr(ShareLeader, "get_limit", lambda self, settings: self.partition.high_watermark)


def forgets_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    """The index of aborted transactions stays empty."""
    real = ProducerStateManager.note_marker

    def note_marker(self: ProducerStateManager, *arguments: Any) -> None:
        real(self, *arguments)

    patch.setattr(ProducerStateManager, "note_marker", note_marker)


def takes_records_of_fenced_producers(patch: pytest.MonkeyPatch) -> None:
    """Neither the coordinator nor the log checks the producer's epoch."""
    check, add = ProducerStateManager.check, TransactionShard.add_partitions

    def checked(
        self: ProducerStateManager, header: BatchHeader, *, client: bool
    ) -> BatchMetadata | None:
        producer = self.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            return None
        return check(self, header, client=client)

    def added(
        self: TransactionShard, writer: ProducerIdentity, *arguments: Any
    ) -> CoordinatorResult:
        found = self.get(writer.transactional_id)
        if found is not None:
            writer = writer._replace(producer_epoch=found.producer_epoch)
        return add(self, writer, *arguments)

    patch.setattr(ProducerStateManager, "check", checked)
    patch.setattr(TransactionShard, "add_partitions", added)


def lets_fenced_producers_end(patch: pytest.MonkeyPatch) -> None:
    """A fenced producer may end the transaction of its successor."""
    real = TransactionShard.end

    def end(self: TransactionShard, writer: ProducerIdentity, **options: Any) -> CoordinatorResult:
        found = self.get(writer.transactional_id)
        if found is not None and writer.producer_epoch < found.producer_epoch:
            writer = writer._replace(producer_epoch=found.producer_epoch)
        return real(self, writer, **options)

    patch.setattr(TransactionShard, "end", end)


def counts_offsets_of_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    """A group's offsets move although their transaction was aborted."""
    real = OffsetManager.replay_end_transaction
    patch.setattr(
        OffsetManager,
        "replay_end_transaction",
        lambda self, producer_id, _: real(self, producer_id, True),
    )


def takes_commits_of_old_generations(patch: pytest.MonkeyPatch) -> None:
    """A member that missed a classic group's rebalance may still commit offsets."""
    patch.setattr(ClassicGroup, "check_offset_commit", lambda self, **_: None)


def counts_no_generations(patch: pytest.MonkeyPatch) -> None:
    """The generation does not change when a classic group is rebalanced."""
    patch.setattr(
        ClassicGroup, "generation_id", property(lambda self: 1, lambda self, _: None), raising=False
    )


def gives_what_others_own(patch: pytest.MonkeyPatch) -> None:
    """A member gets its partitions at once, before their owners have given them up."""
    patch.setattr(ConsumerGroup, "find_free_slots", lambda self, partition, member: ALL)


def reads_no_ids(patch: pytest.MonkeyPatch) -> None:
    """A new leader knows no ids of the records that are in its log."""
    patch.setattr(deduplication, "_find_start", lambda log, time_ms: log.log_end_offset)


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        commits_by_itself,
        commits_before_it_has_synced,
        forgets_sequences,
        takes_commits_of_old_members,
        keeps_share_state_in_memory,
        forgets_deliveries,
        takes_accepts_of_all,
        shows_open_transactions,
        delivers_open_transactions,
        forgets_aborted_transactions,
        takes_records_of_fenced_producers,
        lets_fenced_producers_end,
        counts_offsets_of_aborted_transactions,
        takes_commits_of_old_generations,
        counts_no_generations,
        gives_what_others_own,
        reads_no_ids,
        *SHARE_MUTANTS,
        *STREAMS_MUTANTS,
        *RANGES_MUTANTS,
        *TENANTS_MUTANTS,
    )
}
