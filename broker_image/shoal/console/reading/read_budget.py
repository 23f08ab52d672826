"""Read records for one page in bounded memory: what batches expand to is charged, not their size.

A batch of some kilobytes may expand to many megabytes, and a page reads many batches. So each page
has one `PageReadBudget`. It ends once batches have expanded to `EXPANDED_BYTES_MAX`, leaves out a
batch that alone expands to more than `BATCH_BYTES_MAX`, and expands in a worker thread. Whatever a
page keeps of records is therefore less than the sum of both. Headers are charged apart, because a
header of two bytes takes as long as a large one. A page that is at work for `TURN_S` lets others
have the event loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from shoal.client.net.batches import CorruptRecords
from shoal.record.batch import CorruptBatch, TimestampType, check_crc, iter_headers
from shoal.record.records import (
    Record,
    count_headers,
    decompress_records,
    iter_spans,
    read_headers,
    read_key,
    read_value,
    wrap_int64,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal.client.consume.fetcher import FetchedBatches
    from shoal.record.batch import BatchHeader
    from shoal.record.records import RecordHeaders, Span

#: Bytes to which the batches of one page may expand before it ends, and those of one batch.
EXPANDED_BYTES_MAX, BATCH_BYTES_MAX = 64 << 20, 32 << 20
#: Records that one page reads.
RECORDS_MAX = 20_000
#: Headers of one page, and of one record, with their bytes. A record with more is read without any.
PAGE_HEADERS_MAX, HEADERS_MAX, HEADERS_BYTES_MAX = 200_000, 1_000, 64 << 10
#: Seconds of one turn of the event loop.
TURN_S = 0.005
#: Pages of one console that read records at a time. The others wait.
PAGES_MAX = 2


@dataclass(slots=True)
class PageReadBudget:
    """The budget of one page, and what it could not read. `ends_at_s` is when it ends, by
    `time.monotonic`.

    `stopped_at` is the offset at which the last call of `records` stopped; None if it read on to
    the end. `left_out` are the batches that expand to too much, PARTITION@OFFSET.
    """

    records_left: int = RECORDS_MAX
    bytes_left: int = EXPANDED_BYTES_MAX
    headers_left: int = PAGE_HEADERS_MAX
    ends_at_s: float = inf
    stopped_at: int | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.is_out_of_bytes or self._is_out_of_records

    @property
    def _is_out_of_records(self) -> bool:
        # However late it is, a page reads something, so that the next one goes on from there.
        is_late = self.records_left < RECORDS_MAX and time.monotonic() > self.ends_at_s
        return is_late or self.records_left <= 0 or self.headers_left <= 0

    @property
    def is_out_of_bytes(self) -> bool:
        """Whether the page ended because of what its batches expand to."""
        return self.bytes_left <= 0

    async def iterate_records(self, fetched: FetchedBatches) -> AsyncIterator[Record]:
        """Yield the requested records up to the budget's end, without control records.

        Raises `CorruptRecords` for a wrong CRC.
        """
        self.stopped_at = None
        last = fetched.next_offset if fetched.last is None else fetched.last
        turn_ends_s = time.monotonic() + TURN_S
        for position, header in iter_headers(fetched.data):
            if header.is_control or header.last_offset < fetched.first:
                continue
            if header.base_offset > last:
                return
            if self.is_over:
                self.stopped_at = max(fetched.first, header.base_offset)
                return
            body = await self._expand(fetched, position, header)
            self.bytes_left -= len(body)
            for span in iter_spans(body, header.record_count if body else 0):
                offset = header.base_offset + span.offset_delta
                if time.monotonic() > turn_ends_s:
                    await asyncio.sleep(0)
                    turn_ends_s = time.monotonic() + TURN_S
                if not fetched.first <= offset <= last:
                    continue
                if self._is_out_of_records:
                    self.stopped_at = offset
                    return
                self.records_left -= 1
                yield self._make_record(body, header, span)

    async def _expand(self, fetched: FetchedBatches, position: int, header: BatchHeader) -> bytes:
        """Return the records of a batch, nothing if they are too much."""
        if not check_crc(fetched.data, position, header):
            raise CorruptRecords(f"the batch at offset {header.base_offset} has a wrong CRC")
        try:
            return await asyncio.to_thread(
                decompress_records, fetched.data, position, header, bytes_max=BATCH_BYTES_MAX
            )
        except CorruptBatch:
            # Its CRC is right and the broker has validated it, so it is not damaged but large.
            self.left_out.append(f"{fetched.partition}@{header.base_offset}")
            # One that was refused has cost as much as one that was read.
            self.bytes_left -= BATCH_BYTES_MAX
            return b""

    def _make_record(self, body: bytes, header: BatchHeader, span: Span) -> Record:
        append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        return Record(
            header.base_offset + span.offset_delta,
            header.max_timestamp
            if append_time
            else wrap_int64(header.base_timestamp + span.timestamp_delta),
            read_key(body, span),
            read_value(body, span),
            self._make_headers(body, span),
        )

    def _make_headers(self, body: bytes, span: Span) -> RecordHeaders:
        """Return the headers, or one that says why they are not shown."""
        size, count = span.end - span.value_at - max(span.value_size, 0), count_headers(body, span)
        if size > HEADERS_BYTES_MAX:
            return ((f"{size:,} bytes of headers are not shown", None),)
        if count > HEADERS_MAX:
            return ((f"{count:,} headers are not shown", None),)
        self.headers_left -= count
        return read_headers(body, span)
