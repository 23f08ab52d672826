"""Searches a log for a record by timestamp, one step in each turn of the event loop.

A batch that expands to more than a turn may take is read in the thread for large batches.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from shoal.log.search import find_in_batch
from shoal.record.batch import read_header
from shoal.record.compression import OutputFull

if TYPE_CHECKING:
    from shoal.log.log import Log
    from shoal.log.search import TimestampOffset
    from shoal.server.record_worker import RecordWorker

#: What a turn of the event loop expands and looks through, in bytes and in records.
TURN_BYTES_MAX, TURN_RECORDS_MAX = 256 << 10, 5_000


async def find_since(
    worker: RecordWorker, log: Log, timestamp_ms: int, max_offset: int | None
) -> TimestampOffset | None:
    """Return the first record on the disk below `max_offset` that has reached `timestamp_ms`.

    Raises `OSError`, `LogOffline`, `CorruptBatch`.
    """
    next_offset: int | None = 0
    while next_offset is not None:
        await asyncio.sleep(0)
        next_offset, batch = log.search(timestamp_ms, next_offset, max_offset)
        if batch:
            result = await _look_into(worker, batch, timestamp_ms, log.log_start_offset)
            if result is not None:
                return result if max_offset is None or result.offset < max_offset else None
    return None


async def _look_into(
    worker: RecordWorker, batch: bytes, timestamp_ms: int, start: int
) -> TimestampOffset | None:
    if read_header(batch).record_count <= TURN_RECORDS_MAX:
        try:
            return find_in_batch(batch, timestamp_ms, start, bytes_max=TURN_BYTES_MAX)
        except OutputFull:
            pass
    return await worker.submit(partial(find_in_batch, batch, timestamp_ms, start))
