"""DescribeLogDirs: the data directory, and the sizes of its partitions and volume (KIP-113,
KIP-827)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.replication.partition import Partition
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

_UNKNOWN_BYTES = -1


def handle(broker: Broker, request: Request) -> Answer:
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition in _asked(broker, request.body.topics):
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
        total, usable = directory.storage.free_bytes(directory.path)
        # The limit of the logs is the size of the disk for its users.
        limit = broker.log_maintenance.size_max_bytes
        usable = min(usable, max(0, limit - broker.log_maintenance.size_bytes()))
        total = min(total, limit)
    except OSError:
        total = usable = _UNKNOWN_BYTES
    fails = broker.unhealthy() is not None or broker.disk_trouble() is not None
    result = {
        "error_code": ErrorCode.kafka_storage_error if fails else ErrorCode.none,
        "log_dir": directory.path,
        "topics": [
            {"name": name, "partitions": results} for name, results in sorted(topics.items())
        ],
        "total_bytes": total,
        "usable_bytes": usable,
    }
    return {"error_code": ErrorCode.none, "results": [result]}


def _asked(broker: Broker, topics: Any) -> list[Partition]:
    """The requested partitions on this broker; all of them for None."""
    if topics is None:
        return list(broker.partitions)
    found = [broker.partitions.by_name(t.topic, index) for t in topics for index in t.partitions]
    return [partition for partition in found if partition is not None]


def refuse(_request: Request, code: ErrorCode, _message: str | None) -> dict[str, Any]:
    """The error of the whole request. Before version 3, the response is only empty."""
    return {"error_code": code, "results": []}
