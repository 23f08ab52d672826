"""DescribeTopicPartitions: topics in pages, with the eligible leader replicas (KIP-966).

Topics are in the order of their names. A page has a limited number of partitions. A cursor names
the first partition of the next page, which may have been deleted since.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.metadata.image import NO_LEADER, MetadataImage, TopicImage
from shoal.metadata.names import find_topic_name_error
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization, authorized_operations
from shoal.server.handlers.topics.metadata import is_internal
from shoal.server.network.pieces import PIECE_ENTRIES

if TYPE_CHECKING:
    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body, image = request.body, broker.image
    if body.cursor is not None and body.cursor.partition_index < 0:
        raise ApiError(
            ErrorCode.invalid_request,
            f"DescribeTopicPartitions cursor partition must be valid: {body.cursor}",
        )
    names = sorted({topic.name for topic in body.topics})
    if len(names) <= PIECE_ENTRIES:
        describes = authorization.make_checker(broker, request, ResourceType.TOPIC)
        return _answer(broker, request, names, set(filter(describes, names or image.topics)))
    request.is_in_pieces = True
    return asyncio.ensure_future(_answer_later(broker, request, names))


async def _answer_later(
    broker: Broker, request: Request, names: list[str]
) -> responses.DescribeTopicPartitionsResponse:
    """Look at the permissions of many names in turns: a refusal is audited."""
    describes = authorization.make_checker(broker, request, ResourceType.TOPIC)
    permitted: set[str] = set()
    for start in range(0, len(names), PIECE_ENTRIES):
        permitted.update(filter(describes, names[start : start + PIECE_ENTRIES]))
        await asyncio.sleep(0)
    return _answer(broker, request, names, permitted)


def _answer(
    broker: Broker, request: Request, names: list[str], permitted: set[str]
) -> responses.DescribeTopicPartitionsResponse:
    """Return the page of the requested `names`, or of all topics, that a client may describe."""
    body, image = request.body, broker.image
    # After the page, as in Kafka, and the same for topics that do not exist.
    refused_names = [name for name in names if name not in permitted]
    first_topic, first = "", 0
    if body.cursor is not None:
        first_topic, first = body.cursor.topic_name, body.cursor.partition_index
    limit = image.broker_config["max.request.partition.size.limit"]
    room = max(1, min(body.response_partition_limit, limit))
    results, cursor = _build_page(image, sorted(permitted), (first_topic, first), room)
    for result in results:
        operations = authorized_operations.get_topic_operations(
            broker, request, result["name"] or ""
        )
        result["topic_authorized_operations"] = operations
    return {
        "topics": results + [_refuse_topic(name) for name in refused_names if name >= first_topic],
        "next_cursor": cursor,
    }


def _build_page(
    image: MetadataImage, topic_names: list[str], begin: tuple[str, int], room: int
) -> tuple[
    list[responses.DescribeTopicPartitionsResponseTopic],
    responses.DescribeTopicPartitionsCursor | None,
]:
    """Return the topics of one page that starts at a topic's partition and has `room` for that many
    partitions, and the cursor of the next page."""
    first_topic, first = begin
    results: list[responses.DescribeTopicPartitionsResponseTopic] = []
    for name in topic_names:
        if name < first_topic:
            continue
        if room <= 0:
            return results, {"topic_name": name, "partition_index": 0}
        topic = image.topics.get(name)
        if topic is None:
            results.append(_build_unknown(name))
            continue
        start = first if name == first_topic else 0
        stop = min(len(topic.partitions), start + room)
        results.append(_build_result(image, topic, start, stop))
        room -= max(0, stop - start)
        if stop < len(topic.partitions):
            return results, {"topic_name": name, "partition_index": stop}
    return results, None


def _refuse_topic(name: str) -> responses.DescribeTopicPartitionsResponseTopic:
    return {"error_code": ErrorCode.topic_authorization_failed, "name": name}


def _build_unknown(name: str) -> responses.DescribeTopicPartitionsResponseTopic:
    invalid = find_topic_name_error(name) is not None
    return {
        "error_code": (
            ErrorCode.invalid_topic_exception if invalid else ErrorCode.unknown_topic_or_partition
        ),
        "name": name,
        "is_internal": is_internal(name),
    }


def _build_result(
    image: MetadataImage, topic: TopicImage, start: int, stop: int
) -> responses.DescribeTopicPartitionsResponseTopic:
    results: list[responses.DescribeTopicPartitionsResponsePartition] = []
    for index in range(start, stop):
        partition = topic.partitions[index]
        leads = partition.leader != NO_LEADER
        results.append(
            {
                "error_code": ErrorCode.none if leads else ErrorCode.leader_not_available,
                "partition_index": index,
                "leader_id": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "eligible_leader_replicas": partition.eligible_leader_replicas,
                "last_known_elr": partition.last_known_elr,
                "offline_replicas": [r for r in partition.replicas if r not in image.running],
            }
        )
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": results,
    }


def refuse(
    request: Request, code: int, _message: str | None
) -> responses.DescribeTopicPartitionsResponse:
    return {"topics": [{"error_code": code, "name": t.name} for t in request.body.topics]}
