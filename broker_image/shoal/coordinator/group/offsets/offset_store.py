"""The committed and pending offsets of all groups of one shard, as replay has built them.

An offset that was committed in a transaction is *pending* until the transaction's marker is
replayed. It then takes effect if its record has a higher offset than the committed one: a plain
commit may have overtaken it, and compaction keeps no order between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.offsets.committed_offset import GroupTopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.coordinator.group.offsets.committed_offset import OffsetAndMetadata

ByPartition = dict[int, "OffsetAndMetadata"]
ByTopic = dict[str, ByPartition]


class OffsetStore:
    """The offsets of one shard."""

    def __init__(self) -> None:
        self._committed: dict[str, ByTopic] = {}
        #: Pending offsets of open transactions: producer id -> group -> offsets.
        self._pending: dict[int, dict[str, ByTopic]] = {}
        #: Group -> the producers with pending offsets in it.
        self._open: dict[str, dict[int, None]] = {}

    def __len__(self) -> int:
        """The number of committed offsets."""
        return sum(len(p) for topics in self._committed.values() for p in topics.values())

    def get_hard_state(self) -> tuple[Any, Any]:
        return self._committed, self._pending

    # Queries.

    def get(self, group_partition: GroupTopicPartition) -> OffsetAndMetadata | None:
        """Return a committed offset."""
        group_id, topic, partition = group_partition
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    def get_committed(self, group_id: str) -> Mapping[str, ByPartition]:
        """Return the committed offsets of a group by topic."""
        return self._committed.get(group_id, {})

    def get_pending(
        self, producer_id: int, group_partition: GroupTopicPartition
    ) -> OffsetAndMetadata | None:
        """Return the offset that an open transaction of this producer has committed."""
        group_id, topic, partition = group_partition
        groups = self._pending.get(producer_id, {})
        return groups.get(group_id, {}).get(topic, {}).get(partition)

    def find_pending_producers(self, group_partition: GroupTopicPartition) -> Iterator[int]:
        """Yield the producers whose open transactions have an offset of the partition."""
        for producer_id in self._open.get(group_partition.group_id, ()):
            if self.get_pending(producer_id, group_partition) is not None:
                yield producer_id

    def is_pending(self, group_partition: GroupTopicPartition) -> bool:
        return any(True for _ in self.find_pending_producers(group_partition))

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def get_group_ids(self) -> set[str]:
        """Return the groups with committed or pending offsets."""
        return {*self._committed, *self._open}

    def iterate_group(self, group_id: str) -> Iterator[ByTopic]:
        """Yield the committed offsets of a group, then those of each open transaction."""
        yield self._committed.get(group_id, {})
        for producer_id in self._open.get(group_id, ()):
            yield self._pending[producer_id].get(group_id, {})

    def iterate_committed(self) -> Iterator[OffsetAndMetadata]:
        """Yield the committed offsets of all groups."""
        for topics in self._committed.values():
            for partitions in topics.values():
                yield from partitions.values()

    # Replay.

    def put(self, group_partition: GroupTopicPartition, offset: OffsetAndMetadata) -> None:
        _put(self._committed, group_partition, offset)

    def put_pending(
        self, producer_id: int, group_partition: GroupTopicPartition, offset: OffsetAndMetadata
    ) -> None:
        self._open.setdefault(group_partition.group_id, {})[producer_id] = None
        _put(self._pending.setdefault(producer_id, {}), group_partition, offset)

    def remove(self, group_partition: GroupTopicPartition) -> None:
        """Remove a partition's offset, and those that are pending."""
        _remove(self._committed, group_partition)
        group_id = group_partition.group_id
        for producer_id in list(self._open.get(group_id, ())):
            _remove(self._pending[producer_id], group_partition)
            if group_id not in self._pending[producer_id]:
                self._close(group_id, producer_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Commit or drop the pending offsets of a transaction."""
        for group_id, topics in self._pending.pop(producer_id, {}).items():
            self._close(group_id, producer_id)
            for topic, partitions in topics.items() if committed else ():
                for partition, offset in partitions.items():
                    group_partition = GroupTopicPartition(group_id, topic, partition)
                    current = self.get(group_partition)
                    if current is None or offset.record_offset > current.record_offset:
                        self.put(group_partition, offset)

    def _close(self, group_id: str, producer_id: int) -> None:
        """Remove the producer from those with pending offsets in the group."""
        producers = self._open[group_id]
        del producers[producer_id]
        if not producers:
            del self._open[group_id]


def _put(
    offsets: dict[str, ByTopic], group_partition: GroupTopicPartition, offset: OffsetAndMetadata
) -> None:
    group_id, topic, partition = group_partition
    offsets.setdefault(group_id, {}).setdefault(topic, {})[partition] = offset


def _remove(offsets: dict[str, ByTopic], group_partition: GroupTopicPartition) -> None:
    """Remove one offset, and the levels above it if they are empty."""
    group_id, topic, partition = group_partition
    topics = offsets.get(group_id, {})
    partitions = topics.get(topic, {})
    partitions.pop(partition, None)
    if not partitions:
        topics.pop(topic, None)
    if not topics:
        offsets.pop(group_id, None)
