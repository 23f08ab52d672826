"""What the leader of a replicated partition knows of its followers: who is in sync, and how far.

A follower tells by where it fetches: all below its fetch offset is in its log. From that come the
high watermark, the least log end of the in-sync replicas, and the changes of the ISR that the
leader asks the controller for (AlterPartition, KIP-497). Until the controller has answered, both
the replicas in sync before and those to be added hold the high watermark back (the maximal ISR),
so that it is right whichever of the two is in force.

A follower leaves the ISR when it has not been at the log's end for `replica.lag.time.max.ms`, and
joins when it has reached the high watermark and the epoch's first offset, if its broker may: one
that is fenced, shuts down, or has another incarnation than the one that fetched, may not (KIP-841,
KIP-903). While fewer replicas than `min.insync.replicas` are in sync the high watermark stays
(KIP-966): so who left last has all that is committed.

No I/O and no clock; `Partition` owns one of these while it leads with other replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.replication.partition import Partition

#: A broker that may not be in sync has this epoch.
NOT_ELIGIBLE = -1
#: The leader has not heard of the follower in its epoch.
UNKNOWN_OFFSET = -1
#: replica.lag.time.max.ms of Kafka.
LAG_TIME_MAX_MS = 30_000

#: Refusals of AlterPartition after which the leader waits for the image: what it knows is old.
_STALE = {
    ErrorCode.fenced_leader_epoch,
    ErrorCode.invalid_update_version,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.new_leader_elected,
}
#: Refusals that say that the ISR was not changed.
_REFUSED = {
    ErrorCode.ineligible_replica,
    ErrorCode.invalid_request,
    ErrorCode.operation_not_attempted,
}


class AlterPartition(NamedTuple):
    """An ISR that the leader asks the controller for, (broker id, broker epoch) of each member."""

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
    """One follower, as its fetches tell of it."""

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
        #: When it was last known to have all that the leader had.
        self.caught_up_ms = caught_up_ms
        #: The last fetch, and the leader's log end at that time.
        self.fetched_ms = 0
        self.leader_end_offset = 0
        self.broker_epoch = NOT_ELIGIBLE

    def fetched(
        self,
        offset: int,
        *,
        log_start_offset: int,
        leader_end_offset: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        """It has fetched from `offset`. Who is now where the leader was at its last fetch has been
        at the log's end then."""
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


class Leadership:
    """The followers of one partition in one leader epoch, and the ISR that is asked for."""

    __slots__ = (
        "_now_ms",
        "_outcome_unknown",
        "_partition",
        "_retry_at_ms",
        "followers",
        "proposed",
        "start_offset",
    )

    def __init__(self, partition: Partition, now_ms: int) -> None:
        self._partition = partition
        #: Where this epoch begins: below it, what is committed is not known for sure before the
        #: high watermark has come so far.
        self.start_offset = partition.log.log_end_offset
        self.followers: dict[int, Follower] = {}
        #: What the controller has not answered yet.
        self.proposed: AlterPartition | None = None
        self._outcome_unknown = False
        self._retry_at_ms = 0
        self._now_ms = now_ms
        self.apply_registration(now_ms)

    def apply_registration(self, now_ms: int) -> None:
        """The partition's replicas or its ISR have changed: what was asked for is void."""
        partition = self._partition
        self._now_ms = max(self._now_ms, now_ms)
        self.proposed, self._outcome_unknown = None, False
        for replica in list(self.followers):
            if replica not in partition.replicas:
                del self.followers[replica]
        for replica in partition.replicas:
            if replica != partition.node_id and replica not in self.followers:
                # A member counts as caught up now, or it would leave before its first fetch.
                since_ms = now_ms if replica in partition.isr else -(1 << 62)
                self.followers[replica] = Follower(since_ms)

    # What followers tell.

    def update_follower(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int, now_ms: int
    ) -> None:
        """A follower fetches from `offset`, which lies within the log."""
        self._now_ms = max(self._now_ms, now_ms)
        follower = self.followers.get(replica_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return
        follower.fetched(
            offset,
            log_start_offset=log_start_offset,
            leader_end_offset=self._partition.log.log_end_offset,
            broker_epoch=broker_epoch,
            now_ms=now_ms,
        )
        if replica_id not in self._partition.isr:
            self._expand(replica_id, follower)

    def refresh_follower(self, replica_id: int, broker_epoch: int, now_ms: int) -> bool:
        """`fetched` from the log's end by who was there at its last fetch, and is in sync. False
        where that has to be looked at anew."""
        follower = self.followers.get(replica_id)
        if follower is None or follower.broker_epoch != broker_epoch:
            return False
        if follower.log_end_offset != follower.leader_end_offset:
            return False
        self._now_ms = max(self._now_ms, now_ms)
        follower.fetched_ms = max(follower.fetched_ms, now_ms)
        follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        return True

    def high_watermark(self, own_end_offset: int) -> int:
        """The least log end of the maximal ISR and of those about to join it; never less than it
        was. `own_end_offset` is the leader's own, of what it may acknowledge."""
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
                    # Or the high watermark would run away from who is about to join.
                    follower.is_caught_up(partition.log.log_end_offset, self._now_ms, lag_ms)
                    and self._may_join(replica, follower)
                )
            ):
                least = follower.log_end_offset
        return max(least, partition.high_watermark)

    # The ISR.

    def tick(self, now_ms: int) -> None:
        """Drop from the ISR who lags, and ask anew for what was refused for the time being."""
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
            tuple((member, self._epoch_of(member)) for member in isr),
        )
        partition.alter_isr(partition, self.proposed)

    def _epoch_of(self, member: int) -> int:
        follower = self.followers.get(member)
        if follower is None or follower.broker_epoch == NOT_ELIGIBLE:
            return self._partition.broker_epoch_of(member)
        return follower.broker_epoch

    def fail_isr_change(
        self, change: AlterPartition, code: ErrorCode, now_ms: int, retry_ms: int
    ) -> None:
        """The controller refused, or was not reached. Only what is refused for sure leaves the
        maximal ISR; anything else may have been taken, and is asked again until that is known."""
        if self.proposed is not change or code in _STALE:
            return  # A newer image voids what was asked for, or is on its way.
        self._now_ms = max(self._now_ms, now_ms)
        self._retry_at_ms = now_ms + retry_ms
        if code in _REFUSED:
            self.proposed = None
        else:
            self._outcome_unknown = True
