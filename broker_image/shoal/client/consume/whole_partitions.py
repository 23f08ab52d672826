"""The partitions of a plain group member: it owns them whole, and commits positions in them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.client.consume import member_offsets
from shoal.client.consume.range_positions import WHOLE
from shoal.client.consume.reader import Reader
from shoal.client.consume.start_offsets import Reset, find_initial_offsets
from shoal.client.errors import ClientError, KafkaError
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.client.consume.consumer_membership import ConsumerMembership
    from shoal.client.consume.fetcher import Isolation
    from shoal.client.consume.reader import Record
    from shoal.client.consume.rebalance_listener import Ranges, RebalanceListener
    from shoal.client.net.membership import Assignment


class WholePartitions:
    """Reads and commits the partitions of one member."""

    #: Milliseconds to repeat the commit before partitions are given up; None for the default.
    revoke_commit_ms: int | None = None

    def __init__(
        self,
        cluster: Cluster,
        member: ConsumerMembership,
        isolation: Isolation,
        reset: Reset,
        listeners: Sequence[RebalanceListener] = (),
    ) -> None:
        """Partitions without a committed offset start at `reset`. `listeners` are called in their
        order."""
        self.cluster = cluster
        self.committed: dict[TopicPartition, int] = {}
        self._member = member
        self._reader = Reader(cluster, {}, isolation=isolation, reset=reset)
        self._listeners = listeners

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read of each partition."""
        return self._reader.positions

    @property
    def key_ranges(self) -> Mapping[TopicPartition, KeyRanges]:
        return {}

    async def poll(self, max_wait_ms: int) -> Iterator[Record]:
        """Return new records. Raises `KafkaError`."""
        return await self._reader.poll(max_wait_ms)

    def rewind(self, partition: TopicPartition, offset: int) -> None:
        """Move a position back to `offset` if it is ahead."""
        if partition in self.next_offsets:
            self.next_offsets[partition] = min(self.next_offsets[partition], offset)

    async def commit(self, timeout_ms: int | None = None) -> None:
        """Commit the positions that moved. Transient errors are retried for `timeout_ms`. Raises
        `KafkaError`."""
        member = self._member
        member_offsets.check_not_lost(member)
        moved = {p: o for p, o in self.next_offsets.items() if self.committed.get(p) != o}
        if not moved:
            return

        async def attempt() -> None:
            link = await member_offsets.connect_to_coordinator(self.cluster, member)
            for partition, _, error in await member_offsets.request_commit(link, member, moved):
                if error is not None:
                    member_offsets.raise_first(self.cluster, member, [error])
                self.committed[partition] = moved[partition]

        await self.cluster.retry(attempt, timeout_ms)

    async def take_over(self, assignment: Assignment, _key_ranges: Mapping[Any, KeyRanges]) -> None:
        """Give up what is not assigned any more, then start what is new."""
        names = {t: await self.cluster.get_topic_name(t) for t in assignment}
        target = {
            TopicPartition(names[t] or "", p)
            for t, indexes in assignment.items()
            if names[t]
            for p in indexes
        }
        leaving = set(self.next_offsets) - target
        for listener in self._listeners if leaving else ():
            await listener.on_revoked(_as_ranges(leaving))
        if leaving and self._member.member_epoch > 0:
            try:
                await self.commit(self.revoke_commit_ms)
            except ClientError as error:
                if not isinstance(error, KafkaError):
                    raise
        if self._member.lost:
            return
        self._forget(leaving)
        new = sorted(target - set(self.next_offsets))
        if new:
            await self._start(new)
        for listener in self._listeners if new and not self._member.lost else ():
            await listener.on_assigned(_as_ranges(new))

    async def lose(self) -> None:
        """Forget everything: this member was fenced."""
        lost = list(self.next_offsets)
        self._forget(lost)
        self.committed.clear()
        for listener in self._listeners if lost else ():
            await listener.on_lost(_as_ranges(lost))

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            del self.next_offsets[partition]
            self.committed.pop(partition, None)

    async def _start(self, new: Sequence[TopicPartition]) -> None:
        """Read new partitions from their committed offsets, or else from where they begin."""
        committed = await self.cluster.retry(partial(self._fetch_committed, new))
        offsets = {partition: part.committed_offset for partition, part in committed.items()}
        self.committed.update(offsets)
        missing = [partition for partition in new if partition not in offsets]
        if missing:
            offsets |= await find_initial_offsets(
                self.cluster, self._member.group, missing, self._reader.reset
            )
        self._on_started(offsets, committed)
        self.next_offsets.update(offsets)

    def _on_started(
        self, offsets: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, Any]
    ) -> None:
        """Hear where new partitions start, and what OffsetFetch says of those with a committed
        offset."""

    async def _fetch_committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Any]:
        """Return what OffsetFetch says of partitions with a committed offset. Raises
        `KafkaError`."""
        link = await member_offsets.connect_to_coordinator(self.cluster, self._member)
        group = await member_offsets.request_committed(
            link, self._member, partitions, key_ranges_wanted=False
        )
        return member_offsets.find_committed(group)


def _as_ranges(partitions: Iterable[TopicPartition]) -> Ranges:
    """Return whole partitions as a listener gets them."""
    return dict.fromkeys(partitions, KeyRanges(WHOLE))
