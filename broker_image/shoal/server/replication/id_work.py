"""Runs the work of deduplication: reads the ids of logs, and keeps older ones in files.

A partition is without its ids after a start, a change of leaders, and when its topic gets a window.
Its first produce begins the read, and those with ids are sent back until it ends. Each step reads
`STEP_BYTES` of the log. The record worker finds the ids, because a few kilobytes of a batch may
expand to many megabytes; only a log that is short and not compressed is read at once.

Files are loaded, written and merged in a thread of the disk. A thread that computes in Python keeps
the event loop waiting, so a step takes about two milliseconds, and ends with a call of the system,
during which the loop runs. A busy loop takes long to answer, so the thread does some steps at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shoal.log.deduplication import BatchContents, find_contents, is_small
from shoal.log.errors import OffsetOutOfRange
from shoal.record.batch import CorruptBatch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from shoal.log.dedup_store import Work
    from shoal.log.deduplication import Deduplication
    from shoal.record.batch import Buffer
    from shoal.replication.partition import Partition
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions


#: Steps in a row, before a flush may overtake a merge: a tenth of a second.
STEPS_AT_ONCE = 32


class IdWork:
    """Continues the work of all partitions of a broker, a step after the other."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def register(self, metrics: MetricRegistry, partitions: Partitions) -> None:
        """Add the families."""

        def add_up(measure: Callable[[Deduplication], int]) -> int:
            if not partitions.has_deduplication:
                return 0
            return sum(
                measure(partition.deduplication)
                for partition in partitions
                if partition.deduplication is not None
            )

        metrics.add_gauge(
            "shoal_log_deduplication_ids",
            "Ids of records that this broker's leaders know (shoal.deduplication.window.ms).",
            lambda: add_up(lambda deduplication: len(deduplication.index)),
        )
        metrics.add_gauge(
            "shoal_log_deduplication_file_bytes",
            "Bytes of the files with ids that do not fit into shoal.deduplication.memory.bytes.",
            lambda: add_up(lambda deduplication: deduplication.index.file_bytes),
        )

    def begin(self, partition: Partition) -> None:
        """Do the work of a partition's `deduplication`, unless it is being done."""
        deduplication = partition.deduplication
        assert deduplication is not None
        if not deduplication.is_working:
            deduplication.is_working = True
            self._step(partition, deduplication)

    def _step(self, partition: Partition, deduplication: Deduplication) -> None:
        """Do the next part. A failed read begins again with the next produce."""
        if partition.deduplication is not deduplication or partition.is_removed:
            deduplication.store.abandon()
            return
        self._report_damage(partition, deduplication)
        if deduplication.failure is not None:
            deduplication.store.abandon()
            partition.deduplication = None
            return
        self._remove_garbage(partition, deduplication)
        work = deduplication.find_work(self._node.clock.now_ms())
        if work is not None:
            self._node.disk.run_aside(partial(_do_steps, work)).add_done_callback(
                partial(self._on_step, partition, deduplication, work)
            )
        elif deduplication.is_ready or deduplication.index.is_full:
            deduplication.is_working = False
        else:
            self._read(partition, deduplication)

    # Files

    def _on_step(
        self,
        partition: Partition,
        deduplication: Deduplication,
        work: Work,
        step: asyncio.Future[None],
    ) -> None:
        if step.cancelled():
            return  # The broker stops.
        is_current = partition.deduplication is deduplication and not partition.is_removed
        if work.is_done and is_current:
            try:
                deduplication.finish_work(work)
            except OSError as error:
                self._node.log.warning(
                    "the ids of a partition's records cannot be written to a file; the broker tries"
                    " again, and sends producers of new ids back if memory is full",
                    topic=partition.topic,
                    partition=partition.index,
                    error=str(error),
                )
        self._step(partition, deduplication)

    def _report_damage(self, partition: Partition, deduplication: Deduplication) -> None:
        """Name damaged files in the log, and remove them."""
        damaged = deduplication.store.damaged
        if deduplication.failure is not None:
            damaged.append(deduplication.failure)
        for error in damaged:
            self._node.log.warning(
                "a file with ids of a partition's records is not used and removed; they are read"
                " from the log again",
                topic=partition.topic,
                partition=partition.index,
                file=error.path,
                error=str(error),
            )
            self._remove(partition, error.path)
        damaged.clear()

    def _remove_garbage(self, partition: Partition, deduplication: Deduplication) -> None:
        for path in deduplication.index.garbage:
            self._remove(partition, path)
        deduplication.index.garbage.clear()

    def _remove(self, partition: Partition, path: str) -> None:
        self._node.disk.remove(partial(partition.log.storage.remove, path))

    # The log

    def _read(self, partition: Partition, deduplication: Deduplication) -> None:
        """Read the next part of the log."""
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
        if partition.deduplication is deduplication:
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


def _do_steps(work: Work) -> None:
    """Run in the thread."""
    for _ in range(STEPS_AT_ONCE):
        work.step()
        if work.is_done:
            break


def _find(data: Buffer, results: list[list[BatchContents] | CorruptBatch]) -> None:
    """Run in the worker."""
    try:
        results.append(find_contents(data))
    except CorruptBatch as error:
        results.append(error)
