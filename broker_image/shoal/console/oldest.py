"""Timestamps of the records at the start offsets of share groups.

The record at an offset does not change, so each is read once. One fetch returns its whole batch:
`READS_MAX` bounds the fetches of a round.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.client.batches import CorruptRecords
from shoal.client.errors import ClientError, transient
from shoal.record.batch import CorruptBatch, headers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from shoal.client.cluster import TopicPartition
    from shoal.client.fetcher import Fetched

Place = tuple["TopicPartition", int]
READS_MAX = 48
READS_AT_ONCE = 8
#: Milliseconds for one fetch.
TIMEOUT_MS = 1_000
#: A larger batch is not decoded: the timestamp is that of its first record.
DECODED_BYTES_MAX = 1 << 18


class OldestRecords:
    """Timestamps in epoch milliseconds by partition and offset."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[Place, int | None] = {}

    async def read(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the known timestamps of these places, after reading some of the unknown ones."""
        wanted = dict.fromkeys(places)
        known = {place: self._known[place] for place in wanted if place in self._known}
        missing = [place for place in wanted if place not in known][:READS_MAX]
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def one(place: Place) -> None:
            async with limit:
                try:
                    known[place] = await self._timestamp(*place)
                except ClientError as error:
                    # A partition without a leader is read in a later round. Of a record that is
                    # deleted, or that the client may not read, the age is unknown.
                    if not transient(error):
                        known[place] = None

        await asyncio.gather(*map(one, missing))
        self._known = known
        return {place: at_ms for place, at_ms in known.items() if at_ms is not None}

    async def _timestamp(self, where: TopicPartition, offset: int) -> int | None:
        found = self._client.fetcher.range(
            *where, offset, offset, chunk_bytes=1, timeout_ms=TIMEOUT_MS
        )
        try:
            async for fetched in found:
                return _first(fetched, offset)
        except (CorruptBatch, CorruptRecords):
            pass
        return None


def _first(fetched: Fetched, offset: int) -> int | None:
    """Return the timestamp of the first record at or after an offset."""
    for _, header in headers(fetched.data):
        if header.next_offset <= offset:
            continue
        if header.size > DECODED_BYTES_MAX:
            return header.base_timestamp
        for record in fetched.records():
            return record.timestamp_ms
    return None
