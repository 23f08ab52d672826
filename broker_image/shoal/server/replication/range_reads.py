"""Reads of key ranges (`record.key_ranges`), for consumers that share a partition.

A read looks at a bounded part of the log and returns the batches of its ranges
(`record.hashed_batches`). Batches that were looked at are kept with the hashes of their records,
so that the other readers of a partition neither read nor hash them again. The cache is bounded, and
drops the least recently used reads. `shoal.fetch.key.ranges.cache.bytes` is its size.

The log below a high watermark does not change, except that it is truncated after an unclean
election: then the generation of the log changes. A cached read may have records that compaction has
removed since, like a read just before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from shoal.record import batch_validation
from shoal.record.hashed_batches import HashedBatches

if TYPE_CHECKING:
    from shoal.log.log import Log
    from shoal.record.key_ranges import KeyRanges
    from shoal.replication.partition import Partition
    from shoal.server.metrics.registry import MetricRegistry

ENABLE = "shoal.fetch.key.ranges.enable"
CACHE_BYTES = "shoal.fetch.key.ranges.cache.bytes"
#: Topic config.
TOPIC_ENABLE = "shoal.key.ranges.enable"
#: Bytes of one read of the log.
READ_BYTES = 128 * 1024
#: A cached read that ended at the end of the log is read again with what came after it, if it has
#: fewer bytes.
SHORT_BYTES = 8 * 1024
#: What one fetch looks at, some 5 ms of work: bytes after decompression, records, and reads.
LOOKED_BYTES_MAX = 4 << 20
LOOKED_RECORDS_MAX = 20_000 if batch_validation.native is not None else 2_000
READS_MAX = 64
#: A cached read counts as this part of its bytes and records.
CACHED_PART = 4


class ReadBudget:
    """What a fetch may still look at. Its partitions get equal shares."""

    __slots__ = ("_bytes", "_parent", "_reads", "_records")

    def __init__(self, parts: int = 1, parent: ReadBudget | None = None) -> None:
        self._bytes = LOOKED_BYTES_MAX // parts
        self._records = LOOKED_RECORDS_MAX // parts
        self._reads = READS_MAX // parts
        self._parent = parent

    def share(self, parts: int) -> ReadBudget:
        """Return one of `parts` equal parts: at least one read, if any is left of the whole."""
        return ReadBudget(max(1, min(parts, READS_MAX)), self)

    def __bool__(self) -> bool:
        own = self._bytes > 0 and self._records > 0 and self._reads > 0
        return own and (self._parent is None or bool(self._parent))

    def spend(self, looked: HashedBatches, *, is_cached: bool) -> None:
        part = CACHED_PART if is_cached else 1
        self._bytes -= looked.cost_bytes // part
        self._records -= looked.record_count // part
        self._reads -= 1
        if self._parent is not None:
            self._parent.spend(looked, is_cached=is_cached)


class RangeRead:
    """What a fetch has found in one partition so far, and the offset from which to read on."""

    __slots__ = ("generation", "is_cut", "next_offset", "parts", "size")

    def __init__(self, offset: int, generation: int) -> None:
        self.next_offset = offset
        self.generation = generation
        self.parts: list[bytes] = []
        self.size = 0
        #: Whether a limit of size or work ended it before the end of the log.
        self.is_cut = False

    @property
    def data(self) -> bytes:
        """The batches."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class _CachedRead:
    """A read in the cache. `is_full` if a limit of size ended it, and not the end of the log."""

    __slots__ = ("batches", "generation", "is_full")

    def __init__(self, batches: HashedBatches, generation: int, is_full: bool) -> None:
        self.batches = batches
        self.generation = generation
        self.is_full = is_full


