"""Fetch as followers ask it: records up to the log's end, and where the logs part (KIP-595).

What a follower asks for tells how far it is: that moves the ISR and the high watermark, and with it
those who wait for that. A fetch that finds nothing waits for an append to one of its partitions.

A fetch is for every partition that its sender follows here, and few of them have news. Where the
follower was at the end of a log with nothing uncommitted, and neither of them has moved, the
partition is quiet: it is not looked at until it stirs, and then it is noted when its follower has
fetched last.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode
from shoal.replication.partition import ReplicaFetch, ReplicaFetched
from shoal.server.network.api import Answer, Body, Request
from shoal.server.network.fetch_sessions import Cursor, Session
from shoal.server.replication.quotas import LEADER
from shoal.server.replication.replicas import AWAITED_WAIT_MS

if TYPE_CHECKING:
    from shoal.replication.leadership import Leadership
    from shoal.replication.partition import Partition
    from shoal.server.broker import Broker

CONSUMER = -1
_Entry = dict[str, Any]


class _AtEnd(NamedTuple):
    """A partition whose log the follower has all of, and all of which is committed."""

    partition: Partition
    leadership: Leadership
    isr: tuple[int, ...]
    log_end_offset: int
    log_start_offset: int

    @property
    def still(self) -> bool:
        partition, leadership, isr, end, start = self
        log = partition.log
        return (
            log.log_end_offset == end
            and partition.high_watermark == end
            and log.log_start_offset == start
            and partition.leadership is leadership
            and partition.isr is isr
            and partition.is_leader
            and not log.offline
        )


def _stirred(session: Session, cursor: Cursor, leadership: Leadership, replica_id: int) -> None:
    """Something happens to a partition that was quiet."""
    leadership.fetched_again(replica_id, session.broker_epoch, session.last_used_ms)
    session.activate(cursor)


def replica_of(body: Any) -> int:
    """The broker that fetches, or -1 for a consumer."""
    state = getattr(body, "replica_state", None)
    return body.replica_id if state is None else state.replica_id


def handle(broker: Broker, request: Request, replica_id: int) -> Answer:
    broker.replicas.heard(replica_id)
    now_ms = broker.clock.now_ms()
    session, incremental, cursors = broker.fetch_sessions.begin(
        request.body, request.version, now_ms, follower=True
    )
    fetch = _ReplicaFetch(broker, request, replica_id, session, incremental, cursors)
    found = fetch.begin()
    if found is not None:
        return found
    max_wait_ms = codec.ms(request.body.max_wait)
    if fetch.held_back:
        max_wait_ms = min(max_wait_ms, broker.throttles[LEADER].wait_ms(now_ms))
    if broker.replicas.awaits(replica_id, now_ms):
        max_wait_ms = min(max_wait_ms, AWAITED_WAIT_MS)
    return broker.purgatory.park(
        keys=[("replica", replica_id)],
        attempt=fetch.attempt,
        expire=fetch.expire,
        deadline_ms=now_ms + max_wait_ms,
    )


class _ReplicaFetch:
    """One request of a follower."""

    __slots__ = (
        "_broker",
        "_broker_epoch",
        "_cursors",
        "_incremental",
        "_max_bytes",
        "_nothing_yet",
        "_replica_id",
        "_session",
        "_waits",
        "held_back",
    )

    def __init__(
        self,
        broker: Broker,
        request: Request,
        replica_id: int,
        session: Session | None,
        incremental: bool,
        cursors: list[Cursor],
    ) -> None:
        body = request.body
        self._broker = broker
        self._replica_id = replica_id
        state = getattr(body, "replica_state", None)
        self._broker_epoch = -1 if state is None else state.replica_epoch
        self._session = session
        self._incremental = incremental
        self._cursors = cursors
        self._max_bytes: int = body.max_bytes
        self._nothing_yet = True
        self._waits = body.min_bytes > 0 and codec.ms(body.max_wait) > 0
        #: Whether a partition gave nothing for its throttle.
        self.held_back = False

    def begin(self) -> Body | None:
        """The response, unless there is nothing to tell yet."""
        rows, news = self._read()
        return self._respond(rows) if news or not self._waits else None

    def attempt(self) -> Body | None:
        """The response once there is something to tell, or once this broker leads more that the
        follower is to come for."""
        rows, news = self._read()
        awaited = self._broker.replicas.awaits(self._replica_id, self._broker.clock.now_ms())
        return self._respond(rows) if news or awaited else None

    def expire(self) -> Body:
        return self._respond(self._read()[0])

    def _read(self) -> tuple[list[tuple[Cursor, ReplicaFetched]], bool]:
        """What there is of partitions with anything to tell, and whether it is worth an answer."""
        broker, now_ms = self._broker, self._broker.clock.now_ms()
        left = self._max_bytes
        self._nothing_yet = True
        self._note(now_ms)
        rows: list[tuple[Cursor, ReplicaFetched]] = []
        news = False
        for cursor in self._looked_at():
            known: _AtEnd | None = cursor.at_end
            if known is not None and known.still:
                if known.leadership.fetched_again(self._replica_id, self._broker_epoch, now_ms):
                    told = (known.log_end_offset, known.log_start_offset)
                    if not self._incremental or cursor.last_sent != told:
                        rows.append((cursor, ReplicaFetched(ErrorCode.none, *told)))
                    elif self._session is not None:
                        self._quieten(self._session, cursor, known)
                    continue
            partition = broker.partitions.find(cursor.name, cursor.topic_id, cursor.index)
            if partition is None:
                found = ReplicaFetched(
                    ErrorCode.unknown_topic_id
                    if cursor.topic_id is not None
                    else ErrorCode.unknown_topic_or_partition
                )
            else:
                asked = ReplicaFetch(
                    cursor.fetch_offset,
                    cursor.last_fetched_epoch,
                    cursor.current_leader_epoch,
                    cursor.log_start_offset,
                )
                found = self._read_one(partition, asked, min(left, cursor.max_bytes), now_ms)
            cursor.at_end = self._at_end(partition, cursor, found)
            left -= len(found.records)
            if found.error_code or found.diverging is not None or found.records:
                news = True
            rows.append((cursor, found))
        return rows, news

    def _note(self, now_ms: int) -> None:
        """The session's follower is here now; as another incarnation, all is looked at anew."""
        session = self._session
        if session is None:
            return
        session.last_used_ms = now_ms
        if session.broker_epoch != self._broker_epoch:
            session.broker_epoch = self._broker_epoch
            for cursor in session.cursors.values():
                session.activate(cursor)

    def _looked_at(self) -> list[Cursor]:
        """Partitions that are not quiet; of a fetch without a session all."""
        session = self._session
        if session is None or session.active is None:
            return self._cursors
        return list(session.active.values())

    def _quieten(self, session: Session, cursor: Cursor, known: _AtEnd) -> None:
        stirs = known.partition.stirs
        other = stirs.pop(self._replica_id, None)
        if other is not None:
            # A partition that moves between a follower's fetch loops is in two sessions for a
            # while. The one that stays must not be left out.
            other()
        session.deactivate(cursor)
        stirs[self._replica_id] = partial(
            _stirred, session, cursor, known.leadership, self._replica_id
        )

    def _read_one(
        self, partition: Partition, asked: ReplicaFetch, max_bytes: int, now_ms: int
    ) -> ReplicaFetched:
        """One partition's answer; who is throttled and not in sync gets what it may have now."""
        throttle = self._broker.throttles[LEADER]
        throttled = throttle.active and throttle.throttles(partition)
        held_back = False
        if throttled and self._replica_id not in partition.isr:
            room = throttle.room(now_ms)
            held_back, max_bytes = not room, min(max_bytes, room)
            self.held_back |= held_back
        found = partition.fetched_by(
            self._replica_id,
            self._broker_epoch,
            asked,
            max_bytes=max(0, max_bytes),
            min_one=self._nothing_yet and not held_back,
            now_ms=now_ms,
        )
        if found.records:
            self._nothing_yet = False
            if throttled:
                throttle.took(len(found.records), now_ms)
        return found

    def _at_end(
        self, partition: Partition | None, cursor: Cursor, found: ReplicaFetched
    ) -> _AtEnd | None:
        if partition is None or found.error_code or found.diverging is not None or found.records:
            return None
        leadership, end = partition.leadership, partition.log.log_end_offset
        if leadership is None or self._replica_id not in partition.isr:
            return None
        if cursor.fetch_offset != end or partition.high_watermark != end:
            return None
        start = partition.log.log_start_offset
        return _AtEnd(partition, leadership, partition.isr, end, start)

    def _respond(self, rows: list[tuple[Cursor, ReplicaFetched]]) -> Body:
        topics: dict[Any, _Entry] = {}
        session = self._session
        for cursor, found in rows:
            told = (found.high_watermark, found.log_start_offset)
            new = found.error_code or found.diverging is not None or found.records
            if self._incremental and not new and cursor.last_sent == told:
                continue
            cursor.last_sent = None if found.error_code else told
            if session is not None and found.records:
                session.rotate(cursor)
            entry: _Entry = {
                "partition_index": cursor.index,
                "error_code": found.error_code,
                "high_watermark": found.high_watermark,
                "last_stable_offset": -1,
                "log_start_offset": found.log_start_offset,
                "aborted_transactions": None,
                "records": found.records,
            }
            if found.diverging is not None:
                entry["diverging_epoch"] = found.diverging._asdict()
            topic = topics.get(cursor.topic_id or cursor.name)
            if topic is None:
                topic = {"topic": cursor.name, "topic_id": cursor.topic_id, "partitions": []}
                topics[cursor.topic_id or cursor.name] = topic
            topic["partitions"].append(entry)
        return {
            "error_code": ErrorCode.none,
            "session_id": 0 if session is None or not session.cursors else session.id,
            "responses": list(topics.values()),
        }
