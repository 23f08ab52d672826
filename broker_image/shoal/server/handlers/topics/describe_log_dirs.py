"""DescribeLogDirs: the data directory, and the sizes of its partitions and volume (KIP-113,
KIP-827)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import cluster as responses
    from shoal.replication.partition import Partition
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

_UNKNOWN_BYTES = -1


def handle(broker: Broker, request: Request) -> responses.DescribeLogDirsResponse:
    topics: dict[str, list[responses.DescribeLogDirsPartition]] = {}
    for partition in _list_requested(broker, request.body.topics):
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.index,
                "partition_size": partition.log.size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
        )
    directory = broker.directory
    try:
        total, usable = directory.storage.get_free_bytes(directory.path)
        # The limit of the logs is the size of the disk for its users.
        limit = broker.log_maintenance.size_max_bytes
        usable = min(usable, max(0, limit - broker.log_maintenance.compute_size_bytes()))
        total = min(total, limit)
    except OSError:
        total = usable = _UNKNOWN_BYTES
    fails = broker.get_unhealthy_reason() is not None or broker.get_disk_trouble() is not None
    result: responses.DescribeLogDirsResult = {
        "error_code": ErrorCode.kafka_storage_error if fails else ErrorCode.none,
        "log_dir": directory.path,
        "topics": [
            {"name": name, "partitions": results} for name, results in sorted(topics.items())
        ],
        "total_bytes": total,
        "usable_bytes": usable,
        "is_cordoned": bool(broker.registration.list_cordoned(broker.image)),
    }
    return {"error_code": ErrorCode.none, "results": [result]}


def _list_requested(broker: Broker, topics: Any) -> list[Partition]:
    """The requested partitions on this broker, each once; all of them for None."""
    if topics is None:
        return list(broker.partitions)
    keys = dict.fromkeys((t.topic, index) for t in topics for index in t.partitions)
    partitions = [broker.partitions.find_by_name(topic, index) for topic, index in keys]
    return [partition for partition in partitions if partition is not None]


def refuse(
    _request: Request, code: ErrorCode, _message: str | None
) -> responses.DescribeLogDirsResponse:
    """The error of the whole request. Before version 3, the response is only empty."""
    return {"error_code": code, "results": []}
