"""Keys that dead-lettered records of a share group hold: which, and the keys as they stand in the
log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.cli.lag import Position
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.errors import ClientError

#: Records whose keys are looked up; of the others only the offset is told.
KEYS_MAX = 100


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A dead-lettered record that holds its key; None for a key that was not, or can't be, read."""

    where: TopicPartition
    offset: int
    key: bytes | None = None

    def row(self) -> dict[str, object]:
        """As it is printed."""
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
    """What a share group's dead-lettered records hold, in the order of the log."""
    places = [
        (one.where, offset)
        for one in positions
        for first, last in one.held
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
        pass  # It is gone, or may not be read: its offset is told all the same.
    return None
