"""How many records one fetch gets of a group with key order.

What members hold keeps keys from the others. With many records in flight among few keys, most of
what is looked at has its key elsewhere: it waits, and what is delivered lies scattered, in ranges
of a record or two that are locked, sent, accepted and persisted each by itself. So a fetch gets a
portion that shrinks while keys collide often and grows while they do so seldom, never below what
makes a request worth its while. It is a bound and no more: a fetch gets something whenever there
is something, and who asks for less than a portion gets what it asks for.

How much keys collide is told by how many of those that are known have a record that waits for one
before it. A hot key counts as one of them, however much piles up behind it: smaller portions would
not spread that.
"""

from __future__ import annotations

from shoal.coordinator.share import compiled

#: Bounds of a portion. Below the first one, the cost of a request counts more than that of ranges,
#: which is a tenth where their loops are compiled, and members get no records of others
#: (bench/queues.py, docs/performance.md).
RECORDS_MIN, RECORDS_MAX = 100 if compiled.native is None else 400, 2000
#: Keys with waiting records, in a hundred, above which a portion shrinks, and below which it grows.
SHRINK_PERCENT, GROW_PERCENT = 8, 4
#: Records that are delivered between two steps.
STEP_RECORDS = 500
#: With fewer known keys nothing is concluded.
KEYS_MIN = 50


class FetchLimit:
    """Of one share partition."""

    __slots__ = ("_delivered", "records")

    def __init__(self) -> None:
        #: What a fetch gets at most.
        self.records = RECORDS_MAX
        self._delivered = 0

    def delivered(self, records: int, keys: int, waiting: int) -> None:
        """A fetch got so many records; of the keys that are known so many have waiting ones."""
        self._delivered += records
        if self._delivered < STEP_RECORDS:
            return
        self._delivered = 0
        if keys < KEYS_MIN or 100 * waiting < GROW_PERCENT * keys:
            self.records = min(RECORDS_MAX, self.records * 5 // 4)
        elif 100 * waiting > SHRINK_PERCENT * keys:
            self.records = max(RECORDS_MIN, self.records * 3 // 4)
