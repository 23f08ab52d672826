"""DescribeQuorum: the voters and observers of the metadata quorum, with their log end offsets.

The leader of the quorum answers, since it has the offsets of all replicas (KIP-595, KIP-836,
KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.names import METADATA_TOPIC
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.cluster.quorum import MetadataQuorum, ReplicaState
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> responses.DescribeQuorumResponse:
    topics: list[responses.DescribeQuorumTopicData] = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _build_result(broker.quorum, topic.topic_name, partition.partition_index)
                for partition in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    is_complete = all(p["error_code"] is ErrorCode.none for t in topics for p in t["partitions"])
    return {
        "error_code": ErrorCode.none,
        "topics": topics,
        "nodes": _list_nodes(broker) if is_complete else [],
    }


def _build_result(
    quorum: MetadataQuorum, topic: str, index: int
) -> responses.DescribeQuorumPartitionData:
    if (topic, index) != (METADATA_TOPIC, 0):
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": f"{METADATA_TOPIC}-0 alone has a quorum",
        }
    voters, observers = quorum.get_replica_states()
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "leader_id": quorum.local.id,
        "leader_epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "current_voters": [_build_replica(state) for state in voters],
        "observers": [_build_replica(state) for state in observers],
    }


def _build_replica(state: ReplicaState) -> responses.DescribeQuorumReplicaState:
    return {
        "replica_id": state.key.id,
        "replica_directory_id": state.key.directory_id,
        "log_end_offset": state.log_end_offset,
        "last_fetch_timestamp": state.fetched_ms,
        "last_caught_up_timestamp": state.caught_up_ms,
    }


def _list_nodes(broker: Broker) -> list[responses.DescribeQuorumNode]:
    """The endpoints of the voters."""
    results: list[responses.DescribeQuorumNode] = []
    for voter in broker.quorum.raft.voters.latest:
        endpoints = voter.endpoints
        if voter.key.id == broker.node_id:
            endpoints = broker.registration.get_quorum_endpoints()
        results.append(
            {
                "node_id": voter.key.id,
                "listeners": [{"name": e.name, "host": e.host, "port": e.port} for e in endpoints],
            }
        )
    return results
