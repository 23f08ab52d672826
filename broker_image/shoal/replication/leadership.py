"""The followers of a partition's leader: their offsets, the ISR and the high watermark.

A follower's fetch offset acknowledges all records below it. The high watermark is the smallest log
end offset of the ISR. The leader asks the controller for changes of the ISR (AlterPartition,
KIP-497). Until the controller has answered, the maximal ISR limits the high watermark: the current
members and those to be added. The high watermark is then correct whether the change is accepted or
not.

A follower leaves the ISR when it has not reached the log end offset for `replica.lag.time.max.ms`.
It joins when it has reached the high watermark and the start offset of the leader epoch. Its broker
must be eligible: not fenced, not in controlled shutdown, and the same incarnation that fetched
(KIP-841, KIP-903). While the ISR is smaller than `min.insync.replicas`, the high watermark does not
advance (KIP-966), so the last member to leave has all committed records.

This module has no I/O and no clock. `Partition` owns a `Leadership` while it leads with followers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shoal.log.log import Log

#: The epoch of a broker that may not join an ISR.
NOT_ELIGIBLE = -1
#: The follower has not fetched in the leader's epoch.
UNKNOWN_OFFSET = -1
#: Kafka's default of replica.lag.time.max.ms.
LAG_TIME_MAX_MS = 30_000

#: Errors of AlterPartition after which the leader waits for a newer image.
_STALE = {
    ErrorCode.fenced_leader_epoch,
    ErrorCode.invalid_update_version,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.new_leader_elected,
}
#: Errors that guarantee that the ISR was not changed.
_REFUSED = {
    ErrorCode.ineligible_replica,
    ErrorCode.invalid_request,
    ErrorCode.operation_not_attempted,
}


class AlterPartition(NamedTuple):
    """A new ISR that the leader proposes: (broker id, broker epoch) of each member."""

    topic_id: UUID
    partition_index: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int = 0

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(member for member, _ in self.isr)


class Follower:
    """The state of one follower, from its fetches."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "fetched_ms",
        "leader_end_offset",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_ms: int) -> None:
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        #: When it last had all of the leader's records, in milliseconds.
        self.caught_up_ms = caught_up_ms
        #: Time of the last fetch, and the leader's log end offset at that time.
        self.fetched_ms = 0
        self.leader_end_offset = 0
        self.broker_epoch = NOT_ELIGIBLE

    def record_fetch(
        self,
        offset: int,
        *,
        log_start_offset: int,
        leader_end_offset: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        """Note a fetch from `offset`. A follower that has reached the leader's end offset of its
        previous fetch was caught up at that time."""
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.fetched_ms = now_ms
        self.leader_end_offset = leader_end_offset
        self.broker_epoch = broker_epoch

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        at_the_end = self.log_end_offset == leader_end_offset
        return at_the_end or now_ms - self.caught_up_ms <= lag_time_max_ms


class LedPartition(Protocol):
    """What a `Leadership` reads of the partition that owns it: `Partition` has it.

    `lag_time_max_ms` is in milliseconds. `alter_isr` asks the controller for another ISR.
    `broker_epoch_of` returns the epoch of a broker that may be in sync, or `NOT_ELIGIBLE`.
    """

    topic_id: UUID
    index: int
    log: Log
    node_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    lag_time_max_ms: int
    high_watermark: int
    alter_isr: Callable[[Any, AlterPartition], None]
    broker_epoch_of: Callable[[int], int]

    @property
    def effective_min_isr(self) -> int: ...


class Leadership:
    """The followers of one partition in one leader epoch, and the proposed ISR."""

    __slots__ = (
        "_now_ms",
        "_outcome_unknown",
        "_partition",
        "_retry_at_ms",
        "followers",
        "proposed",
        "start_offset",
    )

    def __init__(self, partition: LedPartition, now_ms: int) -> None:
        self._partition = partition
        #: The start offset of this epoch. The committed end below it is not known until the high
        #: watermark reaches it.
        self.start_offset = partition.log.log_end_offset
        self.followers: dict[int, Follower] = {}
        #: The ISR that the controller has not answered yet.
        self.proposed: AlterPartition | None = None
        self._outcome_unknown = False
        self._retry_at_ms = 0
        self._now_ms = now_ms
        self.apply_registration(now_ms)

    def apply_registration(self, now_ms: int) -> None:
        """Apply changed replicas or a changed ISR. They void the proposed ISR."""
        partition = self._partition
        self._now_ms = max(self._now_ms, now_ms)
        self.proposed, self._outcome_unknown = None, False
        for replica in list(self.followers):
            if replica not in partition.replicas:
                del self.followers[replica]
        for replica in partition.replicas:
            if replica != partition.node_id and replica not in self.followers:
                # A member counts as caught up now. Otherwise it would leave before its first fetch.
                since_ms = now_ms if replica in partition.isr else -(1 << 62)
                self.followers[replica] = Follower(since_ms)

    # Fetches of followers.

    def update_follower(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Note a follower's fetch from `offset`, which lies within the log."""
        self._now_ms = max(self._now_ms, now_ms)
        follower = self.followers.get(replica_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return
        follower.record_fetch(
            offset,
            log_start_offset=log_start_offset,
            leader_end_offset=self._partition.log.log_end_offset,
            broker_epoch=broker_epoch,
            now_ms=now_ms,
        )
        if replica_id not in self._partition.isr:
            self._expand(replica_id, follower)

    def refresh_follower(self, replica_id: int, broker_epoch: int, now_ms: int) -> bool:
        """Note another fetch of an in-sync follower at the log end offset. Return False if
        `update_follower` has to be called instead."""
        follower = self.followers.get(replica_id)
        if follower is None or follower.broker_epoch != broker_epoch:
            return False
        if follower.log_end_offset != follower.leader_end_offset:
            return False
        self._now_ms = max(self._now_ms, now_ms)
        follower.fetched_ms = max(follower.fetched_ms, now_ms)
        follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        return True

    def compute_high_watermark(self, own_end_offset: int) -> int:
        """Return the smallest end offset of the maximal ISR and of the followers about to join it,
        at least the current high watermark. `own_end_offset` is the leader's own."""
        partition = self._partition
        least, lag_ms = own_end_offset, partition.lag_time_max_ms
        if len(partition.isr) < partition.effective_min_isr:
            return partition.high_watermark
        joining = self.proposed.members if self.proposed is not None else ()
        for replica, follower in self.followers.items():
            if follower.log_end_offset >= least:
                continue
            if (
                replica in partition.isr
                or replica in joining
                or (
                    # Otherwise the high watermark would move away from a joining follower.
                    follower.is_caught_up(partition.log.log_end_offset, self._now_ms, lag_ms)
                    and self._may_join(replica, follower)
                )
            ):
                least = follower.log_end_offset
        return max(least, partition.high_watermark)

    # The ISR.

    def tick(self, now_ms: int) -> None:
        """Propose to remove lagging followers. Retry a proposal that failed temporarily."""
        partition = self._partition
        self._now_ms = max(self._now_ms, now_ms)
        if now_ms < self._retry_at_ms:
            return
        if self.proposed is not None:
            if self._outcome_unknown:
                self._outcome_unknown = False
                partition.alter_isr(partition, self.proposed)
            return
        end, lag_ms = partition.log.log_end_offset, partition.lag_time_max_ms
        lagging = {
            replica
            for replica in partition.isr
            if (follower := self.followers.get(replica)) is not None
            and not follower.is_caught_up(end, now_ms, lag_ms)
        }
        if lagging:
            self._propose(tuple(r for r in partition.isr if r not in lagging))
            return
        for replica, follower in self.followers.items():
            if replica not in partition.isr:
                self._expand(replica, follower)

    def _expand(self, replica_id: int, follower: Follower) -> None:
        partition = self._partition
        if (
            self.proposed is None
            and self._now_ms >= self._retry_at_ms
            and follower.log_end_offset >= max(partition.high_watermark, self.start_offset)
            and self._may_join(replica_id, follower)
        ):
            self._propose((*partition.isr, replica_id))

    def _may_join(self, replica_id: int, follower: Follower) -> bool:
        epoch = self._partition.broker_epoch_of(replica_id)
        return epoch != NOT_ELIGIBLE and follower.broker_epoch == epoch

    def _propose(self, isr: tuple[int, ...]) -> None:
        partition = self._partition
        self.proposed = AlterPartition(
            partition.topic_id,
            partition.index,
            partition.node_id,
            partition.leader_epoch,
            partition.partition_epoch,
            tuple((member, self._find_epoch(member)) for member in isr),
        )
        partition.alter_isr(partition, self.proposed)

    def _find_epoch(self, member: int) -> int:
        follower = self.followers.get(member)
        if follower is None or follower.broker_epoch == NOT_ELIGIBLE:
            return self._partition.broker_epoch_of(member)
        return follower.broker_epoch

    def fail_isr_change(
        self, change: AlterPartition, code: ErrorCode, now_ms: int, retry_ms: int
    ) -> None:
        """Handle a refusal, or an unreachable controller. Only a definite refusal shrinks the
        maximal ISR. Any other change may have been accepted; it is retried until that is known."""
        if self.proposed is not change or code in _STALE:
            return  # A newer image has voided the proposal, or will.
        self._now_ms = max(self._now_ms, now_ms)
        self._retry_at_ms = now_ms + retry_ms
        if code in _REFUSED:
            self.proposed = None
        else:
            self._outcome_unknown = True
