"""ListOffsets: the offset of a timestamp, or of a special one like `earliest` (KIP-79, KIP-734,
KIP-405, KIP-1005, KIP-1023).

Without tiered storage the earliest local offset is the log start offset. The response is -1 for
tiered offsets and pending uploads, as in Kafka for a topic without remote storage. With it, a
search by timestamp may have to wait for the object store, for up to
`remote.list.offsets.request.timeout.ms` (KIP-1075).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from shoal.log.errors import LogOffline
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch
from shoal.replication.partition import NO_EPOCH, Partition
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.responses import absence

if TYPE_CHECKING:
    from shoal.log.log import Log
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

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
_Search = Callable[[], Awaitable[dict[str, Any]]]


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    committed = getattr(body, "isolation_level", 0) == READ_COMMITTED
    permits = authorization.each(broker, request, ResourceType.TOPIC)
    topics = []
    remote: list[tuple[_Entry, _Search]] = []
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
            search = entry.get("error_code") is ErrorCode.none and _remote_search(
                broker, partition, asked.timestamp, committed
            )
            if search:
                remote.append((entries[-1], search))
        topics.append({"name": topic.name, "partitions": entries})
    if not remote:
        return {"topics": topics}
    return asyncio.ensure_future(_complete(broker, {"topics": topics}, remote))


def _remote_search(
    broker: Broker, partition: Partition | None, timestamp: int, committed: bool
) -> _Search | None:
    """The search of the part of a log that is not on this disk; None if there is none."""
    tiered = broker.tiered
    if partition is None or tiered is None or timestamp < 0:
        return None
    reader, log = tiered.readers.get(partition.key), partition.log
    if reader is None or log.local_start_offset == log.log_start_offset:
        return None
    limit = partition.last_stable_offset if committed else partition.high_watermark

    async def search() -> _Entry:
        found = await reader.since(timestamp, limit)
        return {} if found is None else _success(found)

    return search


async def _complete(broker: Broker, body: Body, remote: list[tuple[_Entry, _Search]]) -> Body:
    """Replace the entries of records that are in the object store."""
    timeout_ms = broker.image.broker_config["remote.list.offsets.request.timeout.ms"]
    for entry, search in remote:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                entry.update(await search())
        except TimeoutError:
            entry.update(_refusal(ErrorCode.request_timed_out))
        except OSError:
            entry.update(_refusal(ErrorCode.kafka_storage_error))
    return body


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
        found = _found(partition, asked.timestamp, limit)
    except (OSError, LogOffline, CorruptBatch):
        return _refusal(ErrorCode.kafka_storage_error)
    return _success(found)


def _success(found: tuple[int, int, int]) -> _Entry:
    timestamp, offset, epoch = found
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
        case -5:
            return _last_tiered(log)
        case -6:
            return _first_pending(log)
    return log.offset_for_timestamp(timestamp, max_offset=limit) or NOTHING


def _last_tiered(log: Log) -> tuple[int, int, int]:
    """The last offset in the object store."""
    if log.remote is None or log.remote.end_offset < 0:
        return NOTHING
    return (-1, log.remote.end_offset, log.epochs.epoch_of(log.remote.end_offset))


def _first_pending(log: Log) -> tuple[int, int, int]:
    """The first offset that is still to be copied."""
    if log.remote is None:
        return NOTHING
    if log.remote.end_offset < 0 and log.local_start_offset > log.log_start_offset:
        return NOTHING  # The metadata of remote segments is not read yet.
    offset = max(log.remote.end_offset + 1, log.local_start_offset)
    return (-1, offset, log.epochs.epoch_of(offset))


def _refusal(code: ErrorCode) -> _Entry:
    return {"error_code": code, "timestamp": -1, "offset": -1, "leader_epoch": NO_EPOCH}
