"""Queues that outlive their connection: a topic, a share group of the same name, and bindings.

A group that nobody has configured starts at the earliest record and delays records by header. A
group with settings keeps them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import queue_settings
from shoal.kombu.messages import PRIORITY
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.client import Client

log = logging.getLogger("shoal.kombu")

#: The longest delay that brokers allow: 7 days.
DELAY_MAX_MS = 7 * 24 * 3_600_000
#: Temporary queues read an exchange's log from its end on, so it is short. A Celery worker that was
#: disconnected for longer misses commands of remote control.
LOG_CONFIGS = {"retention.ms": "600000", "segment.ms": "600000"}
COMPACTED = {"cleanup.policy": "compact"}
_RESET = "share.auto.offset.reset"


class Queues:
    """The topics and groups of one cluster."""

    def __init__(
        self, client: Client, *, partitions: int = -1, group_configs: Mapping[str, str]
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._group_configs = group_configs
        self._known: set[tuple[str, bool]] = set()

    async def has_topic(self, topic: str) -> bool:
        """Whether a topic exists."""
        try:
            await self._client.cluster.get_topic(topic)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            return False
        return True

    async def make_topic(self, topic: str, configs: Mapping[str, str], partitions: int = 1) -> None:
        """Create a topic unless it exists. Raises `KafkaError`."""
        if await self.has_topic(topic):
            return
        new = NewTopic(topic, partitions, configs=configs)
        created = (await self._client.admin.topics.create([new]))[topic]
        if isinstance(created, KafkaError):
            if created.code is not ErrorCode.topic_already_exists:
                raise created
            await self._client.admin.topics.describe([topic])

    async def declare(self, topic: str, *, has_priorities: bool) -> None:
        """Create the topic and configure the group of a queue, as far as they are missing."""
        if (topic, has_priorities) in self._known:
            return
        await self.make_topic(topic, {}, self._partitions)
        await self._configure(topic, has_priorities=has_priorities)
        self._known.add((topic, has_priorities))

    async def _configure(self, group: str, *, has_priorities: bool) -> None:
        desired = {_RESET: "earliest", "share.delay.max.ms": str(DELAY_MAX_MS)}
        if has_priorities:
            desired["share.priority.header"] = PRIORITY
        desired |= self._group_configs
        admin, resource = self._client.admin, queue_settings.make_group(group)
        try:
            present = await queue_settings.read_configs(admin, resource)
        except ClientError:
            present = {}
        for name, value in queue_settings.find_unset(present, desired).items():
            try:
                await queue_settings.set_configs(admin, resource, {name: value})
            except ClientError as error:
                log.warning(
                    "share group %s has no %s=%s: %s. Set it with `shoal configs set group %s"
                    " %s=%s`.%s",
                    *(group, name, value, error, group, name, value),
                    " Tasks that were sent before the first worker started are lost."
                    if name == _RESET
                    else "",
                )

    async def count(self, topic: str) -> int:
        """Return the number of records without an outcome: waiting, delayed or in flight."""
        group_offsets = (await self._client.admin.share_groups.offsets([topic]))[topic]
        lags = (
            {}
            if isinstance(group_offsets, KafkaError)
            else {
                place: offset.lag
                for place, offset in group_offsets.items()
                if place.topic == topic and not isinstance(offset, KafkaError) and offset.lag >= 0
            }
        )
        try:
            places = await self._list_partitions(topic)
        except KafkaError:
            return 0
        # Nobody has read these yet.
        unread = [place for place in places if place not in lags]
        bounds = [
            await self._client.admin.topics.offsets(dict.fromkeys(unread, int(spec)))
            for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        ]
        first, end = (expect(offsets) for offsets in bounds)
        return sum(lags.values()) + sum(end[p].offset - first[p].offset for p in unread)

    async def purge(self, topic: str) -> int:
        """Delete all records of a queue; return their number."""
        count = await self.count(topic)
        places = await self._list_partitions(topic)
        expect(await self._client.admin.topics.delete_records(dict.fromkeys(places, -1)))
        return count

    async def delete(self, topic: str) -> None:
        """Delete the topic of a queue, and its group unless that has members."""
        self._known -= {(topic, True), (topic, False)}
        error = (await self._client.admin.topics.delete([topic]))[topic]
        if error is not None and error.code is not ErrorCode.unknown_topic_or_partition:
            raise error
        await self._client.admin.groups.delete([topic])

    async def _list_partitions(self, topic: str) -> list[TopicPartition]:
        partitions = (await self._client.cluster.get_topic(topic)).partitions
        return [TopicPartition(topic, partition.index) for partition in partitions]
