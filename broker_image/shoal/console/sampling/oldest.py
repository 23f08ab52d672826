"""Timestamps of the records at the start offsets of share groups.

The record at an offset does not change, so each is read once. One fetch returns its whole batch:
`READS_MAX` bounds the fetches of a round.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, is_transient
from shoal.client.net.batches import CorruptRecords
from shoal.record.batch import CorruptBatch, TimestampType, iter_headers
from shoal.record.compression import OutputFull
from shoal.record.records import decompress_records, iter_spans, wrap_int64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from shoal.client.consume.fetcher import FetchedBatches
    from shoal.client.net.cluster import TopicPartition

PartitionOffset = tuple["TopicPartition", int]
READS_MAX = 48
READS_AT_ONCE = 8
#: Milliseconds for one fetch.
TIMEOUT_MS = 1_000
#: A batch that expands to more is not decoded: the timestamp is that of its first record.
DECODED_BYTES_MAX = 1 << 18


class OldestRecords:
    """Timestamps in epoch milliseconds by partition and offset."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._timestamps: dict[PartitionOffset, int | None] = {}

    async def read(self, places: Iterable[PartitionOffset]) -> dict[PartitionOffset, int]:
        """Return the known timestamps of these places, after reading some of the unknown ones."""
        unique_places = dict.fromkeys(places)
        timestamps = {
            place: self._timestamps[place] for place in unique_places if place in self._timestamps
        }
        missing = [place for place in unique_places if place not in timestamps][:READS_MAX]
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read_one(place: PartitionOffset) -> None:
            async with limit:
                try:
                    timestamps[place] = await self._read_timestamp(*place)
                except ClientError as error:
                    # A partition without a leader is read in a later round. Of a record that is
                    # deleted, or that the client may not read, the age is unknown.
                    if not is_transient(error):
                        timestamps[place] = None

        await asyncio.gather(*map(read_one, missing))
        self._timestamps = timestamps
        return {place: at_ms for place, at_ms in timestamps.items() if at_ms is not None}

    async def _read_timestamp(self, partition: TopicPartition, offset: int) -> int | None:
        batches = self._client.fetcher.fetch_range(
            *partition, offset, offset, chunk_bytes=1, timeout_ms=TIMEOUT_MS
        )
        try:
            async for fetched in batches:
                return _find_first_timestamp(fetched, offset)
        except (CorruptBatch, CorruptRecords):
            pass
        return None


def _find_first_timestamp(fetched: FetchedBatches, offset: int) -> int | None:
    """Return the timestamp of the first record at or after an offset."""
    for position, header in iter_headers(fetched.data):
        if header.next_offset <= offset or header.is_control:
            continue
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return header.max_timestamp
        try:
            body = decompress_records(fetched.data, position, header, bytes_max=DECODED_BYTES_MAX)
        except OutputFull:
            return header.base_timestamp
        for span in iter_spans(body, header.record_count):
            if header.base_offset + span.offset_delta >= offset:
                return wrap_int64(header.base_timestamp + span.timestamp_delta)
    return None
