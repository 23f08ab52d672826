"""OffsetCommit: commit offsets of a group; by topic id since version 10 (KIP-848)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.coordinator.group import individual_commit
from shoal.coordinator.group.offsets import CommitRequest, PartitionCommit, TopicCommit
from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization, individual_commits
from shoal.server.network.responses import mapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

TOPIC_IDS_SINCE = 10
Result = dict[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    results: list[Result] = []
    commits: list[TopicCommit] = []
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    by_id = request.version >= TOPIC_IDS_SINCE
    for asked in body.topics:
        topic, missing = find_topic(broker.image, asked, by_id)
        name = asked.name if not by_id else "" if topic is None else topic.name
        if name and not permits(name):
            topic, missing = None, ErrorCode.topic_authorization_failed
        known = range(len(topic.partitions)) if topic is not None else range(0)
        refused = [p.partition_index for p in asked.partitions if p.partition_index not in known]
        results.append(
            {
                "name": getattr(asked, "name", ""),
                "topic_id": getattr(asked, "topic_id", None),
                "partitions": [{"partition_index": p, "error_code": missing} for p in refused],
            }
        )
        taken = [_partition(p) for p in asked.partitions if p.partition_index in known]
        if topic is not None and taken:
            commits.append(TopicCommit(topic.name, topic.topic_id, taken))
    if individual_commits.contained(commits):
        return asyncio.ensure_future(_commit_individually(broker, request, results, commits))
    return _commit(broker, request, results, commits)


async def _commit_individually(
    broker: Broker, request: Request, results: list[Result], commits: list[TopicCommit]
) -> Body:
    taken, refused = await individual_commits.within_log(broker, commits)
    by_id = {topic.name: topic.topic_id for topic in commits}
    answered = [
        {"name": name, "topic_id": by_id[name], "partitions": found}
        for name, found in refused.items()
    ]
    return await individual_commits.settled(
        _commit(broker, request, _merged(results, answered), taken)
    )


def _commit(
    broker: Broker, request: Request, results: list[Result], commits: list[TopicCommit]
) -> Answer:
    if not commits:
        return {"topics": results}
    body = request.body
    commit = CommitRequest(
        body.group_id,
        body.member_id,
        getattr(body, "group_instance_id", None),
        body.generation_id_or_member_epoch,
        commits,
        request.version,
        codec.ms(body.retention_time) if request.version < 5 else -1,
    )
    reply = broker.groups.submit(
        body.group_id, lambda shard, now_ms, token: shard.offsets.commit(commit, now_ms, token)
    )
    return mapped(reply, lambda response: {"topics": _merged(results, response["topics"])})


def find_topic(
    image: MetadataImage, asked: Any, by_id: bool
) -> tuple[TopicImage | None, ErrorCode]:
    """The topic of a request, and the error of partitions that do not exist."""
    topic = image.topic_by_id(asked.topic_id) if by_id else image.topics.get(asked.name)
    if topic is None and by_id:
        return None, ErrorCode.unknown_topic_id
    return topic, ErrorCode.unknown_topic_or_partition


def _partition(asked: Any) -> PartitionCommit:
    return PartitionCommit(
        asked.partition_index,
        asked.committed_offset,
        getattr(asked, "committed_leader_epoch", -1),
        asked.committed_metadata,
        individual_commit.ranges_of(asked),
    )


def _merged(results: list[Result], answered: Sequence[Mapping[str, Any]]) -> list[Result]:
    """Add the shard's results to the topics with refused partitions."""
    by_topic: dict[tuple[str, UUID | None], Result] = {}
    for result in results:
        by_topic[(result["name"], None)] = by_topic[("", result["topic_id"])] = result
    for topic in answered:
        result = by_topic.get((topic["name"], None)) or by_topic[("", topic["topic_id"])]
        result["partitions"] += topic["partitions"]
    return results


def refuse(request: Request, error: ErrorCode, message: str | None) -> Body:
    return {
        "topics": [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    individual_commits.refused_row(p, error, message) for p in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
