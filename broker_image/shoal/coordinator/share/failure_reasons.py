"""The last reason that a member gave for each record in flight, within limits of memory.

Reasons are soft state, like locks: they are not persisted, and a new leader begins without them.
What must survive is the dead letter, which is written with its reason and replicated. Beyond a
limit, the oldest reasons go first; the records are not affected.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

#: Maximum bytes of one share partition, and of all share partitions of a broker.
PARTITION_BYTES_MAX, BROKER_BYTES_MAX = 1 << 20, 64 << 20
#: The assumed memory of an offset with a reason, and of a reason beside its content.
OFFSET_BYTES, ENTRY_BYTES = 100, 150


@dataclass(slots=True)
class ReasonBudget:
    """Bytes of reasons of all share partitions of a broker."""

    bytes_max: int = BROKER_BYTES_MAX
    used: int = 0


@dataclass(slots=True)
class _Entry:
    """A reason, encoded, and the number of offsets that have it."""

    data: bytes
    offsets: int = 0


class FailureReasons:
    """The reasons of one share partition, by offset."""

    __slots__ = ("_budget", "_by_offset", "_bytes")

    def __init__(self, budget: ReasonBudget | None = None) -> None:
        self._budget = budget or ReasonBudget()
        self._bytes = 0
        #: In the order in which they came.
        self._by_offset: OrderedDict[int, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_offset)

    @property
    def size_bytes(self) -> int:
        """The memory that they take, as far as limits count it."""
        return self._bytes

    def note(self, first: int, last: int, data: bytes) -> None:
        """Set the reason of a range of offsets, and drop the oldest ones beyond a limit."""
        entry = _Entry(data)
        for offset in range(first, last + 1):
            self._drop(offset)
            self._by_offset[offset] = entry
            entry.offsets += 1
        self._count(len(data) + ENTRY_BYTES + entry.offsets * OFFSET_BYTES)
        budget = self._budget
        while self._by_offset and (
            self._bytes > PARTITION_BYTES_MAX or budget.used > budget.bytes_max
        ):
            self._drop(next(iter(self._by_offset)))

    def get(self, offset: int) -> bytes | None:
        """Return the encoded reason of an offset."""
        entry = self._by_offset.get(offset)
        return None if entry is None else entry.data

    def forget(self, first: int, last: int) -> None:
        """Drop the reasons of a range: its records have ended."""
        if not self._by_offset:
            return
        if last - first < len(self._by_offset):
            offsets = list(range(first, last + 1))
        else:
            offsets = [offset for offset in self._by_offset if first <= offset <= last]
        for offset in offsets:
            self._drop(offset)

    def clear(self) -> None:
        """Drop all of them."""
        self._by_offset.clear()
        self._count(-self._bytes)

    def _drop(self, offset: int) -> None:
        entry = self._by_offset.pop(offset, None)
        if entry is None:
            return
        entry.offsets -= 1
        self._count(-OFFSET_BYTES - (0 if entry.offsets else len(entry.data) + ENTRY_BYTES))

    def _count(self, size: int) -> None:
        self._bytes += size
        self._budget.used += size
