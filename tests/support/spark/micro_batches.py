"""Queries of the share-group source, run batch by batch as Spark runs them, without a JVM.

Spark's part is small: it stores the offset of a batch before the batch runs, and a commit after it.
A query that starts again continues there, and runs a batch without a commit again. Each task reads
with a pickled copy of the reader.
"""

from __future__ import annotations

import json
import pickle
import signal
from typing import TYPE_CHECKING, Any

from shoal_spark.options import SourceOptions
from shoal_spark.reader import ShareGroupReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.queues import Queue

Row = dict[str, Any]


class Query:
    """A query, its checkpoint, and the rows that its sink has seen, by batch."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.batches: dict[int, list[Row]] = {}
        #: The offsets that Spark has stored. Each but the first ends a batch.
        self.offsets: list[dict[str, Any]] = []
        self._committed = 0
        self._reader: ShareGroupReader | None = None

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.batches.values() for row in rows]

    @property
    def values(self) -> list[int]:
        return sorted(int(row["value"]) for row in self.rows)

    @property
    def reader(self) -> ShareGroupReader:
        assert self._reader is not None, "the query has not started"
        return self._reader

    def start(self, **options: Any) -> None:
        """Start the query, or start it again from its checkpoint, with another driver."""
        self._reader = ShareGroupReader(SourceOptions.from_options(self.queue.options(**options)))
        before = signal.getsignal(signal.SIGTERM)
        try:
            # Spark's process has a handler, and this one is no process of Spark's.
            assert self._reader.driver
        finally:
            signal.signal(signal.SIGTERM, before)
        self.offsets = self.offsets or [self._reader.initialOffset()]

    def has_batch(self) -> bool:
        """Store the offset of the next batch, unless a batch is to run again. Return False if there
        is none."""
        if len(self.offsets) - 1 > self._committed:
            return True
        limit = self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.offsets[-1], limit)))
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def read(self) -> list[list[Row]]:
        """Return the rows of each task of the batch that runs."""
        tasks = self.reader.partitions(*self.offsets[-2:])
        copies = [pickle.loads(pickle.dumps(self.reader)) for _ in tasks]
        return [
            [row for batch in copy.read(task) for row in batch.to_pylist()]
            for copy, task in zip(copies, tasks, strict=True)
        ]

    def run_batch(self, sink: Callable[[list[Row]], object] = lambda _: None) -> None:
        """Run the batch, whose rows go to the sink, and commit it."""
        rows = [row for task in self.read() for row in task]
        sink(rows)
        self.batches[self._committed] = rows
        self._committed += 1

    def drain(
        self, sink: Callable[[list[Row]], object] = lambda _: None, /, **options: Any
    ) -> None:
        """Run the query with Trigger.AvailableNow to its end; raise the error it fails with."""
        self.start(**options)
        try:
            self.reader.prepareForTriggerAvailableNow()
            while self.has_batch():
                self.run_batch(sink)
        finally:
            self.stop()

    def stop(self) -> None:
        self.reader.stop()

    def kill(self) -> None:
        """End the driver as SIGKILL does: it neither releases its locks nor leaves the group."""
        self.reader.driver.member.client.close()
        self._reader = None
