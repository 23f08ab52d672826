"""Reads the ids of the records that are in a log, when a leader begins to deduplicate.

The partition is without them after a start, a change of leaders, and when its topic gets a window.
Its first produce begins the read, and those with ids are sent back until it ends. Each step reads
`STEP_BYTES` of the log. The record worker finds the ids, because a few kilobytes of a batch may
expand to many megabytes; only a log that is short and not compressed is read at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shoal.log.deduplication import BatchContents, find_contents, is_small
from shoal.log.errors import OffsetOutOfRange
from shoal.record.batch import CorruptBatch

if TYPE_CHECKING:
    from shoal.log.deduplication import Deduplication
    from shoal.record.batch import Buffer
    from shoal.replication.partition import Partition
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions


class IdReads:
    """Continues the reads of all partitions of a broker, a step after the other."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def register(self, metrics: MetricRegistry, partitions: Partitions) -> None:
        """Add the families."""

        def count_ids() -> int:
            if not partitions.has_deduplication:
                return 0
            return sum(
                len(partition.deduplication.index)
                for partition in partitions
                if partition.deduplication is not None
            )

        metrics.add_gauge(
            "shoal_log_deduplication_ids",
            "Ids of records that this broker's leaders know (shoal.deduplication.window.ms).",
            count_ids,
        )

    def begin(self, partition: Partition) -> None:
        """Read the ids of a partition's log into its new `deduplication`."""
        assert partition.deduplication is not None
        self._step(partition, partition.deduplication)

    def _step(self, partition: Partition, deduplication: Deduplication) -> None:
        """Read the next part of the log. A failed read begins again with the next produce."""
        if deduplication.is_ready or partition.deduplication is not deduplication:
            return
        try:
            data = deduplication.read()
            if not data or is_small(data):
                deduplication.note(find_contents(data))
                self._node.loop.call_soon(self._step, partition, deduplication)
                return
        except (OSError, CorruptBatch, OffsetOutOfRange) as error:
            self._fail(partition, error)
            return
        results: list[list[BatchContents] | CorruptBatch] = []
        self._node.record_worker.run(
            partial(_find, data, results),
            partial(self._on_found, partition, deduplication, results),
        )

    def _on_found(
        self,
        partition: Partition,
        deduplication: Deduplication,
        results: list[list[BatchContents] | CorruptBatch],
    ) -> None:
        if partition.deduplication is not deduplication:
            return
        (result,) = results
        if isinstance(result, CorruptBatch):
            self._fail(partition, result)
            return
        deduplication.note(result)
        self._step(partition, deduplication)

    def _fail(self, partition: Partition, error: Exception) -> None:
        partition.deduplication = None
        self._node.log.warning(
            "the ids of a partition's records cannot be read, so producers of records with ids are"
            " sent back; the next one tries again",
            topic=partition.topic,
            partition=partition.index,
            error=str(error),
        )


def _find(data: Buffer, results: list[list[BatchContents] | CorruptBatch]) -> None:
    """Run in the worker."""
    try:
        results.append(find_contents(data))
    except CorruptBatch as error:
        results.append(error)
