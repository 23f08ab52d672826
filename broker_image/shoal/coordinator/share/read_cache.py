"""The last reads of the scanner.

Records that wait for their key are delivered from these reads. Without them, each such record would
cost a read of its own. The size is limited, and the cache is empty if no scanned record is left to
deliver. The log below a high watermark does not change, so cached reads stay valid.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING

from shoal.coordinator.share import compiled

if TYPE_CHECKING:
    from shoal.coordinator.share.batches import Batches
    from shoal.coordinator.share.settings import SelectionPolicy

#: Bytes for one share partition: enough for one fetch among eight members and 10,000 keys. With
#: half of it, each fetch reads the log twice more.
BYTES_MAX = 1024 * 1024
#: The bytes that a fair group takes for each record that it looks ahead, in its queue and here.
#: Records of quiet tenants were scanned lately and lie far from each other: a read for each would
#: be most of a fetch's cost.
FAIR_BYTES_PER_RECORD = 200
#: What of them is for the log at least, however much the queue takes.
FAIR_LOG_BYTES_PER_RECORD = 100


class ReadCache:
    """Reads of one share partition, in log order."""

    __slots__ = ("_reads", "_size", "bytes_max")

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        #: A lower bound than before applies from the next read on.
        self.bytes_max = bytes_max
        self._reads: deque[Batches] = deque()
        self._size = 0

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, batches: Batches) -> None:
        """Keep a read, in place of those that do not begin before it. It may begin within the last
        one: a scan that ends within a read continues there with another."""
        reads = self._reads
        while reads and batches.bases[0] <= reads[-1].bases[0]:
            self._size -= len(reads.pop().data)
        reads.append(batches)
        self._size += len(batches.data)
        while self._size > self.bytes_max:
            self._size -= len(reads.popleft().data)

    def clear(self) -> None:
        """Remove all reads."""
        self._reads.clear()
        self._size = 0

    def gather(self, offsets: list[int], room: int, least: int) -> tuple[int, memoryview]:
        """Return how many of the first rising offsets lie in cached reads, and their batches as
        members get them (`Batches.build_thinned`).

        Stop when `room` is used up, and at a read that is larger than the rest of it and than
        `least`. Return none if the loops are not compiled.
        """
        reads = self._reads
        if compiled.native is None or not reads or not offsets:
            return 0, memoryview(b"")
        if not reads[0].bases[0] <= offsets[0] <= reads[-1].lasts[-1]:
            return 0, memoryview(b"")
        count, data = compiled.native.gathered(list(reads), offsets, room, least)
        return count, memoryview(data)

    def split_by_read(self, offsets: list[int]) -> list[tuple[list[int], Batches]]:
        """Return `gather` offsets by the reads that contain them."""
        parts = []
        while offsets:
            batches, _ = self.find(offsets[0])
            assert batches is not None
            past = bisect_right(offsets, batches.lasts[-1])
            parts.append((offsets[:past], batches))
            offsets = offsets[past:]
        return parts

    def find(self, offset: int) -> tuple[Batches | None, int | None]:
        """Return the read that contains an offset; without one, the begin of the next batch behind
        it."""
        for batches in self._reads:
            if offset <= batches.lasts[-1]:
                index = bisect_left(batches.lasts, offset)
                if batches.bases[index] <= offset:
                    return batches, None
                return None, batches.bases[index]
        return None, None


def compute_cache_bytes(policy: SelectionPolicy, queue_bytes: int) -> int:
    """Return the bytes of reads that a group keeps for a share partition. Those of a fair group are
    what its queue, which takes `queue_bytes`, leaves of `FAIR_BYTES_PER_RECORD`."""
    if not policy.fairness_by:
        return BYTES_MAX
    records = policy.fairness_lookahead
    left = FAIR_BYTES_PER_RECORD * records - queue_bytes
    return max(BYTES_MAX, FAIR_LOG_BYTES_PER_RECORD * records, left)
