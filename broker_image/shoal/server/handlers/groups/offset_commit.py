"""OffsetCommit: commit offsets of a group; by topic id since version 10 (KIP-848)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.handlers.groups import individual_commits
from shoal.server.network.responses import map_reply

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

TOPIC_IDS_SINCE = 10


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.OffsetCommitResponse]:
    body = request.body
    results: list[responses.OffsetCommitResponseTopic] = []
    commits: list[TopicCommit] = []
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    by_id = request.version >= TOPIC_IDS_SINCE
    for requested in body.topics:
        topic, missing = find_topic(broker.image, requested, by_id)
        name = requested.name if not by_id else "" if topic is None else topic.name
        if name and not permits(name):
            topic, missing = None, ErrorCode.topic_authorization_failed
        indexes = range(len(topic.partitions)) if topic is not None else range(0)
        refused = [
            p.partition_index for p in requested.partitions if p.partition_index not in indexes
        ]
        results.append(
            {
                "name": getattr(requested, "name", ""),
                "topic_id": getattr(requested, "topic_id", None),
                "partitions": [{"partition_index": p, "error_code": missing} for p in refused],
            }
        )
        accepted = [
            _parse_partition(p) for p in requested.partitions if p.partition_index in indexes
        ]
        if topic is not None and accepted:
            commits.append(TopicCommit(topic.name, topic.topic_id, accepted))
    if individual_commits.has_key_ranges(commits):
        return asyncio.ensure_future(_commit_individually(broker, request, results, commits))
    return _commit(broker, request, results, commits)


async def _commit_individually(
    broker: Broker,
    request: Request,
    results: list[responses.OffsetCommitResponseTopic],
    commits: list[TopicCommit],
) -> responses.OffsetCommitResponse:
    accepted, refused = await individual_commits.filter_within_log(broker, commits)
    by_id = {topic.name: topic.topic_id for topic in commits}
    answered: list[responses.OffsetCommitResponseTopic] = [
        {"name": name, "topic_id": by_id[name], "partitions": partitions}
        for name, partitions in refused.items()
    ]
    return await individual_commits.await_body(
        _commit(broker, request, _merge_results(results, answered), accepted)
    )


def _commit(
    broker: Broker,
    request: Request,
    results: list[responses.OffsetCommitResponseTopic],
    commits: list[TopicCommit],
) -> BodyOrFuture[responses.OffsetCommitResponse]:
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
        codec.to_ms(body.retention_time) if request.version < 5 else -1,
    )
    reply = broker.groups.submit(
        body.group_id, lambda shard, now_ms, token: shard.offsets.commit(commit, now_ms, token)
    )

    def respond(response: responses.OffsetCommitResponse) -> responses.OffsetCommitResponse:
        return {"topics": _merge_results(results, response["topics"])}

    return map_reply(reply, respond)


def find_topic(
    image: MetadataImage, requested: Any, by_id: bool
) -> tuple[TopicImage | None, ErrorCode]:
    """The topic of a request, and the error of partitions that do not exist."""
    topic = (
        image.find_topic_by_id(requested.topic_id) if by_id else image.topics.get(requested.name)
    )
    if topic is None and by_id:
        return None, ErrorCode.unknown_topic_id
    return topic, ErrorCode.unknown_topic_or_partition


def _parse_partition(partition: Any) -> PartitionCommit:
    return PartitionCommit(
        partition.partition_index,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
        individual_commit.parse_key_ranges(partition),
    )


def _merge_results(
    results: list[responses.OffsetCommitResponseTopic],
    answered: Sequence[responses.OffsetCommitResponseTopic],
) -> list[responses.OffsetCommitResponseTopic]:
    """Add the shard's results to the topics with refused partitions."""
    by_topic: dict[tuple[str, UUID | None], responses.OffsetCommitResponseTopic] = {}
    for result in results:
        by_topic[(result["name"], None)] = by_topic[("", result["topic_id"])] = result
    for topic in answered:
        result = by_topic.get((topic["name"], None)) or by_topic[("", topic["topic_id"])]
        result["partitions"] = [*result["partitions"], *topic["partitions"]]
    return results


def refuse(
    request: Request, error: ErrorCode, message: str | None
) -> responses.OffsetCommitResponse:
    return {
        "topics": [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    individual_commits.build_refused_result(p, error, message)
                    for p in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
