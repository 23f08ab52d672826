"""The state of one query's reader: locked ranges, batches in Spark, ranges to accept.

Pure; the reader sends the requests. The rules:

* `locked` has the ranges that this member has locked. `acquired` adds ranges. They are removed when
  they are settled, or when their locks are lost.
* Locked offsets in no batch go into the next batch. A batch stays in `batches` until Spark proves
  that it is complete.
* The locked offsets of a complete batch are settled. Offsets that are not locked (their locks
  expired, or an earlier driver had them) are `owed`: when the group delivers them again they are
  settled at once. If another member acquires them first, they are processed twice.
* An offset in a running batch never goes into another batch, whichever member has locked it since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_spark import ranges as sets
from shoal_spark.offsets import ShareGroupOffset, Starts, list_still_owed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal_spark.ranges import OffsetRange


class ReaderState:
    """Which ranges one reader has locked, given to Spark, and has yet to accept."""

    def __init__(self) -> None:
        self.locked: list[OffsetRange] = []
        self.owed: list[OffsetRange] = []
        self.batches: dict[int, tuple[OffsetRange, ...]] = {}
        #: Locked offsets that are not delivered: they wait for their release.
        self.kept: list[OffsetRange] = []
        self._resumed = False

    @property
    def running(self) -> list[OffsetRange]:
        """The offsets of all batches that Spark has not completed."""
        return [r for batch in self.batches.values() for r in batch]

    def resume(self, start: ShareGroupOffset) -> None:
        """Resume from the checkpoint, on the first call of a reader.

        The batch that ended at `start` is complete. It is unknown if the previous reader could
        accept it, so it is owed. `prune` drops the accepted offsets.
        """
        if not self._resumed:
            self._resumed = True
            self.owed = sets.unite(start.owed, start.ranges)

    def replay(self, end: ShareGroupOffset) -> bool:
        """Note that Spark runs the batch that ends at `end`; return whether an earlier reader made
        it.
        """
        if end.seq in self.batches or not end.ranges:
            return False
        self._resumed = True
        self.batches[end.seq] = end.ranges
        self.owed = sets.unite(self.owed, end.owed)
        return True

    def prune(self, before: Starts, now: Starts) -> None:
        """Drop settled offsets from `owed`, by the group's start offsets."""
        self.owed = list_still_owed(self.owed, before, now)

    def note_acquired(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Note acquired ranges; return those that were owed, to settle at once."""
        ranges = list(ranges)
        self.locked = sets.unite(self.locked, ranges)
        return sets.intersect(ranges, self.owed)

    def keep(self, ranges: Iterable[OffsetRange]) -> None:
        """Hold these ranges without delivering them, and owe nothing for them."""
        ranges = list(ranges)
        self.kept = sets.unite(self.kept, ranges)
        self.owed = sets.subtract(self.owed, ranges)

    def list_fresh(self) -> list[OffsetRange]:
        """Return locked offsets for the next batch: in no batch, not owed, not kept."""
        return sets.normalize(sets.subtract(self.locked, [*self.running, *self.owed, *self.kept]))

    def give(self, seq: int, batch: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """Note the ranges of a batch that Spark gets."""
        self.batches[seq] = tuple(batch)
        return self.batches[seq]

    def note_completed(self, seq: int) -> list[OffsetRange]:
        """Note that all batches up to `seq` are complete; return their locked offsets.

        These are owed until `note_settled` removes them.
        """
        for number in [n for n in self.batches if n <= seq]:
            self.owed = sets.unite(self.owed, self.batches.pop(number))
        return sets.intersect(self.locked, self.owed)

    def note_settled(self, ranges: Iterable[OffsetRange]) -> None:
        """Note that the group accepted the acknowledgement of these ranges."""
        ranges = list(ranges)
        self.locked = sets.subtract(self.locked, ranges)
        self.owed = sets.subtract(self.owed, ranges)
        self.kept = sets.subtract(self.kept, ranges)

    def note_lost(self, ranges: Iterable[OffsetRange]) -> None:
        """Note that the locks of these ranges are lost. Processed ranges stay owed."""
        lost = list(ranges)
        self.locked = sets.subtract(self.locked, lost)
        self.kept = sets.subtract(self.kept, lost)
