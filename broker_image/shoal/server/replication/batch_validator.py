"""Validates the expensive batches of a produce request before the request is handled.

The event loop decompresses and validates a batch up to `INLINE_BYTES_MAX`, in one buffer that all
requests share. A batch that is larger, or expands further, goes to a worker thread, and its request
waits. So do the batches of a request behind those that expand to `REQUEST_BYTES_MAX`. Where the
topic's compression.type is another one than the batch's, it is compressed again, and its bytes
count `COMPRESSION_COST` times. Where the topic has
`shoal.deduplication.window.ms`, the worker also takes batches of more than `IDS_RECORDS_MAX`
records, to find their ids. Which of them are known only the event loop can tell, so a compressed
batch with known and new records goes to the worker again, to be cut (`log.deduplication`).

A later request for one of the same partitions waits behind it, so appends to a partition keep the
order of requests. All requests that wait are handled in their order, and the worker is single, so
at most one expanded batch is in memory besides the shared buffer.

The log validates all other batches when it appends them (`log.validation`).
"""

from __future__ import annotations

import asyncio
import mmap
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.deduplication import cut
from shoal.log.errors import AppendRefused
from shoal.log.validation import ValidatedBatch, is_large, validate
from shoal.record.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    RECORD_COUNT_AT,
    read_low_attributes,
)
from shoal.record.compression import Compression, OutputFull

if TYPE_CHECKING:
    from shoal.log.config import LogConfig
    from shoal.protocol.produce import ProduceTopic
    from shoal.replication.partition import Partition
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions

#: Largest expanded batch that the event loop validates, in bytes. That takes a millisecond.
INLINE_BYTES_MAX = 1 << 20

#: What the event loop expands of one request, in bytes. A request may have thousands of batches.
REQUEST_BYTES_MAX = 8 << 20

#: What compressing a byte costs at the highest levels, in bytes to expand: a megabyte takes 300 ms.
COMPRESSION_COST = 64
#: What a smaller batch counts as, in bytes to compress: at the highest levels, some milliseconds.
COMPRESSION_BYTES_MIN = 32 << 10
#: Records whose ids the event loop finds, in 5 ms.
IDS_RECORDS_MAX = 1_000
#: The most records of a batch for a topic that looks for their ids: 3 us each, in one turn of the
#: event loop. Java's producer sends a batch that is too large again, in parts.
IDS_OF_BATCH_MAX = 20_000

#: The position of a batch in its request: the topic's number and the partition's number in it.
Position = tuple[int, int]
Outcomes = Mapping[Position, "ValidatedBatch | AppendRefused"]
NO_OUTCOMES: Outcomes = {}


class _Job(NamedTuple):
    """A batch for the worker, with the config of its log."""

    position: Position
    data: memoryview
    partition: Partition
    config: LogConfig

    def run(self, now_ms: int) -> ValidatedBatch | AppendRefused:
        outcome = _validate(self.data, self.config, now_ms)
        if isinstance(outcome, ValidatedBatch):
            return outcome._replace(in_worker=True)
        return outcome


class _Cut(NamedTuple):
    """A batch that the worker cuts, and the offsets of its known records by their offset delta."""

    position: Position
    batch: ValidatedBatch
    known: Mapping[int, int]

    def run(self, _now_ms: int) -> ValidatedBatch | AppendRefused:
        try:
            return self.batch._replace(cut=cut(self.batch, self.known))
        except AppendRefused as refused:
            return refused.with_traceback(None)


class _Waiting:
    """A request that waits."""

    def __init__(
        self,
        outcomes: dict[Position, ValidatedBatch | AppendRefused],
        jobs: list[_Job],
        keys: list[object],
        callback: Callable[[Outcomes | BaseException], None],
    ) -> None:
        self.outcomes = outcomes
        self.jobs = jobs
        #: Those of its partitions.
        self.keys = keys
        self.callback = callback
        #: What the worker does for it.
        self.work: asyncio.Future[Outcomes]


