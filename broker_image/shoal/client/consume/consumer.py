"""A member of a consumer group (`GroupConsumer`).

The group uses KIP-848: the broker assigns, and the member reports its owned partitions. A member
commits its position in a revoked partition before it gives the partition up. The next owner starts
after that position.

What a member owns is an `OwnedPartitions`, of which there are three: whole partitions with a
position (`whole_partitions`); whole partitions whose records the application finishes in any order,
with `individual_commit` (`individual_partitions`); and with `key_ranges` parts of partitions, so
that more members than partitions have work (`shared_partitions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.client.consume.consumer_membership import ConsumerMembership as ConsumerMembership
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.individual_partitions import IndividualPartitions
from shoal.client.consume.reader import Reader as Reader
from shoal.client.consume.reader import Record as Record  # noqa: TC001 - Is exported.
from shoal.client.consume.shared_partitions import SharedPartitions
from shoal.client.consume.start_offsets import Reset, find_initial_offsets
from shoal.client.consume.whole_partitions import WholePartitions
from shoal.client.errors import ClientError, is_transient
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.client.net.membership import FENCED, Assignment
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import COMMIT_ORDER_FEATURE, INDIVIDUAL_COMMIT_FEATURE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.client.consume.progress import ProgressCommit
    from shoal.client.consume.rebalance_listener import RebalanceListener
    from shoal.record.key_ranges import KeyRanges

_NOT_INDIVIDUAL = "join the group with individual_commit to finish records individually"
#: Codes of a commit that a later one may not get: the member moves to another epoch or group.
_NOT_NOW = frozenset({*FENCED, ErrorCode.stale_member_epoch})


class IndividualCommit(NamedTuple):
    """When `GroupConsumer.poll` commits finished records: after this time, or after this number of
    records, whichever comes first."""

    interval_ms: int = 1_000
    records: int = 10_000


class OwnedPartitions(Protocol):
    """The partitions of one member: what it reads of them, and what it commits."""

    @property
    def next_offsets(self) -> Mapping[TopicPartition, int]:
        """The next offset to read of each partition; of several key ranges the lowest one."""

    @property
    def key_ranges(self) -> Mapping[TopicPartition, KeyRanges]:
        """What the member reads of each partition, if it may own parts of partitions."""

    async def poll(self, max_wait_ms: int) -> Iterator[Record]:
        """Return new records."""

    async def commit(self, timeout_ms: int | None = None) -> None:
        """Commit what is done. Transient errors are retried for `timeout_ms`."""

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Move a position back to `offset` if it is ahead."""

    async def take_over(
        self, assignment: Assignment, key_ranges: Mapping[tuple[UUID, int], KeyRanges]
    ) -> None:
        """Give up what is not assigned any more, then start what is new."""

    async def lose(self) -> None:
        """Forget everything: the member was fenced."""


class PositionCommitter(Protocol):
    """What commits a member's positions in its transactions: a transactional producer."""

    def check_member(self, *, in_order: bool) -> None: ...
    def commit_positions_of(self, partitions: SharedPartitions, *, in_order: bool) -> None: ...
    def check_not_ending(self) -> None: ...
    def forget_positions_of(self, partitions: SharedPartitions) -> None: ...


def _check_producer(
    producer: PositionCommitter | None, *, key_ranges: bool, in_order: bool
) -> None:
    """Raise `ValueError` unless transactions of the producer can commit a member's positions."""
    if producer is not None:
        if not key_ranges:
            raise ValueError(
                "a producer commits the positions of members with key_ranges, and without "
                "individual_commit"
            )
        producer.check_member(in_order=in_order)
    elif in_order:
        raise ValueError("pass a producer: its transactions commit in order")