class RangeReads:
    """Owns the cache."""

    def __init__(self, cache_bytes_max: int) -> None:
        self._bytes_max = cache_bytes_max
        #: Reads by partition and first offset, the least recently used first.
        self._cached: dict[tuple[Any, int], _CachedRead] = {}
        #: The first offsets of the cached reads of each partition, in rising order.
        self._firsts: dict[Any, list[int]] = {}
        self.cache_bytes = 0
        self.hits_total = self.misses_total = 0
        self.looked_bytes_total = self.sent_bytes_total = 0

    def register(self, metrics: MetricRegistry) -> None:
        """Add the families."""
        metrics.add_gauge(
            "shoal_key_range_cache_bytes",
            "Bytes of batches that are cached with the hashes of their records.",
            lambda: self.cache_bytes,
        )

        def add_counter(name: str, description: str, attribute: str) -> None:
            metrics.add(
                f"shoal_key_range_{name}_total",
                "counter",
                description,
                lambda: [((), getattr(self, attribute))],
            )

        add_counter("cache_hit", "Reads of key ranges from the cache.", "hits_total")
        add_counter("cache_miss", "Reads of key ranges from the log.", "misses_total")
        add_counter(
            "looked_bytes",
            "Bytes of the log, after decompression, in which key ranges were searched.",
            "looked_bytes_total",
        )
        add_counter(
            "sent_bytes", "Bytes of batches sent to readers of key ranges.", "sent_bytes_total"
        )

    def advance(
        self,
        read: RangeRead,
        partition: Partition,
        ranges: KeyRanges,
        limit: int,
        size_max: int,
        budget: ReadBudget,
        *,
        min_one: bool,
    ) -> None:
        """Continue `read` up to offset `limit`, within `size_max` bytes and the budget.

        With `min_one`, the first batch may be larger. Raises what `Log.read` raises.
        """
        read.is_cut = False
        while read.next_offset < limit:
            if not budget:
                read.is_cut = True
                return
            hits = self.hits_total
            looked = self._get_batches(partition, read.next_offset, limit)
            if looked is None:
                return
            first, past = looked.find(read.next_offset), looked.find(limit)
            if first >= past:
                return
            budget.spend(looked, is_cached=self.hits_total > hits)
            self.looked_bytes_total += looked.cost_bytes
            data, last = looked.select(
                first, past, ranges, size_max - read.size, min_one=min_one and not read.size
            )
            if data:
                read.parts.append(data)
                read.size += len(data)
            if last > first:
                read.next_offset = looked.find_next_offset(last)
            if last < past:
                read.is_cut = True
                return

    def forget(self, partition: Partition) -> None:
        """Drop the cached reads of a removed partition."""
        for first in list(self._firsts.get(partition.key, ())):
            self._remove((partition.key, first))

    def _get_batches(self, partition: Partition, offset: int, limit: int) -> HashedBatches | None:
        """Return batches with `offset`, from the cache or the log; None if there are none yet."""
        log = partition.log
        cached = self._find(partition.key, offset, log.generation)
        if cached is not None and (
            cached.is_full
            or cached.batches.size_bytes >= SHORT_BYTES
            or cached.batches.next_offset >= limit
        ):
            self.hits_total += 1
            return cached.batches
        self.misses_total += 1
        data, next_offset = log.read(offset, READ_BYTES, max_offset=limit)
        if not len(data):
            return None
        batches = HashedBatches(bytes(data), offset)
        if not len(batches):
            return None
        self._add(
            partition.key, batches, log, is_full=min(next_offset, batches.next_offset) < limit
        )
        return batches

    def _find(self, key: Any, offset: int, generation: int) -> _CachedRead | None:
        firsts = self._firsts.get(key)
        index = bisect_right(firsts, offset) - 1 if firsts else -1
        if firsts is None or index < 0:
            return None
        place = (key, firsts[index])
        cached = self._cached[place]
        if cached.generation != generation:
            for first in list(firsts):
                self._remove((key, first))
            return None
        if offset >= cached.batches.next_offset:
            return None
        self._cached[place] = self._cached.pop(place)
        return cached

    def _add(self, key: Any, batches: HashedBatches, log: Log, *, is_full: bool) -> None:
        """Cache a read in place of those that it covers, and drop the oldest ones."""
        size = batches.size_bytes
        if size > self._bytes_max:
            return
        firsts = self._firsts.setdefault(key, [])
        low, high = bisect_left(firsts, batches.first), bisect_left(firsts, batches.next_offset)
        for first in firsts[low:high]:
            self._remove((key, first))
        firsts = self._firsts.setdefault(key, [])
        firsts.insert(bisect_left(firsts, batches.first), batches.first)
        self._cached[key, batches.first] = _CachedRead(batches, log.generation, is_full)
        self.cache_bytes += size
        while self.cache_bytes > self._bytes_max:
            self._remove(next(iter(self._cached)))

    def _remove(self, place: tuple[Any, int]) -> None:
        key, first = place
        self.cache_bytes -= self._cached.pop(place).batches.size_bytes
        firsts = self._firsts[key]
        del firsts[bisect_left(firsts, first)]
        if not firsts:
            del self._firsts[key]
