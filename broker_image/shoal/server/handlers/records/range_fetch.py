"""The partitions of one fetch that are requested by key ranges (`replication.range_reads`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.replication.range_reads import ENABLE, TOPIC_ENABLE, RangeRead, ReadBudget

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.replication.partition import Partition
    from shoal.server.broker import Broker
    from shoal.server.network.fetch_sessions import FetchCursor


#: A fetch with as many bytes does not wait for more, which bounds the memory of waiting fetches.
HELD_BYTES_MAX = 64 * 1024


class RangeFetch:
    """What was found so far. It is kept while the fetch waits, so nothing is read twice."""

    __slots__ = ("_broker", "_budget", "_parts", "_reads", "_shares")

    def __init__(self, broker: Broker, cursors: Iterable[FetchCursor]) -> None:
        self._broker = broker
        self._parts = sum(cursor.key_ranges is not None for cursor in cursors)
        self._budget = ReadBudget()
        self._shares: dict[FetchCursor, ReadBudget] = {}
        self._reads: dict[FetchCursor, RangeRead] = {}

    def check_partition(self, partition: Partition, cursor: FetchCursor) -> ApiError | None:
        """Return the error of a partition that cannot be read by the requested key ranges."""
        partition_name = f"{partition.topic}-{partition.index}"
        if not self._broker.node.config[ENABLE]:
            reason = f"fetches by key ranges are off on this broker. Set {ENABLE}=true"
        elif isinstance(cursor.key_ranges, ApiError):
            return ApiError(
                cursor.key_ranges.code, f"{partition_name}: {cursor.key_ranges.message}."
            )
        elif not self._broker.image.resolve_topic_config(partition.topic)[TOPIC_ENABLE]:
            reason = (
                f"topic {partition.topic} cannot be read by key ranges. "
                f"Set {TOPIC_ENABLE}=true on it"
            )
        else:
            return None
        return ApiError(ErrorCode.policy_violation, f"{partition_name}: {reason}.")

    @property
    def holds_enough(self) -> bool:
        """Whether it is answered at once, whatever `min_bytes` is."""
        return sum(read.size for read in self._reads.values()) >= HELD_BYTES_MAX

    def look_ahead(
        self, partition: Partition, cursor: FetchCursor, limit: int, size_max: int
    ) -> RangeRead:
        """Look for records up to offset `limit` before the response is made. All partitions share
        `size_max` bytes. Raises what `Log.read` raises."""
        other_bytes = sum(read.size for other, read in self._reads.items() if other is not cursor)
        room = min(cursor.max_bytes, max(size_max - other_bytes, 0))
        return self._advance(partition, cursor, limit, room, min_one=not other_bytes)

    def read(
        self, partition: Partition, cursor: FetchCursor, limit: int, size_max: int, *, min_one: bool
    ) -> RangeRead:
        """Return what the response has of a partition. Raises what `Log.read` raises."""
        read = self._advance(partition, cursor, limit, size_max, min_one=min_one)
        self._broker.range_reads.sent_bytes_total += read.size
        return read

    def _advance(
        self, partition: Partition, cursor: FetchCursor, limit: int, size_max: int, *, min_one: bool
    ) -> RangeRead:
        ranges, generation = cursor.key_ranges, partition.log.generation
        assert ranges is not None
        assert not isinstance(ranges, ApiError)
        read = self._reads.get(cursor)
        if read is None:
            read = self._reads[cursor] = RangeRead(cursor.fetch_offset, generation)
            self._shares[cursor] = self._budget.share(self._parts)
        elif read.generation != generation or read.size > size_max:
            # The log was truncated, or there is less room in the response than before.
            read = self._reads[cursor] = RangeRead(cursor.fetch_offset, generation)
            self._shares[cursor] = ReadBudget().share(self._parts)
        if size_max > 0 or min_one:
            self._broker.range_reads.advance(
                read,
                partition,
                ranges,
                limit,
                size_max,
                self._shares[cursor],
                min_one=min_one,
            )
        return read
