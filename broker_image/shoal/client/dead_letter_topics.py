"""The topics of dead letters, the groups that write them, and the letters in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.cluster import TopicPartition
from shoal.client.configs import Resource, ResourceType
from shoal.client.dead_letters import DeadLetter, parse_dead_letter
from shoal.client.errors import KafkaError, expect
from shoal.client.topics import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from shoal.client.admin import Admin
    from shoal.client.client import Client

#: The config of topics that may hold dead letters, and that of groups which names the topic.
ENABLED = "errors.deadletterqueue.group.enable"
TOPIC = "errors.deadletterqueue.topic.name"


async def dead_letter_topics(admin: Admin) -> dict[str, list[str]]:
    """Return the topics that may hold dead letters, by name, each with the groups that write there.

    Topics and groups whose configs the client may not see are left out.
    """
    topics = await admin.topics.list()
    wanted = [Resource(ResourceType.TOPIC, name) for name in sorted(topics)]
    configs = await admin.configs.describe(wanted, keys=[ENABLED]) if wanted else {}
    enabled = {
        resource.name
        for resource, entries in configs.items()
        if not isinstance(entries, KafkaError)
        and ENABLED in entries
        and entries[ENABLED].value == "true"
    }
    groups = await groups_by_topic(admin, sorted(await admin.groups.list(types=["share"])))
    return {name: groups.get(name, []) for name in sorted(enabled | (groups.keys() & topics))}


async def groups_by_topic(admin: Admin, groups: Iterable[str]) -> dict[str, list[str]]:
    """Return these share groups by the topic of their dead letters, whether or not it exists."""
    wanted = [Resource(ResourceType.GROUP, name) for name in groups]
    configs = await admin.configs.describe(wanted, keys=[TOPIC]) if wanted else {}
    found: dict[str, list[str]] = {}
    for resource, entries in configs.items():
        if not isinstance(entries, KafkaError) and TOPIC in entries:
            if topic := entries[TOPIC].value:
                found.setdefault(topic, []).append(resource.name)
    return found


async def bounds(admin: Admin, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return the start and end offsets of a topic's partitions.

    Raises `KafkaError` if the topic does not exist or a partition has no leader.
    """
    found = expect(await admin.topics.describe([topic]))[topic]
    where = [TopicPartition(topic, p.index) for p in found.partitions]
    starts = expect(await admin.topics.offsets(dict.fromkeys(where, int(OffsetSpec.EARLIEST))))
    ends = expect(await admin.topics.offsets(dict.fromkeys(where, int(OffsetSpec.LATEST))))
    return {one: (starts[one].offset, ends[one].offset) for one in where}


async def letters(client: Client, topic: str) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters that the topic has now, partition by partition."""
    for where, (start, end) in (await bounds(client.admin, topic)).items():
        if start == end:
            continue
        async for fetched in client.fetcher.range(topic, where.partition, start, end - 1):
            for record in fetched.records():
                letter = parse_dead_letter(topic, where.partition, record)
                if letter is not None:
                    yield letter
