"""Produces the records of schedules, finds out whether a share group has completed one, and cancels
it.

The id of a tick is in the record's header, and decides the partition of a record without a key. A
topic that deduplicates answers a second record of a tick with the offset of the first one, as long
as the topic has the same partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import KafkaError
from shoal.client.produce.partitioner import choose_partition
from shoal.protocol.errors import ErrorCode
from shoal.schedules.specs import DEDUPLICATION_WINDOW

if TYPE_CHECKING:
    import datetime

    from shoal.client.client import Client
    from shoal.client.net.cluster import TopicPartition
    from shoal.client.produce.producer import RecordMetadata
    from shoal.schedules.specs import Schedule


async def produce(
    client: Client, schedule: Schedule, tick: datetime.datetime, payload: bytes | None
) -> RecordMetadata:
    """Produce the record of a tick, and return where it is. Raises `ClientError`."""
    of_partition = schedule.build_id(tick).encode() if schedule.key is None else schedule.key
    topic = await client.cluster.get_topic(schedule.topic)
    return await client.put(
        schedule.topic,
        payload,
        key=schedule.key,
        headers=schedule.build_headers(tick),
        partition=choose_partition(of_partition, len(topic.partitions)),
    )


async def read_window_ms(client: Client, topic: str) -> int | None:
    """Return for how long a topic knows the ids of its records, 0 if it deduplicates none, or None
    if this client may not know. Raises `ClientError`, also for a topic that does not exist."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    entries = (await client.admin.configs.describe([resource]))[resource]
    if isinstance(entries, KafkaError):
        if entries.code is ErrorCode.topic_authorization_failed:
            return None
        raise entries
    entry = entries.get(DEDUPLICATION_WINDOW)
    return int(entry.value or 0) if entry is not None else 0


async def is_unfinished(client: Client, group: str, partition: TopicPartition, offset: int) -> bool:
    """Return whether a share group has still to complete the record at this offset.

    A group that does not exist, or does not read the partition yet, has completed nothing. A record
    that the log no longer contains counts as completed. Raises `ClientError`.
    """
    ends = (await client.admin.topics.offsets({partition: int(OffsetSpec.LATEST)}))[partition]
    if isinstance(ends, KafkaError):
        if ends.code is ErrorCode.unknown_topic_or_partition:
            return False
        raise ends
    positions = (await client.admin.share_groups.offsets({group: [partition]}))[group]
    if isinstance(positions, KafkaError):
        raise positions
    position = positions.get(partition)
    if isinstance(position, KafkaError):
        raise position
    if offset >= ends.offset:
        return False
    if position is None or position.start_offset < 0:
        return True
    if position.start_offset > offset:
        return False
    in_flight = await _count_in_flight(client, group, partition, offset)
    if in_flight is None or position.lag < 0:
        return True
    # The records of the lag that are not in flight are unread, and the last ones of the log. The
    # lag was read before, so it has at least as many.
    return offset >= ends.offset - (position.lag - in_flight)


async def cancel(client: Client, group: str, partition: TopicPartition, offset: int) -> bool:
    """Cancel the record at this offset for a share group. Return False if the group has not begun
    to read, so that nothing can be cancelled for it. Raises `ClientError`."""
    asked = {partition: [(offset, offset)]}
    answer = (await client.admin.share_groups.cancel(group, asked))[partition]
    if isinstance(answer, KafkaError):
        if answer.code is ErrorCode.invalid_request:
            return False
        raise answer
    return True


async def _count_in_flight(
    client: Client, group: str, partition: TopicPartition, offset: int
) -> int | None:
    """Return how many records a share group has in flight, None if this one is among them."""
    in_flight = 0
    next_offset: int | None = 0
    while next_offset is not None:
        starts = {partition: next_offset}
        page = (await client.admin.share_groups.in_flight(group, starts))[partition]
        if isinstance(page, KafkaError):
            raise page
        for entry in page.entries:
            if entry.first_offset <= offset <= entry.last_offset:
                return None
            in_flight += entry.last_offset - entry.first_offset + 1
        next_offset = page.next_offset
    return in_flight
