"""What was last read of a log to look at its records: what waited for its key lies in there, and is
delivered out of here. Without it each record that was left behind costs a read of its own.

Bounded in bytes, and empty where nothing is known of that is yet to be delivered. The log below a
high watermark does not change, so what was read holds; offsets that are gone are not asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque

from shoal.coordinator.share import compiled
from shoal.coordinator.share.batches import Batches

#: Bytes that one share partition keeps: of eight members with 10,000 keys between them, what one
#: fetch takes from. With half of it, each fetch reads the log twice more.
BYTES_MAX = 1024 * 1024


class ReadCache:
    """Reads of one share partition, in the order of the log."""

    __slots__ = ("_reads", "_size")

    def __init__(self) -> None:
        self._reads: deque[Batches] = deque()
        self._size = 0

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, batches: Batches) -> None:
        """Keep a read, which goes on where the last one ended; any other one is kept alone."""
        reads = self._reads
        if reads and batches.bases[0] <= reads[-1].bases[-1]:
            self.clear()
        reads.append(batches)
        self._size += len(batches.data)
        while self._size > BYTES_MAX:
            self._size -= len(reads.popleft().data)

    def clear(self) -> None:
        """Forget all."""
        self._reads.clear()
        self._size = 0

    def gathered(self, offsets: list[int], room: int, least: int) -> tuple[int, memoryview]:
        """How many of rising offsets, from the first on, lie in what was read before, and their
        batches as members get them (`Batches.thinned`). Stops when the room is used up, and at a
        read that is larger than what is left of it and than `least`. None where that is not
        compiled."""
        if compiled.native is None or not self._reads:
            return 0, memoryview(b"")
        taken, data = compiled.native.gathered(list(self._reads), offsets, room, least)
        return taken, memoryview(data)

    def apart(self, offsets: list[int]) -> list[tuple[list[int], Batches]]:
        """Rising offsets that were `gathered`, by the reads that hold them."""
        found = []
        while offsets:
            batches, _ = self.find(offsets[0])
            assert batches is not None
            past = bisect_right(offsets, batches.lasts[-1])
            found.append((offsets[:past], batches))
            offsets = offsets[past:]
        return found

    def find(self, offset: int) -> tuple[Batches | None, int | None]:
        """The read that holds an offset; without one, where the first one behind it begins."""
        for batches in self._reads:
            if offset <= batches.lasts[-1]:
                at = bisect_left(batches.lasts, offset)
                if batches.bases[at] <= offset:
                    return batches, None
                return None, batches.bases[at]
        return None, None
