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

#: Bytes for one share partition: enough for one fetch among eight members and 10,000 keys. With
#: half of it, each fetch reads the log twice more.
BYTES_MAX = 1024 * 1024


class ReadCache:
    """Reads of one share partition, in log order."""

    __slots__ = ("_reads", "_size")

    def __init__(self) -> None:
        self._reads: deque[Batches] = deque()
        self._size = 0

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, batches: Batches) -> None:
        """Keep a read that continues the last one. Any other read replaces all."""
        reads = self._reads
        if reads and batches.bases[0] <= reads[-1].bases[-1]:
            self.clear()
        reads.append(batches)
        self._size += len(batches.data)
        while self._size > BYTES_MAX:
            self._size -= len(reads.popleft().data)

    def clear(self) -> None:
        """Remove all reads."""
        self._reads.clear()
        self._size = 0

    def gathered(self, offsets: list[int], room: int, least: int) -> tuple[int, memoryview]:
        """Return how many of the first rising offsets lie in cached reads, and their batches as
        members get them (`Batches.thinned`).

        Stop when `room` is used up, and at a read that is larger than the rest of it and than
        `least`. Return none if the loops are not compiled.
        """
        if compiled.native is None or not self._reads:
            return 0, memoryview(b"")
        taken, data = compiled.native.gathered(list(self._reads), offsets, room, least)
        return taken, memoryview(data)

    def apart(self, offsets: list[int]) -> list[tuple[list[int], Batches]]:
        """Return `gathered` offsets by the reads that contain them."""
        found = []
        while offsets:
            batches, _ = self.find(offsets[0])
            assert batches is not None
            past = bisect_right(offsets, batches.lasts[-1])
            found.append((offsets[:past], batches))
            offsets = offsets[past:]
        return found

    def find(self, offset: int) -> tuple[Batches | None, int | None]:
        """Return the read that contains an offset; without one, the begin of the next batch behind
        it."""
        for batches in self._reads:
            if offset <= batches.lasts[-1]:
                at = bisect_left(batches.lasts, offset)
                if batches.bases[at] <= offset:
                    return batches, None
                return None, batches.bases[at]
        return None, None
