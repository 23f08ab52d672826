"""Streaming queries of the share-group source, for tests: started, watched, stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from support.brokers.queues import Queue

#: A busy machine is slow; a quiet one never waits this long.
QUERY_TIMEOUT_S = 180.0
Sink = Callable[["DataFrame", int], None]


class Stream:
    """A query and the rows that its sink has seen, by batch."""

    def __init__(self, spark: SparkSession, queue: Queue, place: Path) -> None:
        self.spark = spark
        self.queue = queue
        self.place = place
        self.batches: dict[int, list[Row]] = {}
        self.tasks: dict[int, int] = {}
        self.query: StreamingQuery | None = None

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.batches.values() for row in rows]

    @property
    def values(self) -> list[str]:
        return sorted(
            (bytes(row["value"]).decode() for row in self.rows), key=lambda v: (len(v), v)
        )

    def start(
        self,
        sink: Sink | None = None,
        *,
        available_now: bool = False,
        every: str = "",
        **options: Any,
    ) -> StreamingQuery:
        """Start the query. `sink` is called with each batch before its rows are recorded; `every`
        is the interval of a `processingTime` trigger."""

        def each(frame: DataFrame, batch: int) -> None:
            if sink is not None:
                sink(frame, batch)
            self.tasks[batch] = frame.rdd.getNumPartitions()
            self.batches[batch] = frame.collect()

        source = self.spark.readStream.format("sharegroup")
        frame = source.options(**self.queue.options(**options)).load()
        writer = frame.writeStream.foreachBatch(each)
        writer = writer.option("checkpointLocation", str(self.place / "checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif every:
            writer = writer.trigger(processingTime=every)
        self.query = writer.start()
        return self.query

    def drain(self, sink: Sink | None = None, /, **options: Any) -> None:
        """Run the query with Trigger.AvailableNow to its end; raise the error it fails with."""
        query = self.start(sink, available_now=True, **options)
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"

    def until(self, what: Callable[[], object], says: str = "") -> None:
        """Wait for a condition while the query runs; raise the error the query fails with."""

        def probe() -> object:
            assert self.query is not None
            if error := self.query.exception():
                raise error
            return what()

        eventually(probe, timeout_s=QUERY_TIMEOUT_S, what=says)

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


@contextmanager
def running(
    spark: SparkSession, queue: Queue, place: Path, sink: Sink | None = None, /, **options: Any
) -> Iterator[Stream]:
    """A query that runs until the block ends."""
    stream = Stream(spark, queue, place)
    stream.start(sink, **options)
    try:
        yield stream
    finally:
        stream.stop()
