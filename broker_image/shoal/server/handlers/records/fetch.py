"""Fetch: whole batches from the requested offsets, without copies from the log's files.

A request that finds less than `min_bytes` waits for appends to its partitions, for an error on one
of them, or for `max_wait`. Records are sent as they are in the log, with `sendfile` if they are
large (`log.slices`, `network.sendfile_writer`). A `read_committed` consumer gets the records below
the last stable offset, and the list of aborted transactions.

A partition may be requested with key ranges (`replication.range_reads`). Then the records of other
ranges are left out, `min_bytes` counts what is left, and the response has the offset from which to
read on, also if it has no records. A request that has looked at as much as it may is answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.protocol.errors import ErrorCode
from shoal.protocol.fetch import TOPIC_IDS_FROM, get_max_wait_ms
from shoal.record.batch import CorruptBatch
from shoal.security.acls import Operation, ResourceType
from shoal.server.authorization import CHANGES
from shoal.server.handlers.records.range_fetch import RangeFetch
from shoal.server.network.responses import list_leader_endpoints, missing_partition_error
from shoal.server.replication import replica_fetch, replica_selector

if TYPE_CHECKING:
    from shoal.replication.partition import Partition
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request
    from shoal.server.network.fetch_sessions import FetchCursor, FetchSession

READ_COMMITTED = 1
#: Partitions that are read in the turn of the request.
TURN_CURSORS_MAX = 5_000
#: The first version whose refusals name the leader (KIP-951).
_LEADERS_FROM = 16
_Entry = dict[str, Any]


def handle(broker: Broker, request: Request) -> Answer:
    replica_id = replica_fetch.get_replica_id(request.body)
    if replica_id >= 0:
        return _handle_follower(broker, request, replica_id)
    now_ms = broker.clock.now_ms()
    session, incremental, cursors = broker.fetch_sessions.begin(
        request.body, request.version, now_ms
    )
    fetch = _ConsumerFetch(broker, request, session, incremental, cursors)
    max_wait_ms = get_max_wait_ms(request.body)
    if not cursors or max_wait_ms <= 0 or fetch.is_satisfied():
        if len(cursors) <= TURN_CURSORS_MAX:
            return fetch.read()
        request.is_in_pieces = True
        return asyncio.ensure_future(_read_later(fetch))
    if fetch.awaits_store:
        max_wait_ms = max(max_wait_ms, broker.image.broker_config["remote.fetch.max.wait.ms"])
    return broker.purgatory.park_fetch(
        keys=fetch.keys,
        attempt=fetch.attempt,
        expire=fetch.read,
        deadline_ms=now_ms + max_wait_ms,
    )


async def _read_later(fetch: _ConsumerFetch) -> Body:
    """Read in the next turn: decoding a request of many partitions takes one of its own."""
    await asyncio.sleep(0)
    return fetch.read()


def _handle_follower(broker: Broker, request: Request, replica_id: int) -> Answer:
    """Fetch for a broker, which needs CLUSTER_ACTION."""
    if not broker.access.enabled:
        return broker.replica_fetches.handle(request, replica_id)

    def check_access() -> Body | None:
        return _refuse_follower(broker, request)

    return check_access() or broker.replica_fetches.handle(request, replica_id, check_access)


def _refuse_follower(broker: Broker, request: Request) -> Body | None:
    """The response to a broker without CLUSTER_ACTION, or None if it has that."""
    if broker.access.allows_cluster(request, Operation.CLUSTER_ACTION):
        return None
    by_id = request.version >= TOPIC_IDS_FROM
    code = ErrorCode.topic_authorization_failed
    topics = [
        {
            "topic": "" if by_id else topic.topic,
            "topic_id": topic.topic_id if by_id else None,
            "partitions": [
                _build_refusal(code) | {"partition_index": p.partition} for p in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    return {"error_code": ErrorCode.none, "session_id": 0, "responses": topics}


class _ConsumerFetch:
    """A request, the partitions that it waits for, and its response."""

    __slots__ = (
        "_allowed",
        "_base_bytes",
        "_broker",
        "_by_id",
        "_committed",
        "_cursors",
        "_generation",
        "_incremental",
        "_leaders",
        "_max_bytes",
        "_min_bytes",
        "_partitions",
        "_rack",
        "_range_fetch",
        "_request",
        "_session",
        "_version",
        "awaits_store",
        "keys",
    )

    def __init__(
        self,
        broker: Broker,
        request: Request,
        session: FetchSession | None,
        incremental: bool,
        cursors: list[FetchCursor],
    ) -> None:
        body = request.body
        self._broker = broker
        self._session = session
        self._incremental = incremental
        self._cursors = cursors
        self._version = request.version
        self._by_id = request.version >= TOPIC_IDS_FROM
        self._committed = body.isolation_level == READ_COMMITTED
        self._request = request
        #: The rack of a client that reads from the closest replica (KIP-392).
        self._rack: str = getattr(body, "rack_id", "")
        self._min_bytes: int = body.min_bytes
        self._max_bytes: int = min(body.max_bytes, broker.image.broker_config["fetch.max.bytes"])
        self._leaders: set[int] | None = None
        room = broker.quotas.compute_fetch_bytes_max(request)
        if room is not None:
            self._max_bytes = min(self._max_bytes, room)
            self._min_bytes = min(self._min_bytes, room)
        #: The changes of permissions that it has seen; None without an authorizer.
        self._generation = broker.access.generation if broker.access.enabled else None
        #: Whether the client may read a topic, by name, as of that generation.
        self._allowed: dict[str, bool] = {}
        self._partitions: list[Partition] = []
        self._base_bytes = 0
        self._range_fetch: RangeFetch | None = None
        #: Whether records have to be downloaded from the object store first.
        self.awaits_store = False
        self.keys: list[Any] = []

    def is_satisfied(self) -> bool:
        """Whether to answer at once. Otherwise sets what the request waits for."""
        self._partitions, self.keys = [], []
        self.awaits_store = False
        find = self._broker.partitions.find
        available = 0
        for cursor in self._cursors if self._generation is None else self._find_permitted():
            partition = find(cursor.name, cursor.topic_id, cursor.index)
            if (
                partition is None
                or self._get_epoch_error(partition, cursor.current_leader_epoch)
                or (
                    cursor.key_ranges is not None
                    and self._ranges.check_partition(partition, cursor)
                )
            ):
                return True
            if (
                self._rack
                and replica_selector.select_replica(
                    self._broker.image, partition, self._rack, cursor.fetch_offset
                )
                is not None
            ):
                return True
            log, offset = partition.log, cursor.fetch_offset
            limit = partition.last_stable_offset if self._committed else partition.high_watermark
            if not log.log_start_offset <= offset <= log.log_end_offset:
                return True
            if cursor.last_fetched_epoch >= 0 and _has_diverged(partition, cursor):
                return True
            if offset < limit:
                available += self._count_available(partition, cursor, limit)
            elif cursor.last_sent is not None and self._incremental:
                # In a session, the client gets a high watermark that has advanced without records.
                if cursor.last_sent != (partition.high_watermark, log.log_start_offset):
                    return True
            if available >= self._min_bytes:
                return True
            self._partitions.append(partition)
            self.keys.append(partition.key)
        self._base_bytes = available - sum(p.bytes_committed for p in self._partitions)
        return available >= self._min_bytes or not self._partitions

    def _find_permitted(self) -> list[FetchCursor]:
        """The partitions that it may wait for. A refused one does not end the wait for others, as
        in Kafka."""
        self.keys.append(CHANGES)
        return [cursor for cursor in self._cursors if self._permits(cursor)]

    def _permits(self, cursor: FetchCursor) -> bool:
        """Whether the client may read the cursor's topic."""
        broker, name = self._broker, cursor.name
        if cursor.topic_id is not None:
            topic = broker.image.topics_by_id.get(cursor.topic_id)
            if topic is None:
                return True  # The response names no topic.
            name = topic.name
        allowed = self._allowed.get(name)
        if allowed is None:
            allowed = self._allowed[name] = broker.access.allows(
                self._request, Operation.READ, ResourceType.TOPIC, name
            )
        return allowed

    def _count_available(self, partition: Partition, cursor: FetchCursor, limit: int) -> int:
        """The bytes that can be read now, counted up to `min_bytes`. Notes if the store has to be
        awaited."""
        log = partition.log
        try:
            if cursor.key_ranges is not None:
                range_read = self._ranges.look_ahead(partition, cursor, limit, self._max_bytes)
                self.awaits_store |= range_read.next_offset < min(limit, log.local_start_offset)
                if range_read.is_cut or self._ranges.holds_enough:
                    return max(1, self._min_bytes)
                return range_read.size
            if self._min_bytes <= 1 and cursor.fetch_offset >= log.local_start_offset:
                return 1
            size_max = min(cursor.max_bytes, self._min_bytes)
            size = len(log.read_slice(cursor.fetch_offset, size_max, max_offset=limit).data)
        except (OSError, LogOffline, CorruptBatch):
            return max(1, self._min_bytes)  # the response reports the error
        self.awaits_store |= not size
        return size

    @property
    def _ranges(self) -> RangeFetch:
        """The reads of key ranges."""
        if self._range_fetch is None:
            self._range_fetch = RangeFetch(self._broker, self._cursors)
        return self._range_fetch

    def attempt(self) -> Body | None:
        """The response once enough is committed, or a partition cannot be read any more."""
        partitions = self._partitions
        if self._generation != (generation := self._broker.access.generation):
            self._allowed.clear()
            if self._generation is not None and not all(map(self._permits, self._cursors)):
                return self.read()
            self._generation = generation
        if any(p.log.offline or self._get_epoch_error(p, -1) for p in partitions):
            return self.read()
        if self._committed or self.awaits_store or self._range_fetch is not None:
            # Open transactions advance the high watermark, but this request gets none of it.
            return self.read() if self.is_satisfied() else None
        if self._base_bytes + sum(p.bytes_committed for p in partitions) < self._min_bytes:
            return None
        return self.read()

    def read(self) -> Body:
        """The response, with as many whole batches as the request's limits allow."""
        bytes_left = min(self._max_bytes, self._broker.response_limits.compute_fetch_bytes_max())
        entries: list[tuple[FetchCursor, _Entry]] = []
        find = self._broker.partitions.find
        topics = self._broker.metrics.get_topic_meter
        found_any = False
        checked = self._generation is not None
        for cursor in self._cursors:
            partition = find(cursor.name, cursor.topic_id, cursor.index)
            if checked and not self._permits(cursor):
                entry = _build_refusal(ErrorCode.topic_authorization_failed)
            elif partition is None:
                entry = self._refuse_absent(cursor)
            else:
                entry = self._read_one(partition, cursor, bytes_left, min_one=not found_any)
                size = len(entry["records"])
                if size:
                    found_any = True
                    bytes_left -= size
                meter = topics(partition.topic)
                meter.fetches += 1
                meter.bytes_out += size
                if entry["error_code"]:
                    meter.failed_fetches += 1
            if self._should_include(cursor, entry):
                entries.append((cursor, entry))
        session = self._session
        for cursor, entry in entries:
            if session is not None and entry["records"]:
                session.rotate(cursor)
        body: _Entry = {
            "error_code": ErrorCode.none,
            "session_id": 0 if session is None or not session.cursors else session.id,
            "responses": self._group_by_topic(entries),
        }
        return body if self._leaders is None else body | {"node_endpoints": self._list_endpoints()}

    def _list_endpoints(self) -> list[_Entry]:
        """The endpoints of the leaders that errors in the response name."""
        return list_leader_endpoints(
            self._broker.image, self._request.peer.listener, self._leaders or ()
        )

    def _get_epoch_error(self, partition: Partition, current_leader_epoch: int) -> ErrorCode | None:
        """The error of a partition that cannot be read here. A client with a rack may read from a
        follower."""
        if self._rack and not partition.is_leader and partition.leader_id >= 0:
            return partition.find_known_epoch_error(current_leader_epoch)
        return partition.find_epoch_error(current_leader_epoch)

    def _refuse_absent(self, cursor: FetchCursor) -> _Entry:
        """The refusal of a partition that has no replica here."""
        topic_id = cursor.topic_id if self._by_id else None
        code, elsewhere = missing_partition_error(
            self._broker.image, cursor.name, topic_id, cursor.index
        )
        if elsewhere is None:
            return _build_refusal(code)
        return _build_refusal(code) | self._build_leader_hint(
            elsewhere.leader, elsewhere.leader_epoch
        )

    def _build_leader_hint(self, leader_id: int, leader_epoch: int) -> _Entry:
        """The part of a refusal that sends a client to the leader (KIP-951)."""
        if self._version < _LEADERS_FROM:
            return {}
        self._leaders = {*(self._leaders or ()), leader_id}
        return {"current_leader": {"leader_id": leader_id, "leader_epoch": leader_epoch}}

    def _should_include(self, cursor: FetchCursor, entry: _Entry) -> bool:
        """Whether the response has this partition. Later responses of a session have only
        partitions with changes."""
        offsets = (entry["high_watermark"], entry["log_start_offset"])
        new = (
            not self._incremental
            or entry["records"]
            or entry["error_code"]
            or cursor.last_sent != offsets
            or entry.get("preferred_read_replica", -1) >= 0
            or "diverging_epoch" in entry
            or entry.get("next_offset", -1) > cursor.fetch_offset
        )
        # After an error, the next response has the partition in any case.
        cursor.last_sent = None if entry["error_code"] else offsets
        return bool(new)

    def _read_one(
        self, partition: Partition, cursor: FetchCursor, bytes_left: int, *, min_one: bool
    ) -> _Entry:
        refused = self._refuse_unreadable(partition, cursor)
        if refused is not None:
            return refused
        log, offset = partition.log, cursor.fetch_offset
        # Behind the log end, a fetcher that says its epoch learns where its log diverges.
        is_behind = offset > log.log_end_offset and cursor.last_fetched_epoch < 0
        if offset < log.log_start_offset or is_behind:
            return _build_refusal(ErrorCode.offset_out_of_range)
        entry: _Entry = {
            "partition_index": cursor.index,
            "error_code": ErrorCode.none,
            "high_watermark": partition.high_watermark,
            "last_stable_offset": partition.last_stable_offset,
            "log_start_offset": log.log_start_offset,
            "aborted_transactions": None,
            "records": b"",
        }
        if self._rack and (
            (
                replica := replica_selector.select_replica(
                    self._broker.image, partition, self._rack, offset
                )
            )
            is not None
        ):
            return entry | {"preferred_read_replica": replica}
        if cursor.last_fetched_epoch >= 0:
            diverged = _build_diverged(partition, cursor, entry)
            if diverged is not None:
                return diverged
        size_max = min(cursor.max_bytes, max(bytes_left, 0))
        limit = entry["last_stable_offset" if self._committed else "high_watermark"]
        try:
            next_offset = self._fill(entry, partition, cursor, limit, size_max, min_one)
        except OffsetOutOfRange:
            return _build_refusal(ErrorCode.offset_out_of_range)
        except (OSError, LogOffline, CorruptBatch):
            return _build_refusal(ErrorCode.kafka_storage_error)
        if self._committed:
            entry["aborted_transactions"] = [
                {"producer_id": a.producer_id, "first_offset": a.first_offset}
                for a in log.find_aborted_transactions(offset, next_offset)
            ]
        return entry

    def _refuse_unreadable(self, partition: Partition, cursor: FetchCursor) -> _Entry | None:
        """The refusal of a partition that cannot be read here, or not by key ranges."""
        code = self._get_epoch_error(partition, cursor.current_leader_epoch)
        if code is not None:
            return _build_refusal(code) | self._build_leader_hint(
                partition.leader_id, partition.leader_epoch
            )
        if cursor.key_ranges is not None:
            refused = self._ranges.check_partition(partition, cursor)
            if refused is not None:
                return _build_refusal(refused.code) | {"error_message": refused.message}
        return None

    def _fill(
        self,
        entry: _Entry,
        partition: Partition,
        cursor: FetchCursor,
        limit: int,
        size_max: int,
        min_one: bool,
    ) -> int:
        """Add the records to a partition's entry. Return the offset behind them, or from which to
        read on. Raises what `Log.read_slice` raises."""
        offset = cursor.fetch_offset
        if cursor.key_ranges is not None:
            range_read = self._ranges.read(partition, cursor, limit, size_max, min_one=min_one)
            entry["records"], entry["next_offset"] = range_read.data, range_read.next_offset
            return range_read.next_offset
        if offset >= limit or (size_max <= 0 and not min_one):
            return offset
        entry["records"], next_offset = partition.log.read_slice(
            offset, size_max, max_offset=limit, min_one=min_one
        )
        return next_offset

    def _group_by_topic(self, entries: list[tuple[FetchCursor, _Entry]]) -> list[_Entry]:
        topics: dict[Any, _Entry] = {}
        for cursor, entry in entries:
            entry["partition_index"] = cursor.index
            topic = topics.get(cursor.topic_id or cursor.name)
            if topic is None:
                topic = {"topic": cursor.name, "topic_id": cursor.topic_id, "partitions": []}
                topics[cursor.topic_id or cursor.name] = topic
            topic["partitions"].append(entry)
        return list(topics.values())


def _build_diverged(partition: Partition, cursor: FetchCursor, entry: _Entry) -> _Entry | None:
    """The response of a partition from which the fetcher's log has diverged, made from `entry`.
    None if the log has not diverged."""
    try:
        divergence = partition.find_divergence(
            fetch_offset=cursor.fetch_offset, last_fetched_epoch=cursor.last_fetched_epoch
        )
    except OffsetOutOfRange:
        return _build_refusal(ErrorCode.offset_out_of_range)
    if divergence is None:
        return None
    entry["diverging_epoch"] = divergence._asdict()
    return entry


def _has_diverged(partition: Partition, cursor: FetchCursor) -> bool:
    """Whether the fetcher's log has diverged from the partition's."""
    try:
        divergence = partition.find_divergence(
            fetch_offset=cursor.fetch_offset, last_fetched_epoch=cursor.last_fetched_epoch
        )
    except OffsetOutOfRange:
        return True
    return divergence is not None


def _build_refusal(code: ErrorCode) -> _Entry:
    return {
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": b"",
    }
