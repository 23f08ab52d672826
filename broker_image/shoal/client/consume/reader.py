"""Records of chosen partitions, read forward from given offsets (`Reader`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.consume.fetcher import FetchedBatches, Fetcher, Isolation
from shoal.client.consume.start_offsets import Reset, find_start_offsets
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.client.net.cluster import Cluster, TopicPartition


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
