"""What the reader of one query has locked, what it has given to Spark, and what it owes.

Pure; the reader does the talking. The rules:

* `held` are the locks that this member believes to have. They come by `acquired`, and go when they
  are settled or found to be lost.
* Held offsets that no batch has yet are the next batch's. A batch stays in `given` until Spark
  proves that it is complete.
* A complete batch is settled where it is held. What of it is not held (its locks ran out, or an
  earlier driver had them) is `owed`: once the group hands it out again it is settled at once and
  not delivered a second time. What another member takes meanwhile is delivered there again.
* An offset that is in a batch still running is never put into another one, whoever locked it anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal_spark import ranges as sets
from shoal_spark.offsets import Offset, Starts, still_owed
from shoal_spark.ranges import Range


class Ledger:
    """The books of one reader."""

    def __init__(self) -> None:
        self.held: list[Range] = []
        self.owed: list[Range] = []
        self.given: dict[int, tuple[Range, ...]] = {}
        #: Held, and kept from delivery: what waits to be released.
        self.kept: list[Range] = []
        self._resumed = False

    @property
    def running(self) -> list[Range]:
        """The offsets of all batches that Spark has and has not completed."""
        return [r for batch in self.given.values() for r in batch]

    def resume(self, start: Offset) -> None:
        """Take over from the checkpoint, on the first call of a reader's life.

        The batch that ended at `start` is complete. Whether the reader before this one could
        accept it is not known, so it is owed; `prune` drops what had been accepted.
        """
        if not self._resumed:
            self._resumed = True
            self.owed = sets.plus(start.owed, start.ranges)

    def replay(self, end: Offset) -> bool:
        """Spark runs the batch that ends at `end`; whether it is one of an earlier reader."""
        if end.seq in self.given or not end.ranges:
            return False
        self._resumed = True
        self.given[end.seq] = end.ranges
        self.owed = sets.plus(self.owed, end.owed)
        return True

    def prune(self, before: Starts, now: Starts) -> None:
        """Forget what is owed no more, by the group's start offsets."""
        self.owed = still_owed(self.owed, before, now)

    def acquired(self, found: Iterable[Range]) -> list[Range]:
        """The group handed these out. Gives those to settle at once: they were owed."""
        found = list(found)
        self.held = sets.plus(self.held, found)
        return sets.both(found, self.owed)

    def keep(self, some: Iterable[Range]) -> None:
        """Hold these, do not deliver them, and owe nothing for them."""
        some = list(some)
        self.kept = sets.plus(self.kept, some)
        self.owed = sets.minus(self.owed, some)

    def fresh(self) -> list[Range]:
        """Held offsets for the next batch: in no batch yet, not owed, not kept."""
        return sets.normal(sets.minus(self.held, [*self.running, *self.owed, *self.kept]))

    def give(self, seq: int, batch: Iterable[Range]) -> tuple[Range, ...]:
        """Give a batch to Spark."""
        self.given[seq] = tuple(batch)
        return self.given[seq]

    def completed(self, seq: int) -> list[Range]:
        """All batches up to `seq` are complete: gives those offsets of them that are held.

        They are owed from now on until `settled` is told of them.
        """
        for number in [n for n in self.given if n <= seq]:
            self.owed = sets.plus(self.owed, self.given.pop(number))
        return sets.both(self.held, self.owed)

    def settled(self, done: Iterable[Range]) -> None:
        """The group took the acknowledgement of these: accepted, released or rejected."""
        done = list(done)
        self.held = sets.minus(self.held, done)
        self.owed = sets.minus(self.owed, done)
        self.kept = sets.minus(self.kept, done)

    def lost(self, some: Iterable[Range]) -> None:
        """The locks of these are gone; what was processed of them stays owed."""
        gone = list(some)
        self.held = sets.minus(self.held, gone)
        self.kept = sets.minus(self.kept, gone)
