"""Validates the expensive batches of a produce request before the request is handled.

The event loop decompresses and validates a batch up to `INLINE_BYTES_MAX`, in one buffer that all
requests share. A batch that is larger, or expands further, goes to a worker thread, and its request
waits. So do the batches of a request behind those that expand to `REQUEST_BYTES_MAX`. A later
request for one of the same partitions waits behind it, so appends to a partition keep the order of
requests. The single worker takes requests in their order, so at most one expanded
batch is in memory besides the shared buffer.

The log validates all other batches when it appends them (`log.validation`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from shoal.log.errors import AppendRefused
from shoal.log.validation import ValidatedBatch, is_large, validate
from shoal.record.batch import COMPRESSION_MASK, low_attributes
from shoal.record.compression import OutputFull

if TYPE_CHECKING:
    from shoal.log.config import LogConfig
    from shoal.protocol.produce import ProduceTopic
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions

#: Largest expanded batch that the event loop validates, in bytes. That takes a millisecond.
INLINE_BYTES_MAX = 1 << 20

#: What the event loop expands of one request, in bytes. A request may have thousands of batches.
REQUEST_BYTES_MAX = 8 << 20

#: The position of a batch in its request: the topic's number and the partition's number in it.
Position = tuple[int, int]
Outcomes = Mapping[Position, "ValidatedBatch | AppendRefused"]
_NONE: Outcomes = {}
#: A batch for the worker, with the config of its log.
_Job = tuple[Position, memoryview, "LogConfig"]


class BatchValidator:
    """Owns the worker, the shared buffer, and the partitions whose requests wait."""

    def __init__(self, node: Node) -> None:
        self._loop = node.loop
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._space = memoryview(bytearray(INLINE_BYTES_MAX))
        #: Number of waiting requests for a partition, by the partition's key.
        self._waiting: Counter[object] = Counter()
        self._closed = False

    def validate(
        self,
        topics: Sequence[ProduceTopic],
        partitions: Partitions,
        now_ms: int,
        then: Callable[[Outcomes | BaseException], None],
    ) -> Outcomes | None:
        """Validate the expensive batches of a request, and return their outcomes by position.

        Return None if the request has to wait. `then` is called with the outcomes when each earlier
        request for one of its partitions was handled, or with the exception that prevents this.
        """
        if not self._waiting and not _any_takes_time(topics):
            return _NONE
        found: dict[Position, ValidatedBatch | AppendRefused] = {}
        jobs: list[_Job] = []
        keys: list[object] = []
        left = REQUEST_BYTES_MAX
        for at, (name, topic_id, entries) in enumerate(topics):
            for number, (index, data) in enumerate(entries):
                partition = partitions.find(name, topic_id, index)
                if partition is None or not partition.is_leader:
                    continue
                keys.append(partition.key)
                if data is None or not _takes_time(data):
                    continue
                config = partition.log.config
                outcome = self._at_once(data, config, now_ms) if left > 0 else None
                left -= getattr(outcome, "expanded_bytes", INLINE_BYTES_MAX)
                if outcome is None:
                    jobs.append(((at, number), data, config))
                else:
                    found[at, number] = outcome
        if not jobs and not any(key in self._waiting for key in keys):
            return found
        self._later(found, jobs, keys, now_ms, then)
        return None

    def _at_once(
        self, data: memoryview, config: LogConfig, now_ms: int
    ) -> ValidatedBatch | AppendRefused | None:
        """Return the outcome, or None if the worker has to find it."""
        if is_large(data, INLINE_BYTES_MAX) and len(data) <= config.max_message_bytes:
            return None
        try:
            return _validated(data, config, now_ms, self._space)
        except OutputFull:
            return None

    def _later(
        self,
        found: dict[Position, ValidatedBatch | AppendRefused],
        jobs: list[_Job],
        keys: list[object],
        now_ms: int,
        then: Callable[[Outcomes | BaseException], None],
    ) -> None:
        self._waiting.update(keys)
        # A request without a job waits for its turn in the worker, too.
        work = self._loop.run_in_executor(self._executor, partial(_work, jobs, now_ms))

        def done(work: asyncio.Future[Outcomes]) -> None:
            self._waiting.subtract(keys)
            for key in keys:
                if not self._waiting[key]:
                    del self._waiting[key]
            # Call it now, so that no other request comes between.
            if self._closed or work.cancelled():
                then(asyncio.CancelledError())
            else:
                then(work.exception() or {**found, **work.result()})

        work.add_done_callback(done)

    def close(self) -> None:
        """Abandon the waiting requests. Nothing is appended for them."""
        self._closed = True
        self._executor.shutdown(cancel_futures=True)


def _any_takes_time(topics: Sequence[ProduceTopic]) -> bool:
    for topic in topics:
        for _, data in topic.partitions:
            if _takes_time(data):
                return True
    return False


def _takes_time(data: memoryview | None) -> bool:
    return data is not None and (
        low_attributes(data) & COMPRESSION_MASK != 0 or is_large(data, INLINE_BYTES_MAX)
    )


def _work(jobs: list[_Job], now_ms: int) -> Outcomes:
    """Runs in the worker."""
    return {position: _validated(data, config, now_ms) for position, data, config in jobs}


def _validated(
    data: memoryview, config: LogConfig, now_ms: int, space: memoryview | None = None
) -> ValidatedBatch | AppendRefused:
    try:
        return validate(data, config, now_ms, space)
    except AppendRefused as refused:
        return refused
