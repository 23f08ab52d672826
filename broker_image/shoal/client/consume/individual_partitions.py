"""The whole partitions of a group member that finishes records individually.

The application finishes records in any order. The member commits the finished ones, and the next
owner of a partition gets only the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from shoal.client.admin.groups import parse_finished_above
from shoal.client.consume import member_offsets
from shoal.client.consume.progress import PartitionProgress, ProgressCommit
from shoal.client.consume.reader import Record
from shoal.client.consume.shared_partitions import RANGES_MAX, REVOKE_COMMIT_MS
from shoal.client.consume.whole_partitions import WholePartitions
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import INDIVIDUAL_COMMIT_FEATURE
from shoal.record.finished_offsets import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.client.consume.consumer_membership import ConsumerMembership
    from shoal.client.consume.fetcher import Isolation
    from shoal.client.consume.rebalance_listener import RebalanceListener
    from shoal.client.consume.start_offsets import Reset
    from shoal.client.net.cluster import Cluster
    from shoal.client.net.connection import Connection


class IndividualPartitions(WholePartitions):
    """Reads the partitions of one member, and commits what is finished."""

    revoke_commit_ms = REVOKE_COMMIT_MS

    def __init__(
        self,
        cluster: Cluster,
        member: ConsumerMembership,
        isolation: Isolation,
        reset: Reset,
        listeners: Sequence[RebalanceListener] = (),
    ) -> None:
        super().__init__(cluster, member, isolation, reset, listeners)
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._ranges_max = RANGES_MAX
        self._commit_lock = asyncio.Lock()
        #: Set when a record is finished, which may make room for others.
        self._room = asyncio.Event()
        #: The connection of the last commit: another coordinator may lack what was committed.
        self._committed_over: Connection | None = None

    # Reading.

    async def poll(self, max_wait_ms: int) -> Iterator[Record]:
        """Return the new records that are not finished. A partition at the limit of ranges has
        none."""
        before = {
            partition: offset
            for partition, offset in self.next_offsets.items()
            if self._progress[partition].should_fetch(offset, self._ranges_max)
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
        for partition, offset in before.items():
            next_offset = self.next_offsets.get(partition, offset)
            if partition not in read and next_offset != offset:
                self._progress[partition].jump(offset, next_offset)
        return (
            Record(batch.topic, batch.partition, *record)
            for batch, progress in new
            for record in progress.deliver(batch)
        )

    def finish(self, partition: TopicPartition, offset: int) -> bool:
        """Finish a record. Return False if its partition was revoked. Raises `ValueError` if it was
        not delivered."""
        progress = self._progress.get(partition)
        if progress is None:
            return False
        if offset >= self.next_offsets[partition]:
            raise ValueError(f"offset {offset} of {partition} was not delivered")
        progress.finish(offset, offset)
        if progress.ranges < self._ranges_max:
            self._room.set()
        return True

    # Transactions.

    def make_commits(self, records: Iterable[Record]) -> dict[TopicPartition, ProgressCommit]:
        """Return what a transaction commits to finish records that `poll` returned. They are not
        finished before `on_transaction_committed`. Raises `KafkaError` TRANSACTION_ABORTABLE if a
        record was revoked or finished since."""
        offsets: dict[TopicPartition, list[int]] = {}
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            offsets.setdefault(partition, []).append(record.offset)
        commits = {}
        for partition, partition_offsets in offsets.items():
            progress = self._progress.get(partition)
            try:
                if progress is None or self._member.lost:
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

    # Committing.

    async def commit(self, timeout_ms: int | None = None) -> None:
        """Commit what is finished now, in requests with at most the broker's number of ranges. What
        other tasks finish meanwhile waits for a later commit. Raises `KafkaError`."""
        async with self._commit_lock:
            while True:
                member_offsets.check_not_lost(self._member)
                if not await self.cluster.retry(self._commit_some, timeout_ms):
                    return

    async def _commit_some(self) -> bool:
        """Send one commit. Return whether another request has to follow."""
        link = await member_offsets.connect_to_coordinator(self.cluster, self._member)
        self._check_coordinator(link)
        commits, more = self._collect_commits(
            individually=INDIVIDUAL_COMMIT_FEATURE in link.features
        )
        if not commits:
            return False
        failures = []
        for partition, part, error in await member_offsets.request_commit(
            link,
            self._member,
            {partition: commit.position for partition, commit in commits.items()},
            {partition: commit.to_fields() for partition, commit in commits.items()},
        ):
            if error is not None:
                failures.append(error)
            elif partition in self._progress:
                detail = getattr(part, "individual_commit", None)
                stable_offset = (
                    commits[partition].position if detail is None else detail.stable_offset
                )
                self._progress[partition].on_committed(commits[partition], stable_offset)
        member_offsets.raise_first(self.cluster, self._member, failures)
        return more

    def _check_coordinator(self, link: Connection) -> None:
        """Commit everything again over a new connection: another coordinator may lack it."""
        if link is not self._committed_over:
            self._committed_over = link
            for progress in self._progress.values():
                progress.forget_commits()

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

    # Assignment.

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        super()._forget(partitions)
        for partition in partitions:
            self._progress.pop(partition, None)

    def _on_started(
        self, offsets: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, Any]
    ) -> None:
        for partition, offset in offsets.items():
            part = committed.get(partition)
            finished = EMPTY if part is None else parse_finished_above(part)
            self._progress[partition] = PartitionProgress(
                offset, finished.iter_ranges(), committed=part is not None
            )

    async def _fetch_committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Any]:
        link = await member_offsets.connect_to_coordinator(self.cluster, self._member)
        self._check_coordinator(link)
        group = await member_offsets.request_committed(
            link, self._member, partitions, key_ranges_wanted=True
        )
        committed = member_offsets.find_committed(group)
        self._ranges_max = getattr(group, "ranges_max", 0) or RANGES_MAX
        return committed