class BatchValidator:
    """Owns the worker, the shared buffer, and the requests that wait."""

    def __init__(self, node: Node) -> None:
        self._loop, self._clock = node.loop, node.clock
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="records")
        # Unlike a bytearray it is not zeroed, so a page takes memory once it is used.
        self._space = memoryview(mmap.mmap(-1, INLINE_BYTES_MAX))
        #: The waiting requests in their order, and their number for a partition by its key.
        self._requests: deque[_Waiting] = deque()
        self._waiting: Counter[object] = Counter()
        self._closed = False

    def is_needed(self, topics: Sequence[ProduceTopic], partitions: Partitions) -> bool:
        """Whether a request has expensive batches, or may have to wait behind such ones. If not,
        the log validates its batches."""
        return bool(self._waiting) or partitions.has_deduplication or _has_expensive(topics)

    def validate(
        self,
        topics: Sequence[ProduceTopic],
        partitions: Partitions,
        now_ms: int,
        callback: Callable[[Outcomes | BaseException], None],
    ) -> Outcomes | None:
        """Validate the expensive batches of a request, and return their outcomes by position.

        Return None if the request has to wait. `callback` is called with the outcomes when each
        earlier request for one of its partitions was handled, or with the exception that prevents
        this.
        """
        outcomes: dict[Position, ValidatedBatch | AppendRefused] = {}
        jobs: list[_Job] = []
        keys: list[object] = []
        bytes_left = REQUEST_BYTES_MAX
        for topic_index, (name, topic_id, entries) in enumerate(topics):
            for number, (index, data) in enumerate(entries):
                partition = partitions.find(name, topic_id, index)
                if partition is None or not partition.is_leader:
                    continue
                keys.append(partition.key)
                if data is None:
                    continue
                config = partition.log.config
                cost = COMPRESSION_COST if _is_compressed_again(data, config) else 1
                if cost == 1 and not _is_expensive(data) and not _may_have_many_ids(data, config):
                    continue
                outcome = (
                    self._validate_inline(data, config, now_ms, cost) if bytes_left > 0 else None
                )
                expanded = getattr(outcome, "expanded_bytes", INLINE_BYTES_MAX)
                if cost > 1:
                    expanded = cost * max(expanded, len(data), COMPRESSION_BYTES_MIN)
                bytes_left -= expanded
                if outcome is None:
                    jobs.append(_Job((topic_index, number), data, partition, config))
                else:
                    outcomes[topic_index, number] = outcome
        if not jobs and not any(key in self._waiting for key in keys):
            return outcomes
        request = _Waiting(outcomes, jobs, keys, callback)
        self._waiting.update(keys)
        self._requests.append(request)
        # A request without a job waits for its turn in the worker, too.
        self._begin(request, jobs, now_ms)
        return None

    def _validate_inline(
        self, data: memoryview, config: LogConfig, now_ms: int, cost: int
    ) -> ValidatedBatch | AppendRefused | None:
        """Return the outcome, or None if the worker has to find it: each byte costs `cost`."""
        size_max = INLINE_BYTES_MAX // cost
        if is_large(data, size_max) and len(data) <= config.max_message_bytes:
            return None
        if _may_have_many_ids(data, config):
            return None
        try:
            return _validate(data, config, now_ms, self._space[:size_max])
        except OutputFull:
            return None

    def _begin(self, request: _Waiting, jobs: Sequence[_Job | _Cut], now_ms: int) -> None:
        request.work = self._loop.run_in_executor(self._executor, partial(_run, jobs, now_ms))
        request.work.add_done_callback(self._go_on)

    def _go_on(self, _work: object) -> None:
        """Handle the requests for which the worker is done, in their order."""
        while self._requests and (work := self._requests[0].work).done():
            request = self._requests[0]
            is_closed = self._closed or work.cancelled()
            if not is_closed and work.exception() is None:
                request.outcomes |= work.result()
                cuts = self._find_cuts(request)
                if cuts:
                    self._begin(request, cuts, 0)
                    return
            self._requests.popleft()
            self._waiting.subtract(request.keys)
            for key in request.keys:
                if not self._waiting[key]:
                    del self._waiting[key]
            # Call it now, so that no other request comes between.
            if is_closed:
                request.callback(asyncio.CancelledError())
            else:
                request.callback(work.exception() or request.outcomes)

    def _find_cuts(self, request: _Waiting) -> list[_Cut]:
        """Return what the worker has to cut of its batches, once."""
        now_ms, cuts = self._clock.now_ms(), []
        for job in request.jobs:
            batch = request.outcomes[job.position]
            if not isinstance(batch, ValidatedBatch):
                continue
            if batch.header.record_count <= IDS_OF_BATCH_MAX:
                known = job.partition.find_cut(batch, now_ms)
                if known:
                    cuts.append(_Cut(job.position, batch, known))
        request.jobs = []
        return cuts

    def close(self) -> None:
        """Abandon the waiting requests. Nothing is appended for them."""
        self._closed = True
        self._executor.shutdown(cancel_futures=True)


def _has_expensive(topics: Sequence[ProduceTopic]) -> bool:
    size = 0
    for topic in topics:
        for _, data in topic.partitions:
            if _is_expensive(data):
                return True
            size += len(data) if data is not None else 0
    return size > INLINE_BYTES_MAX // COMPRESSION_COST


def _is_expensive(data: memoryview | None) -> bool:
    return data is not None and (
        read_low_attributes(data) & COMPRESSION_MASK != 0 or is_large(data, INLINE_BYTES_MAX)
    )


def _may_have_many_ids(data: memoryview, config: LogConfig) -> bool:
    if not config.deduplicates:
        return False
    return int.from_bytes(data[RECORD_COUNT_AT:HEADER_SIZE], "big") > IDS_RECORDS_MAX


def _is_compressed_again(data: memoryview, config: LogConfig) -> bool:
    """Whether the log compresses a batch that comes in another form than it stores."""
    if config.compression_type in ("producer", "uncompressed"):
        return False
    return read_low_attributes(data) & COMPRESSION_MASK != Compression.from_name(
        config.compression_type
    )


def _run(jobs: Sequence[_Job | _Cut], now_ms: int) -> Outcomes:
    """Runs in the worker."""
    return {job.position: job.run(now_ms) for job in jobs}


def _validate(
    data: memoryview, config: LogConfig, now_ms: int, space: memoryview | None = None
) -> ValidatedBatch | AppendRefused:
    try:
        return validate(data, config, now_ms, space)
    except AppendRefused as refused:
        # Its traceback has the records, as long as the request.
        return refused.with_traceback(None)
