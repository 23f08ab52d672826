"""Consumers of plain offsets: `Reader` for chosen partitions, `GroupConsumer` for a group member.

The group uses KIP-848: the broker assigns, and the member reports its owned partitions. A member
commits its position in a revoked partition before it gives the partition up. The next owner starts
after that position.

With `key_ranges` the coordinator may assign parts of partitions, so that more members than
partitions have work (`shared_partitions`).

With `individual_commit` the application finishes records in any order, and the member commits the
finished ones. The next owner gets only the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.client.admin.groups import CommittedOffset, make_commit_body, parse_finished_above
from shoal.client.consume.consumer_membership import ConsumerMembership as ConsumerMembership
from shoal.client.consume.fetcher import FetchedBatches, Fetcher, Isolation
from shoal.client.consume.progress import PartitionProgress, ProgressCommit
from shoal.client.consume.range_positions import WHOLE
from shoal.client.consume.shared_partitions import (
    RANGES_MAX,
    REVOKE_COMMIT_MS,
    SharedPartitions,
)
from shoal.client.consume.start_offsets import Reset, find_initial_offsets, find_start_offsets
from shoal.client.errors import ClientError, KafkaError, is_transient
from shoal.client.net import message_fields
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.client.net.membership import FENCED, Assignment
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import COMMIT_ORDER_FEATURE, INDIVIDUAL_COMMIT_FEATURE
from shoal.record.finished_offsets import EMPTY, FinishedOffsets
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.client.consume.range_positions import RangePosition
    from shoal.client.consume.rebalance_listener import Ranges, RebalanceListener
    from shoal.client.net.connection import Connection

#: Codes of a commit that a later one may not get: the member moves to another epoch or group.
_NOT_NOW = frozenset({*FENCED, ErrorCode.stale_member_epoch})


class IndividualCommit(NamedTuple):
    """When `GroupConsumer.poll` commits finished records: after this time, or after this number of
    records, whichever comes first."""

    interval_ms: int = 1_000
    records: int = 10_000


class Record(NamedTuple):
    """A record of a partition, as readers and members of consumer groups get it. `timestamp_ms` is
    in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Reader:
    """Reads forward from given offsets. `positions` are the next offsets to read.

    `assign` gives it key ranges of partitions. Readers with different ranges share a partition, and
    each key goes to one of them, in offset order.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        reset: Reset = Reset.NONE,
    ) -> None:
        self.cluster = cluster
        self.positions = dict(positions)
        self.isolation = isolation
        self.reset = reset
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.key_ranges: dict[TopicPartition, KeyRanges] = {}
        self._fetcher = Fetcher(cluster)

    async def assign(
        self, partitions: Mapping[TopicPartition, KeyRanges | Sequence[tuple[int, int]]]
    ) -> None:
        """Read from now on the key ranges [first, last] of these partitions, instead of all others.

        A partition continues at its position. One without a position starts as `reset` says.
        Raises `InvalidKeyRanges`, `ValueError` if a start is needed and `reset` is NONE, and
        `KafkaError`. Then nothing changes.
        """
        ranges = {
            partition: key_ranges if isinstance(key_ranges, KeyRanges) else KeyRanges(key_ranges)
            for partition, key_ranges in partitions.items()
        }
        new = [partition for partition in ranges if partition not in self.positions]
        if new and self.reset == Reset.NONE:
            raise ValueError(f"{new[0]} has no position: pass one to Reader, or a reset")
        start_offsets = await find_start_offsets(self.cluster, new, self.reset) if new else {}
        self.positions = {
            partition: self.positions.get(partition, start_offsets.get(partition, 0))
            for partition in ranges
        }
        self.key_ranges = ranges

    async def poll(self, max_wait_ms: int = 500) -> Iterator[Record]:
        """Return new records, decoded on demand. Positions advance as if all were read.

        Raises `KafkaError`; OFFSET_OUT_OF_RANGE only if `reset` is NONE.
        """
        batches = await self.fetch(self.positions, max_wait_ms)
        return (
            Record(fetched.topic, fetched.partition, *record)
            for fetched in batches
            for record in fetched.records()
        )

    async def fetch(
        self, positions: Mapping[TopicPartition, int], max_wait_ms: int
    ) -> list[FetchedBatches]:
        """Return what is new at some of the positions, and advance them. Raises as `poll` does."""
        results = await self._fetcher.poll(
            positions,
            max_wait_ms=max_wait_ms,
            isolation=self.isolation,
            key_ranges=self.key_ranges,
        )
        out_of_range = []
        for partition, result in results.items():
            if isinstance(result, KafkaError):
                if result.code != ErrorCode.offset_out_of_range or self.reset == Reset.NONE:
                    raise result
                out_of_range.append(partition)
        # An error above returns no records, so no position has passed any.
        if out_of_range:
            self.positions.update(await find_start_offsets(self.cluster, out_of_range, self.reset))
        batches = []
        for partition, result in results.items():
            if isinstance(result, KafkaError) or partition not in self.positions:
                continue
            if partition in self.key_ranges:  # The next fetch looks at the other partitions first.
                del self.positions[partition]
            self.positions[partition] = result.next_offset
            self.high_watermarks[partition] = result.high_watermark
            batches.append(result)
        return batches


def _as_whole(partitions: Iterable[TopicPartition]) -> Ranges:
    """Return whole partitions as a listener gets them."""
    return dict.fromkeys(partitions, KeyRanges(WHOLE))


class PositionCommitter(Protocol):
    """What commits a member's positions in its transactions: a transactional producer."""

    def check_member(self, *, in_order: bool) -> None: ...
    def commit_positions_of(self, consumer: GroupConsumer, *, in_order: bool) -> None: ...
    def check_not_ending(self) -> None: ...
    def forget_positions_of(self, consumer: GroupConsumer) -> None: ...


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
        *,
        reset: Reset,
        isolation: Isolation,
        individual_commit: IndividualCommit | None = None,
        shared: SharedPartitions | None = None,
        producer: PositionCommitter | None = None,
        in_order: bool = False,
        listeners: list[RebalanceListener] | None = None,
    ) -> None:
        self.cluster = cluster
        self.membership = membership
        #: What it owns, if it may own key ranges. The reader then has no positions.
        self._shared = shared
        #: Its transactions commit the positions.
        self._producer = producer
        if producer is not None:
            producer.commit_positions_of(self, in_order=in_order)
        self._individual = individual_commit
        #: By owned partition, with individual commits.
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._ranges_max = RANGES_MAX
        self._finished_count = 0
        self._next_commit_s = 0.0
        self._commit_lock = asyncio.Lock()
        self._room = asyncio.Event()
        #: The connection of the last commit: another coordinator may lack what was committed.
        self._committed_over: Connection | None = None
        self._reader = Reader(cluster, {}, isolation=isolation, reset=reset)
        self._reset = reset
        self._committed: dict[TopicPartition, int] = {}
        #: Are called in their order.
        self.listeners = [] if listeners is None else listeners

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
        of another type, and UNSUPPORTED_VERSION if it does not offer individual commits or key
        ranges, or no order of commits. Raises `ValueError` for a `producer` without `key_ranges`,
        or with `individual_commit`, and for `in_order` without a producer or with one of another
        member.
        """
        individually = individual_commit is not None
        _check_producer(producer, key_ranges=key_ranges and not individually, in_order=in_order)
        membership = ConsumerMembership(cluster, group, topics, shares=key_ranges)
        await cluster.warn_of_missing_topics(topics, group)
        await membership.join()
        try:
            if key_ranges:
                await membership.check_key_ranges()
            if in_order:
                await membership.check_offered(COMMIT_ORDER_FEATURE)
            if individually:
                await membership.check_offered(INDIVIDUAL_COMMIT_FEATURE)
        except BaseException:
            await membership.leave()
            raise
        shared, listeners = None, [] if listener is None else [listener]
        if key_ranges:
            shared = SharedPartitions(
                cluster,
                membership,
                isolation=isolation,
                starts=lambda partitions: find_initial_offsets(cluster, group, partitions, reset),
                listeners=listeners,
                individually=individually,
                transactional=producer is not None,
                in_order=in_order,
            )
        return cls(
            cluster,
            membership,
            reset=reset,
            isolation=isolation,
            individual_commit=individual_commit,
            shared=shared,
            producer=producer,
            in_order=in_order,
            listeners=listeners,
        )

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to read of each partition; of several key ranges the lowest one."""
        return self._reader.positions if self._shared is None else self._shared.positions.lowest

    @property
    def key_ranges(self) -> Mapping[TopicPartition, KeyRanges]:
        """What the member reads of each partition, with `key_ranges`."""
        owned = {} if self._shared is None else self._shared.positions.owned
        return {partition: KeyRanges(ranges) for partition, ranges in owned.items()}

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
        if self._shared is not None:
            fetched = await self._shared.fetch(max_wait_ms)
            return iter(
                [
                    Record(batch.topic, batch.partition, *record)
                    for batch, records in fetched
                    for record in records
                ]
            )
        if self._individual is not None:
            return await self._poll_unfinished(max_wait_ms)
        return await self._reader.poll(max_wait_ms)

    async def tend(self) -> None:
        """Do what `poll` does besides fetching: give up and take over partitions, and commit if
        that is due. Call it at intervals while no new records are wanted."""
        if self._producer is not None:
            self._producer.check_not_ending()
        self.membership.check()
        await self._reconcile()
        if self._individual is not None:
            await self._commit_when_due()

    async def _poll_unfinished(self, max_wait_ms: int) -> Iterator[Record]:
        """Return the new records that are not finished."""
        before = {
            partition: position
            for partition, position in self._reader.positions.items()
            if self._progress[partition].should_fetch(position, self._ranges_max)
        }
        if not before:
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max_wait_ms / 1000):
                    await self._room.wait()
            return iter(())
        fetched = await self._reader.fetch(before, max_wait_ms)
        new = [
            (batch, self._progress[TopicPartition(batch.topic, batch.partition)])
            for batch in fetched
        ]
        read = {TopicPartition(batch.topic, batch.partition) for batch in fetched}
        for partition, position in before.items():
            now = self._reader.positions.get(partition, position)
            if partition not in read and now != position:
                self._progress[partition].jump(position, now)
        return (
            Record(batch.topic, batch.partition, *record)
            for batch, progress in new
            for record in progress.deliver(batch)
        )

    def finish(self, record: Record) -> None:
        """Finish a record that `poll` returned, in any order. A later `poll`, `commit` or `close`
        commits it. Records of partitions that were revoked are ignored: their new owner has them.

        Raises `ValueError` for a record that `poll` has not returned, and without
        `individual_commit`.
        """
        if self._individual is None:
            raise ValueError("join the group with individual_commit to finish records individually")
        partition = TopicPartition(record.topic, record.partition)
        if self._shared is not None:
            self._finished_count += self._shared.finish(partition, record.offset)
            return
        progress = self._progress.get(partition)
        if progress is None:
            return
        if record.offset >= self._reader.positions[partition]:
            raise ValueError(f"offset {record.offset} of {partition} was not delivered")
        progress.finish(record.offset, record.offset)
        self._finished_count += 1
        if progress.ranges < self._ranges_max:
            self._room.set()

    def make_commits(self, records: Iterable[Record]) -> dict[TopicPartition, ProgressCommit]:
        """Return what a transaction commits to finish records that `poll` returned. They are not
        finished before `on_transaction_committed`.

        Raises `KafkaError` TRANSACTION_ABORTABLE if a record was revoked or finished since, and
        `ValueError` without `individual_commit` or with `key_ranges`.
        """
        if self._individual is None:
            raise ValueError("join the group with individual_commit to finish records individually")
        if self._shared is not None:
            raise ValueError(
                "a transaction finishes records of whole partitions: join the group without "
                "key_ranges"
            )
        offsets: dict[TopicPartition, list[int]] = {}
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            offsets.setdefault(partition, []).append(record.offset)
        commits = {}
        for partition, partition_offsets in offsets.items():
            progress = self._progress.get(partition)
            try:
                if progress is None or self.membership.lost:
                    raise ValueError("the partition was revoked")
                commits[partition] = progress.make_commit(partition_offsets)
            except ValueError as error:
                raise KafkaError(
                    ErrorCode.transaction_abortable,
                    f"this member no longer has records of {partition}: {error}",
                ) from None
        return commits

    def on_transaction_committed(self, commits: Mapping[TopicPartition, ProgressCommit]) -> None:
        """Finish what a transaction with these `make_commits` has committed."""
        for partition, commit in commits.items():
            if partition in self._progress:
                self._progress[partition].on_transaction_committed(commit)
        self._room.set()

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Move a position back to `offset` if it is ahead; `commit` then commits that.

        Raises `ValueError` with individual commits, which keep what is finished.
        """
        if self._individual is not None:
            raise ValueError("a member with individual commits cannot rewind; reset the group")
        if self._shared is not None:
            self._shared.positions.rewind(partition, offset)
            return
        positions = self._reader.positions
        if partition in positions:
            positions[partition] = min(positions[partition], offset)

    def collect_positions(self) -> dict[TopicPartition, tuple[RangePosition, ...]]:
        """Return the key ranges and positions that a transaction of the producer commits. Raises
        `KafkaError` TRANSACTION_ABORTABLE if records that `poll` returned were revoked since."""
        assert self._shared is not None
        return self._shared.collect_for_transaction()

    def on_positions_committed(
        self, range_positions: Mapping[TopicPartition, Sequence[RangePosition]]
    ) -> None:
        """Note what a transaction has committed."""
        assert self._shared is not None
        self._shared.on_transaction_committed(range_positions)

    def get_first_offset(self, partition: TopicPartition) -> int:
        """Return the offset of the first record of a partition that `poll` returned since the last
        transaction; -1 for none."""
        assert self._shared is not None
        return self._shared.positions.get_first_offset(partition)

    def on_transaction_aborted(self) -> None:
        """Read again what no transaction has committed."""
        assert self._shared is not None
        self._shared.rewind()

    async def commit(self) -> None:
        """Commit the positions after all records that `poll` returned; with individual commits,
        what is finished. Raises `KafkaError`.

        FENCED_MEMBER_EPOCH means that the coordinator removed the member. Other members then own
        its partitions and start at the last commit. `poll` continues with the next assignment.
        """
        if self._producer is not None:
            raise ValueError("transactions commit the positions: call the producer's commit")
        if self._individual is not None:
            await self._commit_finished(None)
            return
        if self._shared is not None:
            await self._shared.commit()
            return
        self._check_not_lost()
        moved = {
            p: CommittedOffset(o)
            for p, o in self._reader.positions.items()
            if self._committed.get(p) != o
        }
        if not moved:
            return
        member = self.membership

        async def attempt() -> None:
            node = await self.cluster.find_coordinator(member.group)
            link = await self.cluster.get_connection(node, "coordinator")
            version = link.choose_version(ApiKey.OFFSET_COMMIT, 9)
            self._check_not_lost()
            body = make_commit_body(member.group, member.member_id, member.member_epoch, moved)
            answer = await link.request(ApiKey.OFFSET_COMMIT, body, version=version)
            for partition, part in message_fields.iterate_partitions(answer.topics):
                error = message_fields.parse_error(
                    part, f"offset of {partition} in group {member.group!r}"
                )
                if error is not None:
                    if error.code == ErrorCode.not_coordinator:
                        self.cluster.forget_coordinator(member.group)
                    raise error
                self._committed[partition] = moved[partition].offset

        await self.cluster.retry(attempt)

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
            await self._commit_finished(self._individual.interval_ms)
        except ClientError as error:
            if not (is_transient(error) or getattr(error, "code", None) in _NOT_NOW):
                raise

    async def _commit_finished(self, timeout_ms: int | None) -> None:
        """Commit what is finished now, in requests with at most the broker's number of ranges. What
        other tasks finish meanwhile waits for a later commit."""
        if self._shared is not None:
            self._finished_count = 0
            self._check_not_lost()
            await self._shared.commit(timeout_ms)
            return
        async with self._commit_lock:
            self._finished_count = 0
            while True:
                self._check_not_lost()
                if not await self.cluster.retry(self._commit_some, timeout_ms):
                    return

    async def _commit_some(self) -> bool:
        """Send one commit. Return whether another request has to follow."""
        member = self.membership
        node = await self.cluster.find_coordinator(member.group)
        link = await self.cluster.get_connection(node, "coordinator")
        self._check_coordinator(link)
        commits, more = self._collect_commits(
            individually=INDIVIDUAL_COMMIT_FEATURE in link.features
        )
        if not commits:
            return False
        version = link.choose_version(ApiKey.OFFSET_COMMIT, 9)
        self._check_not_lost()
        offsets = {
            partition: CommittedOffset(commit.position) for partition, commit in commits.items()
        }
        body = make_commit_body(member.group, member.member_id, member.member_epoch, offsets)
        for topic in body["topics"]:
            for result in topic["partitions"]:
                result |= commits[
                    TopicPartition(topic["name"], result["partition_index"])
                ].to_fields()
        answer = await link.request(ApiKey.OFFSET_COMMIT, body, version=version)
        self._on_response(commits, answer)
        return more

    def _check_coordinator(self, link: Connection) -> None:
        """Commit everything again over a new connection: another coordinator may lack it."""
        if link is not self._committed_over:
            self._committed_over = link
            for progress in self._progress.values():
                progress.forget_commits()

    def _on_response(self, commits: Mapping[TopicPartition, ProgressCommit], answer: Any) -> None:
        """Note what is committed. Raises the first error."""
        group = self.membership.group
        failures = []
        for partition, part in message_fields.iterate_partitions(answer.topics):
            detail = getattr(part, "individual_commit", None)
            message = getattr(detail, "error_message", None)
            error = message_fields.parse_error(
                part, message or f"offset of {partition} in group {group!r}"
            )
            if error is not None:
                failures.append(error)
            elif partition in self._progress:
                stable_offset = (
                    commits[partition].position if detail is None else detail.stable_offset
                )
                self._progress[partition].on_committed(commits[partition], stable_offset)
        for error in failures:
            if error.code == ErrorCode.not_coordinator:
                self.cluster.forget_coordinator(group)
            raise error

    def _collect_commits(
        self, *, individually: bool
    ) -> tuple[dict[TopicPartition, ProgressCommit], bool]:
        """Return the commits of one request, and whether more may be left. A coordinator without
        individual commits, such as one that is not upgraded yet, gets the positions alone."""
        commits: dict[TopicPartition, ProgressCommit] = {}
        ranges = 0
        for partition, progress in self._progress.items():
            if individually:
                commit = progress.collect_commit(self._ranges_max)
            else:
                commit = progress.collect_plain_commit()
            if commit is None:
                continue
            ranges += progress.ranges
            if commits and ranges > self._ranges_max:
                return commits, True
            commits[partition] = commit
        return commits, any(len(c.ranges) >= self._ranges_max for c in commits.values())

    async def close(self) -> None:
        """Commit, unless transactions do, leave the group, and give up its partitions."""
        try:
            if self._producer is not None:
                self._producer.forget_positions_of(self)
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
                lost = list(self.positions)
                if self._shared is not None:
                    await self._shared.lose()
                self._reader.positions.clear()
                self._committed.clear()
                self._progress.clear()
                for listener in self.listeners if lost and self._shared is None else ():
                    await listener.on_lost(_as_whole(lost))
                continue
            assignment, key_ranges = dict(member.assignment), dict(member.key_ranges)
            if self._shared is None:
                await self._take_over(assignment)
            else:
                await self._shared.take_over(assignment, key_ranges)
            if not member.lost:
                member.owned, member.owned_key_ranges = assignment, key_ranges
                member.hurry()

    def _check_not_lost(self) -> None:
        """Raise if the member was fenced. It has joined again since, and the broker would accept
        its old positions under the new epoch, although other members continue from them.
        """
        if self.membership.lost:
            raise KafkaError(
                ErrorCode.fenced_member_epoch, f"positions in group {self.membership.group!r}"
            )

    async def _take_over(self, assignment: Assignment) -> None:
        names = {t: await self.cluster.get_topic_name(t) for t in assignment}
        target = {
            TopicPartition(names[t] or "", p)
            for t, indexes in assignment.items()
            if names[t]
            for p in indexes
        }
        positions = self._reader.positions
        leaving = set(positions) - target
        for listener in self.listeners if leaving else ():
            await listener.on_revoked(_as_whole(leaving))
        if leaving and self.membership.member_epoch > 0:
            try:
                if self._individual is None:
                    await self.commit()
                else:
                    await self._commit_finished(REVOKE_COMMIT_MS)
            except ClientError as error:
                if not isinstance(error, KafkaError):
                    raise
        if self.membership.lost:
            return
        for partition in [p for p in positions if p not in target]:
            del positions[partition]
            self._committed.pop(partition, None)
            self._progress.pop(partition, None)
        new = sorted(target - set(positions))
        if new:
            positions.update(await self._find_start_positions(new))
        for listener in self.listeners if new and not self.membership.lost else ():
            await listener.on_assigned(_as_whole(new))

    async def _find_start_positions(
        self, new: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        member = self.membership

        async def attempt() -> dict[TopicPartition, int]:
            body = {
                "groups": [
                    {
                        "group_id": member.group,
                        "member_id": member.member_id,
                        "member_epoch": member.member_epoch,
                        "key_ranges_wanted": self._individual is not None,
                        "topics": [
                            {
                                "name": entry["name"],
                                "partition_indexes": [
                                    p["partition_index"] for p in entry["partitions"]
                                ],
                            }
                            for entry in message_fields.group_by_topic(
                                (p, {"partition_index": p.partition}) for p in new
                            )
                        ],
                    }
                ],
                "require_stable": True,
            }
            node = await self.cluster.find_coordinator(member.group)
            link = await self.cluster.get_connection(node, "coordinator")
            self._check_coordinator(link)
            version = link.choose_version(ApiKey.OFFSET_FETCH, 9)
            answer = await link.request(ApiKey.OFFSET_FETCH, body, version=version)
            group = answer.groups[0]
            if group.error_code:
                raise KafkaError(group.error_code, f"offsets of group {member.group!r}")
            offsets = {}
            finished.clear()
            for partition, part in message_fields.iterate_partitions(group.topics):
                if part.error_code:
                    raise KafkaError(part.error_code, f"offset of {partition}")
                if part.committed_offset >= 0:
                    offsets[partition] = part.committed_offset
                    finished[partition] = parse_finished_above(part)
            self._ranges_max = getattr(group, "ranges_max", 0) or RANGES_MAX
            return offsets

        finished: dict[TopicPartition, FinishedOffsets] = {}
        positions = await self.cluster.retry(attempt)
        self._committed.update(positions)
        missing = [p for p in new if p not in positions]
        if missing:
            positions |= await find_initial_offsets(
                self.cluster, member.group, missing, self._reset
            )
        if self._individual is not None:
            for partition, position in positions.items():
                above = finished.get(partition, EMPTY).iter_ranges()
                self._progress[partition] = PartitionProgress(
                    position, above, committed=partition in finished
                )
        return positions
