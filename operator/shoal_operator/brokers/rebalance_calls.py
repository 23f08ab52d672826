"""The operator's calls for rebalances: placement, sizes, reassignments, throttles, elections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
)
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode

from shoal_operator.brokers.batches import split_into_batches
from shoal_operator.brokers.diagnostics import BrokerDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from shoal.client.admin.admin import Admin

    from shoal_operator.brokers.replica_moves import RebalanceMove

#: Topic configs that name throttled replicas, and broker configs with bytes per second (KIP-73).
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
#: Errors of partitions and topics that have been deleted in the meantime.
_ABSENT = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)
_OVER = (*_ABSENT, ErrorCode.no_reassignment_in_progress)


class PartitionReplicas(NamedTuple):
    """The replicas of a partition, the preferred leader first; those in sync; and the leader."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = -1


@dataclass(frozen=True, slots=True)
class Placement:
    """A cluster's partitions by name, and the brokers that run with their racks, empty for none.

    `targets` are the replicas to come of partitions that are being reassigned.
    """

    partitions: Mapping[str, PartitionReplicas]
    running: Mapping[int, str]
    targets: Mapping[str, frozenset[int]]


class RebalanceCalls:
    """Calls of one connection; `count` is called with the name of each API."""

    def __init__(self, admin: Admin, count: Callable[[str], None]) -> None:
        self._admin, self._count = admin, count

    async def describe_placement(self) -> Placement:
        """Return where replicas are and where they go. Raises `ClientError`."""
        # Reassignments come first: one that ends in between has its replicas in the metadata.
        self._count("ListPartitionReassignments")
        targets = {
            str(partition): frozenset(reassignment.replicas) - frozenset(reassignment.removing)
            for partition, reassignment in (await self._admin.reassignments()).items()
        }
        self._count("DescribeCluster")
        description = await self._admin.describe_cluster(fenced=True)
        self._count("Metadata")
        topics = await self._admin.topics.list(internal=True)
        return Placement(
            {
                f"{topic.name}-{p.index}": PartitionReplicas(p.replicas, p.isr, p.leader_id)
                for topic in topics.values()
                for p in topic.partitions
            },
            {
                b.node_id: b.rack or ""
                for b in description.brokers
                if b.node_id not in description.fenced
            },
            targets,
        )

    async def describe_volumes(
        self, brokers: Iterable[int]
    ) -> tuple[dict[str, int], list[BrokerDisk]]:
        """Return the bytes of each partition's largest replica, and the brokers' disks."""
        sizes: dict[str, int] = {}
        disks = []
        for broker in brokers:
            self._count("DescribeLogDirs")
            dirs = (await self._admin.log_dirs([broker]))[broker]
            for directory in dirs:
                for partition, size in directory.partitions.items():
                    sizes[str(partition)] = max(size, sizes.get(str(partition), 0))
            total, usable = dirs[0].total_bytes, dirs[0].usable_bytes
            disks.append(BrokerDisk(broker, total, usable, dirs[0].error is not None))
        return sizes, disks

    async def count_copied_bytes(
        self, moves: Iterable[RebalanceMove], running: Collection[int]
    ) -> int:
        """Return how many bytes the new replicas of these moves have."""
        added: dict[int, list[TopicPartition]] = {}
        for move in moves:
            for broker in move.added_brokers:
                added.setdefault(broker, []).append(_parse_partition(move.partition))
        total = 0
        for broker in sorted(added.keys() & set(running)):
            self._count("DescribeLogDirs")
            (dirs,) = (await self._admin.log_dirs([broker], only=added[broker])).values()
            total += sum(size for directory in dirs for size in directory.partitions.values())
        return total

    async def reassign(self, replicas: Mapping[str, tuple[int, ...] | None]) -> None:
        """Reassign partitions, or with None cancel that. Raises `KafkaError`.

        Partitions that do not exist, and reassignments that have ended, are left out.
        """
        for batch in split_into_batches(sorted(replicas)):
            self._count("AlterPartitionReassignments")
            results = await self._admin.reassign({_parse_partition(n): replicas[n] for n in batch})
            for error in results.values():
                if isinstance(error, KafkaError) and error.code not in _OVER:
                    raise error

    async def cancel(self, partitions: Iterable[str]) -> None:
        """Cancel reassignments: replicas stay where they were. Raises `KafkaError`."""
        await self.reassign(dict.fromkeys(partitions))

    async def elect(self, partitions: Iterable[str]) -> None:
        """Elect the preferred leaders of partitions, as far as these are in sync."""
        for batch in split_into_batches(sorted(partitions)):
            self._count("ElectLeaders")
            await self._admin.elect_leaders(map(_parse_partition, batch))

    async def throttle(
        self,
        rate: int,
        moves: Iterable[RebalanceMove],
        brokers: Iterable[int],
        topics: Collection[str],
    ) -> None:
        """Limit what these moves copy to `rate` bytes per second for each of these brokers.

        Only those of `topics` that exist are throttled. Raises `KafkaError`.
        """
        entries: dict[str, tuple[list[str], list[str]]] = {}
        for move in moves:
            partition = _parse_partition(move.partition)
            if partition.topic in topics and move.added_brokers:
                leaders, followers = entries.setdefault(partition.topic, ([], []))
                leaders += [f"{partition.partition}:{broker}" for broker in move.before]
                followers += [f"{partition.partition}:{broker}" for broker in move.added_brokers]
        changes = {
            ConfigResource(ConfigResourceType.TOPIC, topic): [
                ConfigChange(name, ",".join(throttled))
                for name, throttled in zip(THROTTLED, lists, strict=True)
            ]
            for topic, lists in sorted(entries.items())
        }
        limits = [ConfigChange(name, str(rate)) for name in RATES]
        for broker in sorted(brokers):
            changes[ConfigResource(ConfigResourceType.BROKER, str(broker))] = limits
        await self._alter(changes)

    async def unthrottle(self, topics: Iterable[str], brokers: Iterable[int]) -> None:
        """Remove the throttles of topics that exist, and of brokers that run. Raises `KafkaError`.

        It does not ask which ones are set: the answer may be older than the last change.
        """
        resources = {
            ConfigResource(ConfigResourceType.TOPIC, topic): THROTTLED for topic in sorted(topics)
        }
        resources |= {
            ConfigResource(ConfigResourceType.BROKER, str(id)): RATES for id in sorted(brokers)
        }
        await self._alter(
            {
                resource: [ConfigChange(name, None, AlterOperation.DELETE) for name in keys]
                for resource, keys in resources.items()
            }
        )

    async def _alter(self, changes: Mapping[ConfigResource, list[ConfigChange]]) -> None:
        for batch in split_into_batches(list(changes)):
            self._count("IncrementalAlterConfigs")
            expect(
                await self._admin.configs.alter({resource: changes[resource] for resource in batch})
            )


def _parse_partition(name: str) -> TopicPartition:
    """Parse `topic-0`."""
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))
