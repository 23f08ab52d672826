"""DescribeQuorum: who votes on the metadata and how far each has come (KIP-595, KIP-836, KIP-853).

The quorum is this broker alone, which leads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.names import METADATA_TOPIC
from shoal.protocol.errors import ErrorCode
from shoal.server.api import Answer, Request

if TYPE_CHECKING:
    from shoal.server.broker import Broker


def handle(broker: Broker, request: Request) -> Answer:
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _row(broker, topic.topic_name, partition.partition_index)
                for partition in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    whole = all(p["error_code"] is ErrorCode.none for t in topics for p in t["partitions"])
    return {
        "error_code": ErrorCode.none,
        "topics": topics,
        "nodes": _nodes(broker) if whole else [],
    }


def _row(broker: Broker, topic: str, index: int) -> dict[str, Any]:
    if (topic, index) != (METADATA_TOPIC, 0):
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": f"{METADATA_TOPIC}-0 alone has a quorum",
        }
    now_ms = broker.clock.now_ms()
    end_offset = broker.metadata.log_end_offset
    voter = {
        "replica_id": broker.node_id,
        "replica_directory_id": broker.directory.directory_id,
        "log_end_offset": end_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "leader_id": broker.node_id,
        "leader_epoch": broker.metadata.epoch,
        "high_watermark": end_offset,
        "current_voters": [voter],
        "observers": [],
    }


def _nodes(broker: Broker) -> list[dict[str, Any]]:
    known = broker.image.brokers[broker.node_id]
    return [
        {
            "node_id": broker.node_id,
            "listeners": [
                {"name": e.name, "host": e.host, "port": e.port} for e in known.endpoints
            ],
        }
    ]
