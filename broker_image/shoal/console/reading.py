"""Read records for one page in bounded memory: what batches expand to is charged, not their size.

A batch of some kilobytes may expand to many megabytes, and a page reads many batches. So each page
has one `Reading`. It ends once batches have expanded to `EXPANDED_BYTES_MAX`, leaves out a batch
that alone expands to more than `BATCH_BYTES_MAX`, and expands in a worker thread. Whatever a page
keeps of records is therefore less than the sum of both.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.client.batches import CorruptRecords
from shoal.record.batch import CorruptBatch, TimestampType, check_crc, headers
from shoal.record.records import (
    Record,
    headers_of,
    key_of,
    records_body,
    spans,
    value_of,
    wrap_int64,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal.client.fetcher import Fetched
    from shoal.record.batch import BatchHeader
    from shoal.record.records import RecordHeaders, Span

#: Bytes to which the batches of one page may expand before it ends, and those of one batch.
EXPANDED_BYTES_MAX, BATCH_BYTES_MAX = 64 << 20, 32 << 20
#: Records that one page reads.
RECORDS_MAX = 20_000
#: Bytes of a record's headers. Small headers take a hundred times their bytes once decoded.
HEADERS_BYTES_MAX = 64 << 10
#: Pages of one console that read records at a time. The others wait.
PAGES_MAX = 2


@dataclass(slots=True)
class Reading:
    """The budget of one page, and what it could not read.

    `stopped_at` is the offset at which the last call of `records` stopped; None if it read on to
    the end. `left_out` are the batches that expand to too much, PARTITION@OFFSET.
    """

    records_left: int = RECORDS_MAX
    bytes_left: int = EXPANDED_BYTES_MAX
    stopped_at: int | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.records_left <= 0 or self.is_out_of_bytes

    @property
    def is_out_of_bytes(self) -> bool:
        """Whether the page ended because of what its batches expand to."""
        return self.bytes_left <= 0

    async def records(self, fetched: Fetched) -> AsyncIterator[Record]:
        """Yield the requested records up to the budget's end, without control records.

        Raises `CorruptRecords` for a wrong CRC.
        """
        self.stopped_at = None
        last = fetched.next_offset if fetched.last is None else fetched.last
        for at, header in headers(fetched.data):
            if header.is_control or header.last_offset < fetched.first:
                continue
            if header.base_offset > last:
                return
            if self.is_over:
                self.stopped_at = max(fetched.first, header.base_offset)
                return
            body = await self._expand(fetched, at, header)
            self.bytes_left -= len(body)
            for span in spans(body, header.record_count if body else 0):
                offset = header.base_offset + span.offset_delta
                if not fetched.first <= offset <= last:
                    continue
                if self.records_left <= 0:
                    self.stopped_at = offset
                    return
                self.records_left -= 1
                yield _record(body, header, span)

    async def _expand(self, fetched: Fetched, at: int, header: BatchHeader) -> bytes:
        """Return the records of a batch, nothing if they are too much."""
        if not check_crc(fetched.data, at, header):
            raise CorruptRecords(f"the batch at offset {header.base_offset} has a wrong CRC")
        try:
            return await asyncio.to_thread(
                records_body, fetched.data, at, header, bytes_max=BATCH_BYTES_MAX
            )
        except CorruptBatch:
            # Its CRC is right and the broker has validated it, so it is not damaged but large.
            self.left_out.append(f"{fetched.partition}@{header.base_offset}")
            # One that was refused has cost as much as one that was read.
            self.bytes_left -= BATCH_BYTES_MAX
            return b""


def _record(body: bytes, header: BatchHeader, span: Span) -> Record:
    append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return Record(
        header.base_offset + span.offset_delta,
        header.max_timestamp
        if append_time
        else wrap_int64(header.base_timestamp + span.timestamp_delta),
        key_of(body, span),
        value_of(body, span),
        _headers(body, span),
    )


def _headers(body: bytes, span: Span) -> RecordHeaders:
    """Return the headers, or one that says why they are not shown."""
    size = span.end - span.value_at - max(span.value_size, 0)
    if size > HEADERS_BYTES_MAX:
        return ((f"{size:,} bytes of headers are not shown", None),)
    return headers_of(body, span)
