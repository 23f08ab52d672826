"""DescribeProducers: the active idempotent producers of partitions (KIP-664)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.metadata import names
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.api import RemainingRequest
from shoal.server.network.pieces import replace_array
from shoal.server.network.responses import missing_partition_error

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def drop_repeated(_: Broker, request: Request) -> Awaitable[RemainingRequest] | None:
    """Name each partition of a request once; None if it repeats none. The answer has all producers
    of a partition, so that one which is named 20,000 times would fill the memory."""
    topics = request.body.topics
    count = sum(len(topic.partition_indexes) for topic in topics)
    remaining = {(topic.name, index) for topic in topics for index in topic.partition_indexes}
    if len(remaining) == count:
        return None
    request.is_in_pieces = True
    return _name_once(request, remaining)


async def _name_once(request: Request, remaining: set[tuple[str, int]]) -> RemainingRequest:
    topics = []
    for topic in request.body.topics:
        indexes = []
        for index in topic.partition_indexes:
            if (topic.name, index) in remaining:
                remaining.discard((topic.name, index))
                indexes.append(index)
        if indexes or not topic.partition_indexes:
            topics.append(replace_array(topic, "partition_indexes", indexes))
    once = replace_array(request.body, "topics", topics)
    return RemainingRequest(b"", replace(request, body=once), lambda body: body)


def handle(broker: Broker, request: Request) -> responses.DescribeProducersResponse:
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _build_result(broker, topic.name, i, permits(topic.name))
                    for i in topic.partition_indexes
                ],
            }
            for topic in request.body.topics
        ]
    }


def _build_result(
    broker: Broker, topic: str, index: int, permitted: bool
) -> responses.DescribeProducersPartitionResponse:
    partition = broker.partitions.find_by_name(topic, index)
    result: responses.DescribeProducersPartitionResponse = {
        "partition_index": index,
        "error_code": ErrorCode.none,
    }
    if not permitted:
        return result | {"error_code": ErrorCode.topic_authorization_failed}
    if partition is None:
        code, _ = missing_partition_error(broker.image, topic, None, index)
        if names.find_topic_name_error(topic):
            code = ErrorCode.invalid_topic_exception
        return result | {"error_code": code, "error_message": f"{topic}-{index} is not here"}
    if not partition.is_leader:
        return result | {"error_code": ErrorCode.not_leader_or_follower}
    return result | {
        "active_producers": [
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": (
                    -1 if producer.transaction_start is None else producer.transaction_start
                ),
            }
            for producer in partition.log.producers
        ]
    }
