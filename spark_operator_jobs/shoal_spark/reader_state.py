"""The state of one query's reader: locked ranges, batches in Spark, ranges to accept.

Pure; the reader sends the requests. The rules:

* `locked` has the ranges that this member has locked. `acquired` adds ranges. They are removed when
  they are settled, or when their locks are lost.
* Locked offsets in no batch go into the next batch. A batch stays in `given` until Spark proves
  that it is complete.
* The locked offsets of a complete batch are settled. Offsets that are not locked (their locks
  expired, or an earlier driver had them) are `owed`: when the group delivers them again they are
  settled at once. If another member acquires them first, they are processed twice.
* An offset in a running batch never goes into another batch, whichever member has locked it since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_spark import ranges as sets
from shoal_spark.offsets import Offset, Starts, still_owed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal_spark.ranges import Range


class ReaderState:
    """Which ranges one reader has locked, given to Spark, and has yet to accept."""

    def __init__(self) -> None:
        self.locked: list[Range] = []
        self.owed: list[Range] = []
        self.given: dict[int, tuple[Range, ...]] = {}
        #: Locked offsets that are not delivered: they wait for their release.
        self.kept: list[Range] = []
        self._resumed = False

    @property
    def running(self) -> list[Range]:
        """The offsets of all batches that Spark has not completed."""
        return [r for batch in self.given.values() for r in batch]

    def resume(self, start: Offset) -> None:
        """Resume from the checkpoint, on the first call of a reader.

        The batch that ended at `start` is complete. It is unknown if the previous reader could
        accept it, so it is owed. `prune` drops the accepted offsets.
        """
        if not self._resumed:
            self._resumed = True
            self.owed = sets.plus(start.owed, start.ranges)

    def replay(self, end: Offset) -> bool:
        """Note that Spark runs the batch that ends at `end`; return whether an earlier reader made
        it.
        """
        if end.seq in self.given or not end.ranges:
            return False
        self._resumed = True
        self.given[end.seq] = end.ranges
        self.owed = sets.plus(self.owed, end.owed)
        return True

    def prune(self, before: Starts, now: Starts) -> None:
        """Drop settled offsets from `owed`, by the group's start offsets."""
        self.owed = still_owed(self.owed, before, now)

    def acquired(self, found: Iterable[Range]) -> list[Range]:
        """Note acquired ranges; return those that were owed, to settle at once."""
        found = list(found)
        self.locked = sets.plus(self.locked, found)
        return sets.both(found, self.owed)

    def keep(self, some: Iterable[Range]) -> None:
        """Hold these ranges without delivering them, and owe nothing for them."""
        some = list(some)
        self.kept = sets.plus(self.kept, some)
        self.owed = sets.minus(self.owed, some)

    def fresh(self) -> list[Range]:
        """Return locked offsets for the next batch: in no batch, not owed, not kept."""
        return sets.normal(sets.minus(self.locked, [*self.running, *self.owed, *self.kept]))

    def give(self, seq: int, batch: Iterable[Range]) -> tuple[Range, ...]:
        """Note the ranges of a batch that Spark gets."""
        self.given[seq] = tuple(batch)
        return self.given[seq]

    def completed(self, seq: int) -> list[Range]:
        """Note that all batches up to `seq` are complete; return their locked offsets.

        These are owed until `settled` removes them.
        """
        for number in [n for n in self.given if n <= seq]:
            self.owed = sets.plus(self.owed, self.given.pop(number))
        return sets.both(self.locked, self.owed)

    def settled(self, done: Iterable[Range]) -> None:
        """Note that the group accepted the acknowledgement of these ranges."""
        done = list(done)
        self.locked = sets.minus(self.locked, done)
        self.owed = sets.minus(self.owed, done)
        self.kept = sets.minus(self.kept, done)

    def lost(self, some: Iterable[Range]) -> None:
        """Note that the locks of these ranges are lost. Processed ranges stay owed."""
        gone = list(some)
        self.locked = sets.minus(self.locked, gone)
        self.kept = sets.minus(self.kept, gone)
