"""Keys that dead-lettered records of a share group hold, as read from the log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError
from shoal.record.batch import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from shoal.client.consume.fetcher import FetchedBatches
    from shoal.client.net.cluster import TopicPartition
    from shoal.client.queues.lag import Position

#: Number of records whose keys are read. Of the others only the offset is shown.
KEYS_MAX = 100


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A dead-lettered record that holds its key. `key` is None if it was not or cannot be read."""

    partition: TopicPartition
    offset: int
    key: bytes | None = None

    def to_row(self) -> dict[str, object]:
        """Return the row for the output."""
        key = None if self.key is None else self.key.decode(errors="replace")
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "offset": self.offset,
            "key": key,
        }


async def find_held_keys(
    client: Client, positions: Iterable[Position], *, keys_max: int = KEYS_MAX
) -> list[HeldKey]:
    """Return the held keys of a share group, in log order."""
    places = [
        (position.partition, offset)
        for position in positions
        for first, last in position.key_holder_offsets
        for offset in range(first, last + 1)
    ]
    return [
        HeldKey(
            partition,
            offset,
            await _read_key(client, partition, offset) if index < keys_max else None,
        )
        for index, (partition, offset) in enumerate(places)
    ]


async def _read_key(client: Client, partition: TopicPartition, offset: int) -> bytes | None:
    try:
        for fetched in await client.fetch_range(
            partition.topic, partition.partition, offset, offset
        ):
            # In a thread: the record may be in a batch that expands to much.
            return await asyncio.to_thread(_find_key, fetched)
    except (ClientError, CorruptBatch):
        pass  # The record is deleted or unreadable: show its offset without the key.
    return None


def _find_key(fetched: FetchedBatches) -> bytes | None:
    return next((record.key for record in fetched.records()), None)
