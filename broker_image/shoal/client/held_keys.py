"""Keys that dead-lettered records of a share group hold, as read from the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from shoal.client.cluster import TopicPartition
    from shoal.client.lag import Position

#: Number of records whose keys are read. Of the others only the offset is shown.
KEYS_MAX = 100


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A dead-lettered record that holds its key. `key` is None if it was not or cannot be read."""

    where: TopicPartition
    offset: int
    key: bytes | None = None

    def row(self) -> dict[str, object]:
        """Return the row for the output."""
        key = None if self.key is None else self.key.decode(errors="replace")
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "offset": self.offset,
            "key": key,
        }


async def held_keys(
    client: Client, positions: Iterable[Position], *, keys_max: int = KEYS_MAX
) -> list[HeldKey]:
    """Return the held keys of a share group, in log order."""
    places = [
        (one.where, offset)
        for one in positions
        for first, last in one.key_holder_offsets
        for offset in range(first, last + 1)
    ]
    return [
        HeldKey(where, offset, await _key(client, where, offset) if at < keys_max else None)
        for at, (where, offset) in enumerate(places)
    ]


async def _key(client: Client, where: TopicPartition, offset: int) -> bytes | None:
    try:
        for fetched in await client.fetch_range(where.topic, where.partition, offset, offset):
            for record in fetched.records():
                return record.key
    except ClientError:
        pass  # The record is deleted or unreadable: show its offset without the key.
    return None
