"""OffsetCommit: commit offsets of a group; by topic id since version 10 (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.offsets import CommitRequest, PartitionCommit, TopicCommit
from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import mapped

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shoal.metadata.image import MetadataImage, TopicImage
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

TOPIC_IDS_SINCE = 10
Row = dict[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    rows: list[Row] = []
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
        rows.append(
            {
                "name": getattr(asked, "name", ""),
                "topic_id": getattr(asked, "topic_id", None),
                "partitions": [{"partition_index": p, "error_code": missing} for p in refused],
            }
        )
        taken = [_partition(p) for p in asked.partitions if p.partition_index in known]
        if topic is not None and taken:
            commits.append(TopicCommit(topic.name, topic.topic_id, taken))
    if not commits:
        return {"topics": rows}
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
    return mapped(reply, lambda response: _merged(rows, response["topics"]))


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
    )


def _merged(rows: list[Row], answered: list[Mapping[str, Any]]) -> Body:
    """Add the shard's results to the topics with refused partitions."""
    by_topic: dict[tuple[str, UUID | None], Row] = {}
    for row in rows:
        by_topic[(row["name"], None)] = by_topic[("", row["topic_id"])] = row
    for topic in answered:
        row = by_topic.get((topic["name"], None)) or by_topic[("", topic["topic_id"])]
        row["partitions"] += topic["partitions"]
    return {"topics": rows}


def refuse(request: Request, error: ErrorCode, _message: str | None) -> Body:
    return {
        "topics": [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    {"partition_index": p.partition_index, "error_code": error}
                    for p in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }
