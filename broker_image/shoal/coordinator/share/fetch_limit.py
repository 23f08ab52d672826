"""Limits the records of one fetch in groups with key order.

A key whose records a member holds is unavailable to other members. With many records in flight
among few keys, most scanned records wait for their key. The delivered ones are scattered: ranges of
one or two records, each locked, sent, accepted and persisted individually. The limit therefore
falls while keys collide often, and rises while they collide seldom. It stays above a minimum that
makes a request worthwhile. A fetch always gets a record if one is available.

The measure of collisions is the share of known keys with a waiting record. A hot key counts once,
however many records wait behind it: smaller fetches would not spread them.
"""

from __future__ import annotations

from shoal.coordinator.share import compiled

#: Bounds of the limit. Below the minimum, a request costs more than its ranges. Compiled, ranges
#: cost a tenth, and members get no records of others (bench/queues.py, docs/performance.md).
RECORDS_MIN, RECORDS_MAX = 100 if compiled.native is None else 400, 2000
#: The limit falls above, and rises below, this percentage of keys with waiting records.
SHRINK_PERCENT, GROW_PERCENT = 8, 4
#: Delivered records between two steps.
STEP_RECORDS = 500
#: With fewer known keys, the limit rises.
KEYS_MIN = 50


class FetchLimit:
    """The limit of one share partition."""

    __slots__ = ("_delivered", "records")

    def __init__(self) -> None:
        #: Maximum records of a fetch.
        self.records = RECORDS_MAX
        self._delivered = 0

    def note_delivery(self, records: int, keys: int, waiting: int) -> None:
        """Note a fetch of `records` records. Of the `keys` known keys, `waiting` have waiting
        records."""
        self._delivered += records
        if self._delivered < STEP_RECORDS:
            return
        self._delivered = 0
        if keys < KEYS_MIN or 100 * waiting < GROW_PERCENT * keys:
            self.records = min(RECORDS_MAX, self.records * 5 // 4)
        elif 100 * waiting > SHRINK_PERCENT * keys:
            self.records = max(RECORDS_MIN, self.records * 3 // 4)
