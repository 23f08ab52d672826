"""How large the next batch is to be, so that batches take about as long as the query asks.

Pure. Each batch costs a second or less beside its work (planning, two writes to the checkpoint, a
task for each core), so a short one wastes executors. A long one wastes them too: executors that
come meanwhile wait for the next, and a driver that dies does all of it again. What a record takes
is known from the batches before.

Only a batch that took longer than asked makes the next ones smaller, and only to the size that
would have fit; one that had few records, since few were there, says nothing.
"""

from __future__ import annotations

#: The first batch, of which nothing is known.
FIRST_RECORDS = 1000
#: The most that one batch adds to the size: its records may have been light ones.
GROWTH_MAX = 4


class BatchSize:
    """The size of one query's batches. `target_s` is the time that one is to take, 0 for none."""

    def __init__(self, target_s: float, records_min: int) -> None:
        self._target_s = target_s
        self._least = records_min
        self._limit = max(FIRST_RECORDS, records_min)
        self._running: tuple[int, int, float] | None = None

    def limit(self, records_max: int) -> int:
        """Records of the next batch, `records_max` at the most."""
        return min(records_max, self._limit) if self._target_s else records_max

    def given(self, seq: int, records: int, now_s: float) -> None:
        """Spark has the batch now."""
        self._running = (seq, records, now_s)

    def completed(self, seq: int, now_s: float) -> None:
        """Spark has processed all batches up to `seq`."""
        if self._running is None or self._running[0] > seq:
            return
        _, records, began_s = self._running
        self._running = None
        took_s = max(now_s - began_s, 1e-3)
        fitting = int(records * self._target_s / took_s)
        if took_s > self._target_s:
            self._limit = max(self._least, min(self._limit, fitting))
        else:
            self._limit = max(self._limit, min(fitting, self._limit * GROWTH_MAX))
