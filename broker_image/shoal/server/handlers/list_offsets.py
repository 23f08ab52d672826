"""ListOffsets: the offset of a timestamp, or of a special one like `earliest` (KIP-79, KIP-734,
KIP-405, KIP-1005, KIP-1023).

Without tiered storage the earliest local offset is the log start offset. The response is -1 for
tiered offsets and pending uploads, as in Kafka for a topic without remote storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.log.errors import LogOffline
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch
from shoal.replication.partition import NO_EPOCH, Partition
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import absence

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
#: The first version that has the special timestamp.
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

_NOT_AVAILABLE_SINCE = 5

READ_COMMITTED = 1
NOTHING = (-1, -1, NO_EPOCH)
#: The replica id of a broker or tool that gets the log end offset, not the high watermark.
_DEBUGGING_REPLICA = -2
_Entry = dict[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    committed = getattr(body, "isolation_level", 0) == READ_COMMITTED
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    topics = []
    for topic in body.topics:
        entries: list[_Entry] = []
        for asked in topic.partitions:
            partition = broker.partitions.by_name(topic.name, asked.partition_index)
            if not permits(topic.name):
                entry = _refusal(ErrorCode.topic_authorization_failed)
            elif partition is None:
                entry = _refusal(absence(broker.image, topic.name, None, asked.partition_index)[0])
            else:
                entry = _entry(partition, asked, request.version, committed, body.replica_id)
            entries.append({"partition_index": asked.partition_index, **entry})
        topics.append({"name": topic.name, "partitions": entries})
    return {"topics": topics}


def _entry(
    partition: Partition, asked: Any, version: int, committed: bool, replica_id: int
) -> _Entry:
    code = partition.epoch_error(getattr(asked, "current_leader_epoch", NO_EPOCH))
    if code is not None and replica_id != _DEBUGGING_REPLICA:
        return _refusal(code)
    if asked.timestamp == LATEST and replica_id == -1 and partition.is_behind:
        # A new leader does not have the high watermark of its predecessors yet (KIP-207).
        old = version < _NOT_AVAILABLE_SINCE
        return _refusal(ErrorCode.leader_not_available if old else ErrorCode.offset_not_available)
    if version < _SINCE.get(asked.timestamp, 0) or asked.timestamp < EARLIEST_PENDING_UPLOAD:
        return _refusal(ErrorCode.unsupported_version)
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if replica_id != -1:
        limit = partition.log.log_end_offset
    try:
        timestamp, offset, epoch = _found(partition, asked.timestamp, limit)
    except (OSError, LogOffline, CorruptBatch):
        return _refusal(ErrorCode.kafka_storage_error)
    return {
        "error_code": ErrorCode.none,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _found(partition: Partition, timestamp: int, limit: int) -> tuple[int, int, int]:
    """The (timestamp, offset, leader epoch) of a requested timestamp, below `limit`."""
    log = partition.log
    match timestamp:
        case -1:
            return (-1, limit, partition.leader_epoch)
        case -2:
            return (-1, log.log_start_offset, log.epochs.epoch_of(log.log_start_offset))
        case -4:
            return (-1, log.local_start_offset, log.epochs.epoch_of(log.local_start_offset))
        case -3:
            return log.max_timestamp_offset() or NOTHING
        case -5 | -6:
            return NOTHING
    return log.offset_for_timestamp(timestamp, max_offset=limit) or NOTHING


def _refusal(code: ErrorCode) -> _Entry:
    return {"error_code": code, "timestamp": -1, "offset": -1, "leader_epoch": NO_EPOCH}
