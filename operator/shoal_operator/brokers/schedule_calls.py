"""The operator's calls of QueueSchedules: the records of ticks, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.net.cluster import TopicPartition
from shoal.schedules import producing

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Mapping
    from typing import Any

    from shoal.client.client import Client
    from shoal.client.produce.producer import RecordMetadata
    from shoal.schedules.specs import Schedule


class ScheduleCalls:
    """Calls of one connection; `count` is called with the name of each API."""

    def __init__(self, client: Client, count: Callable[[str], None]) -> None:
        self._client, self._count = client, count

    async def read_window_ms(self, topic: str) -> int | None:
        """Return for how long a topic knows the ids of its records, 0 if it deduplicates none, None
        if that is unknown. Raises `ClientError`."""
        self._count("DescribeConfigs")
        return await producing.read_window_ms(self._client, topic)

    async def is_unfinished(self, group: str, record: Mapping[str, Any]) -> bool:
        """Return whether a share group has still to complete a record of `status.lastRecord`.
        Raises `ClientError`."""
        self._count("DescribeShareGroupOffsets")
        partition = TopicPartition(record["topic"], record["partition"])
        return await producing.is_unfinished(self._client, group, partition, record["offset"])

    async def cancel(self, group: str, record: Mapping[str, Any], user: Client | None) -> bool:
        """Cancel a record of `status.lastRecord` for a share group, as `user` if that is not None.
        Return False if the group has not begun to read. Raises `ClientError`."""
        self._count("AlterShareGroupOffsets")
        partition = TopicPartition(record["topic"], record["partition"])
        return await producing.cancel(user or self._client, group, partition, record["offset"])

    async def produce(
        self,
        schedule: Schedule,
        tick: datetime.datetime,
        payload: bytes | None,
        user: Client | None,
    ) -> RecordMetadata:
        """Produce the record of a tick, as `user` if that is not None. Raises `ClientError`."""
        self._count("Produce")
        return await producing.produce(user or self._client, schedule, tick, payload)
