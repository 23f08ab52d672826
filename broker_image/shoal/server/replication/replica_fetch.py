"""Fetch requests of followers: records up to the log end offset, or where the logs diverge
(KIP-595).

The fetch offset shows how far a follower has come. It moves the ISR and the high watermark, and
wakes the requests that wait for them. A fetch that finds nothing waits for an append to one of its
partitions.

A fetch covers every partition that its sender follows here, and few of them have news. A partition
is quiet when the follower is at the log end offset, all records are committed, and nothing has
changed since. Quiet partitions are left out of fetches until something changes. The follower's last
fetch time is noted then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.protocol.errors import ErrorCode
from shoal.protocol.fetch import (
    TOPIC_IDS_FROM,
    PartitionData,
    get_max_wait_ms,
    write_response,
)
from shoal.replication.partition import ReplicaFetchResult
from shoal.server.authorization import CHANGES
from shoal.server.network.error_counts import make_counted_body
from shoal.server.replication.replica_manager import AWAITED_FETCH_WAIT_MS, ReplicaManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shoal.replication.leadership import Leadership
    from shoal.replication.partition import Divergence, Partition
    from shoal.server.network.api import Answer, Body, Request
    from shoal.server.network.fetch_sessions import FetchCursor, FetchSession, FetchSessions
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions
    from shoal.server.replication.quotas import ReplicationQuota

CONSUMER = -1
_Entry = dict[str, Any]


class PartitionLookup(Protocol):
    """Finds partitions by topic id, or by name where there is no id (`partitions`)."""

    def find(self, name: str, topic_id: UUID | None, index: int) -> Partition | None: ...


class AwaitedFollowers(Protocol):
    """Followers that have yet to fetch all their partitions (`replica_manager`)."""

    def is_fetch_awaited(self, replica_id: int, now_ms: int) -> bool: ...


class LeaderThrottle(Protocol):
    """Limits what out-of-sync replicas receive (KIP-73, `quotas`)."""

    @property
    def active(self) -> bool: ...
    def is_throttled(self, partition: Partition) -> bool: ...
    def get_available_bytes(self, now_ms: int) -> int: ...
    def record(self, size_bytes: int, now_ms: int) -> None: ...
    def get_wait_ms(self, now_ms: int) -> int: ...


class MillisecondClock(Protocol):
    """The wall clock in milliseconds."""

    def now_ms(self) -> int: ...


class FetchMessage(Protocol):
    """A request of the broker, as far as a fetch uses it."""

    @property
    def body(self) -> Any: ...
    @property
    def version(self) -> int: ...


class FetchPorts(NamedTuple):
    """What a fetch of a follower uses of the broker."""

    clock: MillisecondClock
    partitions: PartitionLookup
    followers: AwaitedFollowers
    throttle: LeaderThrottle


class _CaughtUpPartition(NamedTuple):
    """A partition whose log is committed in full and is complete at the follower."""

    partition: Partition
    leadership: Leadership
    isr: tuple[int, ...]
    log_end_offset: int
    log_start_offset: int

    @property
    def is_unchanged(self) -> bool:
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


def _wake_partition(
    session: FetchSession, cursor: FetchCursor, leadership: Leadership, replica_id: int
) -> None:
    """Put a quiet partition back into its session's next fetch."""
    leadership.refresh_follower(replica_id, session.broker_epoch, session.last_used_ms)
    session.activate(cursor)


def get_replica_id(body: Any) -> int:
    """Return the id of the broker that fetches, or -1 for a consumer."""
    state = getattr(body, "replica_state", None)
    return body.replica_id if state is None else state.replica_id


class ReplicaFetches:
    """Serves the fetches of this broker's followers."""

    def __init__(
        self,
        node: Node,
        partitions: Partitions,
        replicas: ReplicaManager,
        *,
        sessions: FetchSessions,
        purgatory: Purgatory,
        throttle: ReplicationQuota,
    ) -> None:
        self._clock = node.clock
        self._replicas = replicas
        self._sessions = sessions
        self._purgatory = purgatory
        self._ports = FetchPorts(node.clock, partitions, replicas, throttle)

    def handle(
        self, request: Request, replica_id: int, refusal: Callable[[], Body | None] | None = None
    ) -> Answer:
        """Answer a Fetch of the broker `replica_id`, at once or when there is news for it.

        `refusal` returns the response to a broker that has lost its permission while it waited.
        """
        self._replicas.on_follower_fetch(replica_id)
        now_ms = self._clock.now_ms()
        session, incremental, cursors = self._sessions.begin(
            request.body, request.version, now_ms, follower=True
        )
        fetch = FollowerFetch(self._ports, request, replica_id, session, incremental, cursors)
        response = fetch.begin()
        if response is not None:
            return response
        wait_ms = get_max_wait_ms(request.body)
        if fetch.throttled:
            wait_ms = min(wait_ms, self._ports.throttle.get_wait_ms(now_ms))
        if self._replicas.is_fetch_awaited(replica_id, now_ms):
            wait_ms = min(wait_ms, AWAITED_FETCH_WAIT_MS)
        attempt, expire = fetch.attempt, fetch.expire
        if refusal is not None:
            attempt = lambda: refusal() or fetch.attempt()  # noqa: E731
            expire = lambda: refusal() or fetch.expire()  # noqa: E731
        return self._purgatory.park_response(
            keys=[("replica", replica_id), CHANGES],
            attempt=attempt,
            expire=expire,
            deadline_ms=now_ms + wait_ms,
        )


