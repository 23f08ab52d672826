"""DescribeProducers: the active idempotent producers of partitions (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata import names
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import absence

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _result(broker, topic.name, i, permits(topic.name))
                    for i in topic.partition_indexes
                ],
            }
            for topic in request.body.topics
        ]
    }


def _result(broker: Broker, topic: str, index: int, permitted: bool) -> dict[str, Any]:
    partition = broker.partitions.by_name(topic, index)
    result: dict[str, Any] = {"partition_index": index, "error_code": ErrorCode.none}
    if not permitted:
        return result | {"error_code": ErrorCode.topic_authorization_failed}
    if partition is None:
        code, _ = absence(broker.image, topic, None, index)
        if names.invalid_topic(topic):
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
