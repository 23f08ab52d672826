"""ListOffsets: the offset of a timestamp, or of a special one like `earliest` (KIP-79, KIP-734,
KIP-405, KIP-1005, KIP-1023).

Without tiered storage the earliest local offset is the log start offset. The response is -1 for
tiered offsets and pending uploads, as in Kafka for a topic without remote storage.

The partitions of a request are searched by timestamp one after the other, each in turns of its own
(`replication.timestamp_search`). With tiered storage a search may have to wait for the object
store, for up to `remote.list.offsets.request.timeout.ms` (KIP-1075). A partition that is named
twice is refused, as in Kafka, so that the work of a request is bounded by the partitions that
exist.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.log.errors import LogOffline
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch
from shoal.replication.partition import NO_EPOCH, Partition
from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization
from shoal.server.network.api import RemainingRequest
from shoal.server.network.pieces import replace_array
from shoal.server.network.responses import missing_partition_error
from shoal.server.replication.timestamp_search import find_since

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.log.log import Log
    from shoal.protocol.responses import logs as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

    _Entry = responses.ListOffsetsPartitionResponse
    _Search = Callable[[], Awaitable[_Entry]]

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


class NamedTwice(NamedTuple):
    """A partition that a request names twice, in the place of its first entry."""

    partition_index: int


def refuse_duplicates(_: Broker, request: Request) -> Awaitable[RemainingRequest] | None:
    """Name the partitions once that a request names twice, so that `handle` refuses them. None if
    there are none."""
    counts = Counter(
        (topic.name, entry.partition_index)
        for topic in request.body.topics
        for entry in topic.partitions
    )
    if len(counts) == counts.total():
        return None
    request.is_in_pieces = True
    return _name_once(request, {partition for partition, count in counts.items() if count > 1})


async def _name_once(request: Request, twice: set[tuple[str, int]]) -> RemainingRequest:
    remaining, topics = set(twice), []
    for topic in request.body.topics:
        entries: list[Any] = []
        for requested in topic.partitions:
            partition = (topic.name, requested.partition_index)
            if partition not in twice:
                entries.append(requested)
            elif partition in remaining:
                entries.append(NamedTwice(requested.partition_index))
                remaining.discard(partition)
        if entries or not topic.partitions:
            topics.append(replace_array(topic, "partitions", entries))
    once = replace_array(request.body, "topics", topics)
    return RemainingRequest(b"", replace(request, body=once), lambda body: body)


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.ListOffsetsResponse]:
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    topics: list[responses.ListOffsetsTopicResponse] = []
    searches: list[tuple[_Entry, _Search]] = []
    for topic in request.body.topics:
        entries: list[_Entry] = []
        for requested in topic.partitions:
            partition = broker.partitions.find_by_name(topic.name, requested.partition_index)
            outcome: _Entry | _Search
            if not permits(topic.name):
                outcome = _build_refusal(ErrorCode.topic_authorization_failed)
            elif isinstance(requested, NamedTwice):
                outcome = _build_refusal(ErrorCode.invalid_request)
            elif partition is None:
                outcome = _build_refusal(
                    missing_partition_error(
                        broker.image, topic.name, None, requested.partition_index
                    )[0]
                )
            else:
                outcome = _build_entry(broker, request, partition, requested)
            entry: _Entry = {"partition_index": requested.partition_index}
            entries.append(entry)
            if callable(outcome):
                searches.append((entry, outcome))
            else:
                entry |= outcome
        topics.append({"name": topic.name, "partitions": entries})
    if not searches:
        return {"topics": topics}
    request.is_in_pieces = True
    return asyncio.ensure_future(_complete({"topics": topics}, searches))


async def _complete(
    body: responses.ListOffsetsResponse, searches: list[tuple[_Entry, _Search]]
) -> responses.ListOffsetsResponse:
    """Complete the entries that need a search."""
    for entry, search in searches:
        await asyncio.sleep(0)
        try:
            entry.update(await search())
        except TimeoutError:
            entry.update(_build_refusal(ErrorCode.request_timed_out))
        except (OSError, LogOffline, CorruptBatch):
            entry.update(_build_refusal(ErrorCode.kafka_storage_error))
    return body


async def _search(broker: Broker, partition: Partition, timestamp: int, limit: int) -> _Entry:
    """Return the entry of a timestamp, or of the largest one. Raises `OSError`, `LogOffline`,
    `CorruptBatch`, and `TimeoutError` if the object store does not answer."""
    log, result, bound = partition.log, None, limit
    if timestamp == MAX_TIMESTAMP:
        timestamp, bound = log.find_max_timestamp(), log.log_end_offset
        if timestamp < 0:
            return _build_success(NOTHING)
    else:
        reader = None if broker.tiered is None else broker.tiered.readers.get(partition.key)
        if reader is not None and log.local_start_offset > log.log_start_offset:
            timeout_ms = broker.image.broker_config["remote.list.offsets.request.timeout.ms"]
            async with asyncio.timeout(timeout_ms / 1000):
                result = await reader.find_since(timestamp, bound)
    if result is None:
        result = await find_since(broker.node.record_worker, log, timestamp, bound)
    return _build_success(result or NOTHING)


def _build_entry(
    broker: Broker, request: Request, partition: Partition, requested: Any
) -> _Entry | _Search:
    """Return the entry of a partition, or the search for it."""
    version, replica_id = request.version, request.body.replica_id
    code = partition.find_epoch_error(getattr(requested, "current_leader_epoch", NO_EPOCH))
    if code is not None and replica_id != _DEBUGGING_REPLICA:
        return _build_refusal(code)
    if requested.timestamp == LATEST and replica_id == -1 and partition.is_behind:
        # A new leader does not have the high watermark of its predecessors yet (KIP-207).
        old = version < _NOT_AVAILABLE_SINCE
        return _build_refusal(
            ErrorCode.leader_not_available if old else ErrorCode.offset_not_available
        )
    if (
        version < _SINCE.get(requested.timestamp, 0)
        or requested.timestamp < EARLIEST_PENDING_UPLOAD
    ):
        return _build_refusal(ErrorCode.unsupported_version)
    committed = getattr(request.body, "isolation_level", 0) == READ_COMMITTED
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if replica_id != -1:
        limit = partition.log.log_end_offset
    if requested.timestamp >= 0 or requested.timestamp == MAX_TIMESTAMP:
        return partial(_search, broker, partition, requested.timestamp, limit)
    return _build_success(_find_special(partition, requested.timestamp, limit))


def _build_success(position: tuple[int, int, int]) -> _Entry:
    timestamp, offset, epoch = position
    return {
        "error_code": ErrorCode.none,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _find_special(partition: Partition, timestamp: int, limit: int) -> tuple[int, int, int]:
    """The (timestamp, offset, leader epoch) of a special timestamp that needs no search."""
    log = partition.log
    match timestamp:
        case -1:
            return (-1, limit, partition.leader_epoch)
        case -2:
            return (-1, log.log_start_offset, log.epochs.find_epoch(log.log_start_offset))
        case -4:
            return (-1, log.local_start_offset, log.epochs.find_epoch(log.local_start_offset))
        case -5:
            return _find_last_tiered(log)
    return _find_first_pending(log)


def _find_last_tiered(log: Log) -> tuple[int, int, int]:
    """The last offset in the object store."""
    if log.remote is None or log.remote.end_offset < 0:
        return NOTHING
    return (-1, log.remote.end_offset, log.epochs.find_epoch(log.remote.end_offset))


def _find_first_pending(log: Log) -> tuple[int, int, int]:
    """The first offset that is still to be copied."""
    if log.remote is None:
        return NOTHING
    if log.remote.end_offset < 0 and log.local_start_offset > log.log_start_offset:
        return NOTHING  # The metadata of remote segments is not read yet.
    offset = max(log.remote.end_offset + 1, log.local_start_offset)
    return (-1, offset, log.epochs.find_epoch(offset))


def _build_refusal(code: ErrorCode) -> _Entry:
    return {"error_code": code, "timestamp": -1, "offset": -1, "leader_epoch": NO_EPOCH}
