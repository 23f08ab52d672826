"""The ends of partitions that other brokers may lead, for handlers of groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError
from shoal.protocol.api import ApiKey
from shoal.server.handlers.records.list_offsets import LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.metadata.image import TopicImage
    from shoal.server.broker import Broker


async def fetch_high_watermarks(
    broker: Broker, topic: TopicImage, indexes: Iterable[int]
) -> dict[int, int]:
    """Return the high watermarks of a topic's partitions, as their leaders have them. Partitions
    whose leader does not answer, or does not have it yet (KIP-207), are left out."""
    ends: dict[int, int] = {}
    elsewhere: dict[int, list[int]] = {}
    for index in indexes:
        partition = broker.partitions.get(topic.topic_id, index)
        if partition is not None and partition.is_leader:
            if not partition.is_behind:
                ends[index] = partition.high_watermark
        elif 0 <= index < len(topic.partitions) and topic.partitions[index].leader >= 0:
            elsewhere.setdefault(topic.partitions[index].leader, []).append(index)
    requests = (
        _ask(broker, leader, topic.name, leader_indexes)
        for leader, leader_indexes in elsewhere.items()
    )
    for offsets in await asyncio.gather(*requests):
        ends |= offsets
    return ends


async def _ask(broker: Broker, leader: int, topic: str, indexes: list[int]) -> dict[int, int]:
    partitions = [{"partition_index": index, "timestamp": LATEST} for index in indexes]
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": partitions}]}
    try:
        answer = await broker.peers.request(leader, ApiKey.LIST_OFFSETS, fields)
    except ClientError:
        return {}
    results = answer.topics[0].partitions
    return {result.partition_index: result.offset for result in results if not result.error_code}