class FollowerFetch:
    """One fetch of a follower, and its position in the session."""

    __slots__ = (
        "_broker_epoch",
        "_cursors",
        "_incremental",
        "_max_bytes",
        "_nothing_yet",
        "_ports",
        "_replica_id",
        "_session",
        "_version",
        "_waits",
        "throttled",
    )

    def __init__(
        self,
        ports: FetchPorts,
        request: FetchMessage,
        replica_id: int,
        session: FetchSession | None,
        incremental: bool,
        cursors: list[FetchCursor],
    ) -> None:
        self._ports = ports
        body = request.body
        self._version = request.version
        self._replica_id = replica_id
        state = getattr(body, "replica_state", None)
        self._broker_epoch = -1 if state is None else state.replica_epoch
        self._session = session
        self._incremental = incremental
        self._cursors = cursors
        self._max_bytes: int = body.max_bytes
        self._nothing_yet = True
        self._waits = body.min_bytes > 0 and get_max_wait_ms(body) > 0
        #: Whether the throttle left a partition out.
        self.throttled = False

    def begin(self) -> Body | None:
        """Return the response, or None if there is no news yet."""
        results, has_news = self._read()
        return self._respond(results) if has_news or not self._waits else None

    def attempt(self) -> Body | None:
        """Return the response if there is news, or if this broker leads a partition that the
        follower has yet to fetch."""
        results, has_news = self._read(is_new=False)
        awaited = self._ports.followers.is_fetch_awaited(
            self._replica_id, self._ports.clock.now_ms()
        )
        return self._respond(results) if has_news or awaited else None

    def expire(self) -> Body:
        return self._respond(self._read()[0])

    def _read(
        self, *, is_new: bool = True
    ) -> tuple[list[tuple[FetchCursor, ReplicaFetchResult]], bool]:
        """Return the results of partitions that have any, and whether they need a response now. If
        the fetch `is_new`, the follower's positions are noted."""
        find, now_ms = self._ports.partitions.find, self._ports.clock.now_ms()
        bytes_left = self._max_bytes
        self._nothing_yet = True
        self._note(now_ms)
        results: list[tuple[FetchCursor, ReplicaFetchResult]] = []
        has_news = False
        for cursor in self._list_cursors():
            caught_up: _CaughtUpPartition | None = cursor.at_end
            if caught_up is not None and caught_up.is_unchanged:
                if caught_up.leadership.refresh_follower(
                    self._replica_id, self._broker_epoch, now_ms
                ):
                    offsets = (caught_up.log_end_offset, caught_up.log_start_offset)
                    if not self._incremental or cursor.last_sent != offsets:
                        results.append((cursor, ReplicaFetchResult(ErrorCode.none, *offsets)))
                    elif self._session is not None:
                        self._quieten(self._session, cursor, caught_up)
                    continue
            partition = find(cursor.name, cursor.topic_id, cursor.index)
            if partition is None:
                fetched = ReplicaFetchResult(
                    ErrorCode.unknown_topic_id
                    if cursor.topic_id is not None
                    else ErrorCode.unknown_topic_or_partition
                )
            else:
                bytes_max = min(bytes_left, cursor.max_bytes)
                fetched = self._read_one(partition, cursor, bytes_max, now_ms, is_new)
            cursor.at_end = self._make_caught_up(partition, cursor, fetched)
            bytes_left -= len(fetched.records)
            if fetched.error_code or fetched.diverging is not None or fetched.records:
                has_news = True
            results.append((cursor, fetched))
        return results, has_news

    def _note(self, now_ms: int) -> None:
        """Note the fetch time. After a restart of the follower, no partition is quiet any more."""
        session = self._session
        if session is None:
            return
        session.last_used_ms = now_ms
        if session.broker_epoch != self._broker_epoch:
            session.broker_epoch = self._broker_epoch
            for cursor in session.cursors.values():
                session.activate(cursor)

    def _list_cursors(self) -> list[FetchCursor]:
        """Return the partitions that are not quiet; all of them without a session."""
        session = self._session
        if session is None or session.active is None:
            return self._cursors
        return list(session.active.values())

    def _quieten(
        self, session: FetchSession, cursor: FetchCursor, caught_up: _CaughtUpPartition
    ) -> None:
        quiet_fetches = caught_up.partition.quiet_fetches
        wake_other = quiet_fetches.pop(self._replica_id, None)
        if wake_other is not None:
            # A partition that moves between fetcher tasks is in two sessions for a while. The
            # session that keeps it must not lose it.
            wake_other()
        session.deactivate(cursor)
        quiet_fetches[self._replica_id] = partial(
            _wake_partition, session, cursor, caught_up.leadership, self._replica_id
        )

    def _read_one(
        self,
        partition: Partition,
        cursor: FetchCursor,
        max_bytes: int,
        now_ms: int,
        is_new: bool,
    ) -> ReplicaFetchResult:
        """Read one partition. A throttled replica out of sync gets what its quota allows now."""
        throttle = self._ports.throttle
        throttled = throttle.active and throttle.is_throttled(partition)
        left_out = False
        if throttled and self._replica_id not in partition.isr:
            room = throttle.get_available_bytes(now_ms)
            left_out, max_bytes = not room, min(max_bytes, room)
            self.throttled |= left_out
        fetched = partition.fetch_for_follower(
            self._replica_id,
            self._broker_epoch,
            cursor,
            max_bytes=max(0, max_bytes),
            min_one=self._nothing_yet and not left_out,
            now_ms=now_ms,
            is_new=is_new,
        )
        if fetched.records:
            self._nothing_yet = False
            if throttled:
                throttle.record(len(fetched.records), now_ms)
        return fetched

    def _make_caught_up(
        self, partition: Partition | None, cursor: FetchCursor, fetched: ReplicaFetchResult
    ) -> _CaughtUpPartition | None:
        if (
            partition is None
            or fetched.error_code
            or fetched.diverging is not None
            or fetched.records
        ):
            return None
        leadership, end = partition.leadership, partition.log.log_end_offset
        if leadership is None or self._replica_id not in partition.isr:
            return None
        if cursor.fetch_offset != end or partition.high_watermark != end:
            return None
        start = partition.log.log_start_offset
        return _CaughtUpPartition(partition, leadership, partition.isr, end, start)

    def _respond(self, results: list[tuple[FetchCursor, ReplicaFetchResult]]) -> Body:
        topics: dict[Any, tuple[FetchCursor, list[PartitionData]]] = {}
        session, is_usual = self._session, self._version >= TOPIC_IDS_FROM
        counts: dict[int, int] = {ErrorCode.none: 1}
        for cursor, fetched in results:
            code, high_watermark, start, diverging, records = fetched
            offsets = (high_watermark, start)
            new = code or diverging is not None or records
            if self._incremental and not new and cursor.last_sent == offsets:
                continue
            cursor.last_sent = None if code else offsets
            if session is not None and records:
                session.rotate(cursor)
            topic = topics.get(cursor.topic_id or cursor.name)
            if topic is None:
                topic = topics[cursor.topic_id or cursor.name] = (cursor, [])
            topic[1].append(
                PartitionData(cursor.index, code, high_watermark, -1, start, records, diverging)
            )
            counts[code] = counts.get(code, 0) + 1
            is_usual &= diverging is None
        session_id = 0 if session is None or not session.cursors else session.id
        if is_usual:
            entries = [(cursor.topic_id, partitions) for cursor, partitions in topics.values()]
            return make_counted_body(write_response(session_id, entries), counts)
        return {
            "error_code": ErrorCode.none,
            "session_id": session_id,
            "responses": [
                {
                    "topic": cursor.name,
                    "topic_id": cursor.topic_id,
                    "partitions": [_build_entry(partition) for partition in partitions],
                }
                for cursor, partitions in topics.values()
            ],
        }


def _build_entry(partition: PartitionData) -> _Entry:
    """Return a partition's entry for the general codec."""
    entry = {**partition._asdict(), "aborted_transactions": None}
    diverging: Divergence | None = entry.pop("diverging_epoch")
    return entry if diverging is None else entry | {"diverging_epoch": diverging._asdict()}