class GroupConsumer:
    """One member of a consumer group. Created by `GroupConsumer.join`; `await close()` commits."""

    def __init__(
        self,
        cluster: Cluster,
        membership: ConsumerMembership,
        partitions: OwnedPartitions,
        individual_commit: IndividualCommit | None = None,
        producer: PositionCommitter | None = None,
        listeners: list[RebalanceListener] | None = None,
    ) -> None:
        """`partitions` has what the member owns, and calls `listeners` in their order. Transactions
        of a `producer` commit the positions of `SharedPartitions`."""
        self.cluster = cluster
        self.membership = membership
        self.listeners = [] if listeners is None else listeners
        self._partitions = partitions
        self._producer = producer
        self._individual = individual_commit
        #: Records that were finished since the last commit, and when the next one is due.
        self._finished_count = 0
        self._next_commit_s = 0.0

    @classmethod
    async def join(
        cls,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        *,
        reset: Reset = Reset.LATEST,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        individual_commit: IndividualCommit | None = None,
        key_ranges: bool = False,
        listener: RebalanceListener | None = None,
        producer: PositionCommitter | None = None,
        in_order: bool = False,
    ) -> GroupConsumer:
        """Become a member of `group`, which finishes records individually with `individual_commit`,
        and may get key ranges of partitions with `key_ranges`. `listener` is called when its
        partitions change. Logs a warning if a topic does not exist.

        With `key_ranges`, each transaction of a `producer` commits the positions after all records
        that `poll` returned until then. After an abort `poll` returns these records again. With
        `in_order`, the outputs of a transaction follow those of all records below its first record,
        in each partition: its commit waits for the members that have these records.

        Raises the coordinator's refusal, such as GROUP_ID_NOT_FOUND or INVALID_GROUP_ID for a group
        of another type, and UNSUPPORTED_VERSION if it does not offer one of these. Raises
        `ValueError` for a `producer` without `key_ranges`, or with `individual_commit`, and for
        `in_order` without a producer or with one of another member.
        """
        individually = individual_commit is not None
        features = {COMMIT_ORDER_FEATURE: in_order, INDIVIDUAL_COMMIT_FEATURE: individually}
        _check_producer(producer, key_ranges=key_ranges and not individually, in_order=in_order)
        membership = ConsumerMembership(cluster, group, topics, shares=key_ranges)
        await cluster.warn_of_missing_topics(topics, group)
        await membership.join()
        try:
            if key_ranges:
                await membership.check_key_ranges()
            for feature in (name for name, is_needed in features.items() if is_needed):
                await membership.check_offered(feature)
        except BaseException:
            await membership.leave()
            raise
        listeners = [] if listener is None else [listener]
        partitions: OwnedPartitions
        if key_ranges:
            partitions = shared = SharedPartitions(
                cluster,
                membership,
                isolation=isolation,
                starts=lambda new: find_initial_offsets(cluster, group, new, reset),
                listeners=listeners,
                individually=individually,
                transactional=producer is not None,
                in_order=in_order,
            )
            if producer is not None:
                producer.commit_positions_of(shared, in_order=in_order)
        else:
            kind = IndividualPartitions if individually else WholePartitions
            partitions = kind(
                cluster, membership, isolation=isolation, reset=reset, listeners=listeners
            )
        return cls(
            cluster,
            membership,
            partitions,
            individual_commit,
            producer=producer,
            listeners=listeners,
        )

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to read of each partition; of several key ranges the lowest one."""
        return self._partitions.next_offsets

    @property
    def key_ranges(self) -> Mapping[TopicPartition, KeyRanges]:
        """What the member reads of each partition, with `key_ranges`."""
        return self._partitions.key_ranges

    @property
    def commits_individually(self) -> bool:
        """Whether the member has joined with `individual_commit`."""
        return self._individual is not None

    async def poll(self, max_wait_ms: int = 500) -> Iterator[Record]:
        """Return new records of the partitions that this member owns, decoded on demand.

        With individual commits, commit first if the time or the number of finished records is
        reached. Records that the group has finished are left out, and a partition at the limit of
        ranges has no new records. Pass each returned record to `finish`.
        """
        await self.tend()
        if not self.positions:
            await self.membership.wait_for_change(max_wait_ms / 1000)
            return iter(())
        return await self._partitions.poll(max_wait_ms)

    async def tend(self) -> None:
        """Do what `poll` does besides fetching: give up and take over partitions, and commit if
        that is due. Call it at intervals while no new records are wanted."""
        if self._producer is not None:
            self._producer.check_not_ending()
        self.membership.check()
        await self._reconcile()
        if self._individual is not None:
            await self._commit_when_due()

    def finish(self, record: Record) -> None:
        """Finish a record that `poll` returned, in any order. A later `poll`, `commit` or `close`
        commits it. Records of partitions that were revoked are ignored: their new owner has them.

        Raises `ValueError` for a record that `poll` has not returned, and without
        `individual_commit`.
        """
        partitions = self._partitions
        if isinstance(partitions, IndividualPartitions) or (
            isinstance(partitions, SharedPartitions) and self._individual is not None
        ):
            partition = TopicPartition(record.topic, record.partition)
            self._finished_count += partitions.finish(partition, record.offset)
            return
        raise ValueError(_NOT_INDIVIDUAL)

    def make_commits(self, records: Iterable[Record]) -> dict[TopicPartition, ProgressCommit]:
        """Return what a transaction commits to finish records that `poll` returned. They are not
        finished before `on_transaction_committed`.

        Raises `KafkaError` TRANSACTION_ABORTABLE if a record was revoked or finished since, and
        `ValueError` without `individual_commit` or with `key_ranges`.
        """
        return self._get_individual_partitions().make_commits(records)

    def on_transaction_committed(self, commits: Mapping[TopicPartition, ProgressCommit]) -> None:
        """Finish what a transaction with these `make_commits` has committed."""
        self._get_individual_partitions().on_transaction_committed(commits)

    def _get_individual_partitions(self) -> IndividualPartitions:
        if isinstance(self._partitions, IndividualPartitions):
            return self._partitions
        if self._individual is None:
            raise ValueError(_NOT_INDIVIDUAL)
        raise ValueError(
            "a transaction finishes records of whole partitions: join the group without key_ranges"
        )

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Move a position back to `offset` if it is ahead; `commit` then commits that.

        Raises `ValueError` with individual commits, which keep what is finished.
        """
        if self._individual is not None:
            raise ValueError("a member with individual commits cannot rewind; reset the group")
        self._partitions.rewind(partition, offset)

    async def commit(self) -> None:
        """Commit the positions after all records that `poll` returned; with individual commits,
        what is finished. Raises `KafkaError`.

        FENCED_MEMBER_EPOCH means that the coordinator removed the member. Other members then own
        its partitions and start at the last commit. `poll` continues with the next assignment.
        """
        if self._producer is not None:
            raise ValueError("transactions commit the positions: call the producer's commit")
        self._finished_count = 0
        await self._partitions.commit()

    async def _commit_when_due(self) -> None:
        """Commit if the time or the number of records is reached. Errors that a later commit may
        not have are ignored: records that stay uncommitted are at most delivered again."""
        assert self._individual is not None
        now_s = self.cluster.now()
        due = now_s >= self._next_commit_s or self._finished_count >= self._individual.records
        if not due:
            return
        self._next_commit_s = now_s + self._individual.interval_ms / 1000
        try:
            self._finished_count = 0
            await self._partitions.commit(self._individual.interval_ms)
        except ClientError as error:
            if not (is_transient(error) or getattr(error, "code", None) in _NOT_NOW):
                raise

    async def close(self) -> None:
        """Commit, unless transactions do, leave the group, and give up its partitions."""
        try:
            if self._producer is not None:
                assert isinstance(self._partitions, SharedPartitions)
                self._producer.forget_positions_of(self._partitions)
            elif self.membership.member_epoch > 0 and not self.membership.lost:
                await self.commit()
        finally:
            await self.membership.leave()

    async def _reconcile(self) -> None:
        """Revoke partitions, then start new ones. Check the assignment again after each await, so
        that no revoked partition is read.
        """
        member = self.membership
        while member.lost or not member.is_reconciled:
            if member.lost:
                member.lost = False
                await self._partitions.lose()
                continue
            assignment, key_ranges = dict(member.assignment), dict(member.key_ranges)
            await self._partitions.take_over(assignment, key_ranges)
            if not member.lost:
                member.owned, member.owned_key_ranges = assignment, key_ranges
                member.hurry()
