"""The topics of dead letters, the groups that write them, and the letters in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import queue_settings
from shoal.dead_letters.records import DeadLetter, parse_dead_letter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from shoal.client.admin.admin import Admin
    from shoal.client.client import Client

#: The config of topics that may hold dead letters, and that of groups which names the topic.
ENABLED = queue_settings.DEAD_LETTERS_ENABLED
TOPIC = queue_settings.DEAD_LETTER_TOPIC


async def list_dead_letter_topics(admin: Admin) -> dict[str, list[str]]:
    """Return the topics that may hold dead letters, by name, each with the groups that write there.

    Topics and groups whose configs the client may not see are left out.
    """
    topics = await admin.topics.list()
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(topics)]
    configs = await admin.configs.describe(resources, keys=[ENABLED]) if resources else {}
    enabled = {
        resource.name
        for resource, entries in configs.items()
        if not isinstance(entries, KafkaError)
        and ENABLED in entries
        and entries[ENABLED].value == "true"
    }
    groups = await list_groups_by_topic(admin, sorted(await admin.groups.list(types=["share"])))
    return {name: groups.get(name, []) for name in sorted(enabled | (groups.keys() & topics))}


async def may_hold_dead_letters(admin: Admin, topic: str) -> bool:
    """Return whether groups may write dead letters to a topic, or one of them names it.

    True if the client may not see the topic's configs.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    entries = (await admin.configs.describe([resource], keys=[ENABLED]))[resource]
    if isinstance(entries, KafkaError):
        return True
    if ENABLED in entries and entries[ENABLED].value == "true":
        return True
    groups = sorted(await admin.groups.list(types=["share"]))
    return topic in await list_groups_by_topic(admin, groups)


async def list_groups_by_topic(admin: Admin, groups: Iterable[str]) -> dict[str, list[str]]:
    """Return these share groups by the topic of their dead letters, whether or not it exists."""
    resources = [ConfigResource(ConfigResourceType.GROUP, name) for name in groups]
    configs = await admin.configs.describe(resources, keys=[TOPIC]) if resources else {}
    by_topic: dict[str, list[str]] = {}
    for resource, entries in configs.items():
        if not isinstance(entries, KafkaError) and TOPIC in entries:
            if topic := entries[TOPIC].value:
                by_topic.setdefault(topic, []).append(resource.name)
    return by_topic


async def find_bounds(admin: Admin, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return the start and end offsets of a topic's partitions.

    Raises `KafkaError` if the topic does not exist or a partition has no leader.
    """
    description = expect(await admin.topics.describe([topic]))[topic]
    partitions = [TopicPartition(topic, p.index) for p in description.partitions]
    starts = expect(await admin.topics.offsets(dict.fromkeys(partitions, int(OffsetSpec.EARLIEST))))
    ends = expect(await admin.topics.offsets(dict.fromkeys(partitions, int(OffsetSpec.LATEST))))
    return {
        partition: (starts[partition].offset, ends[partition].offset) for partition in partitions
    }


async def read_dead_letters(client: Client, topic: str) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters that the topic has now, partition by partition."""
    for partition, (start, end) in (await find_bounds(client.admin, topic)).items():
        if start == end:
            continue
        async for fetched in client.fetcher.fetch_range(topic, partition.partition, start, end - 1):
            for record in fetched.records():
                letter = parse_dead_letter(topic, partition.partition, record)
                if letter is not None:
                    yield letter
