"""DescribeProducers: the active idempotent producers of partitions (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import names
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import missing_partition_error

if TYPE_CHECKING:
    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


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
