"""The size of the next batch, so that batches take about the time that the query requests.

Pure. Each batch has an overhead of up to a second (planning, two writes to the checkpoint, a task
for each core), so a short batch wastes executors. A long batch wastes them too: new executors wait
for the next batch, and a driver that fails repeats the whole batch. The time per record is known
from earlier batches.

Only a batch that took too long makes the next ones smaller, and only to the size that would have
fit. A batch with few records because few were available changes nothing.
"""

from __future__ import annotations

#: Records of the first batch, when no time per record is known.
FIRST_RECORDS = 1000
#: Maximum growth factor per batch: its records may have been unusually light.
GROWTH_MAX = 4


class BatchSize:
    """The size of one query's batches. `target_s` is the target duration; 0 means none."""

    def __init__(self, target_s: float, records_min: int) -> None:
        self._target_s = target_s
        self._least = records_min
        self._limit = max(FIRST_RECORDS, records_min)
        self._running: tuple[int, int, float] | None = None

    def compute_limit(self, records_max: int) -> int:
        """Return the number of records for the next batch, at most `records_max`."""
        return min(records_max, self._limit) if self._target_s else records_max

    def note_given(self, seq: int, records: int, now_s: float) -> None:
        """Note that Spark has received the batch."""
        self._running = (seq, records, now_s)

    def note_completed(self, seq: int, now_s: float) -> None:
        """Note that Spark has processed all batches up to `seq`."""
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
