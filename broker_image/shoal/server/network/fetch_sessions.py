"""Incremental fetch sessions (KIP-227): the broker remembers what a client fetches.

A session holds the partitions in the order in which they are read. A partition that returned data
moves to the end, so that all partitions get their turn when `max_bytes` is small. An incremental
request names only the partitions that change, and its response has only the partitions with news.

The cache is bounded. A new session replaces an idle one. If no session is idle, the client
continues with full requests, which need no session.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import KEY_HASH_VERSION
from shoal.protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from shoal.record.key_ranges import InvalidKeyRanges, KeyRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

#: A request without a session, or one that ends its session.
FINAL_EPOCH = -1
#: The first request of a session.
INITIAL_EPOCH = 0
NO_SESSION = 0
#: A session that is idle for longer gives way to another client's. Kafka names this period
#: min.incremental.fetch.session.eviction.ms and has no setting for it either.
EVICTION_MS = 120_000
_EPOCH_MAX = 2**31 - 1

PartitionKey = tuple[Any, int]


class FetchCursor:
    """What a client requests of one partition, and what the last response returned."""

    __slots__ = (
        "at_end",
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "key",
        "key_ranges",
        "last_fetched_epoch",
        "last_sent",
        "log_start_offset",
        "max_bytes",
        "name",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: UUID | None, requested: Any) -> None:
        self.name = name
        self.topic_id = topic_id
        self.index: int = requested.partition
        self.key: PartitionKey = (topic_id or name, self.index)
        #: (high watermark, log start offset) of the last response, None before the first.
        self.last_sent: tuple[int, int] | None = None
        #: State of a follower's fetch at the log end offset (`server.replication`).
        self.at_end: Any = None
        self.fetch_offset: int
        self.max_bytes: int
        #: Any negative epoch of a request means that the fetcher knows none.
        self.current_leader_epoch: int
        self.last_fetched_epoch: int
        #: Only in a follower's request.
        self.log_start_offset: int
        #: The wanted records by their hash; None for all, or the error of invalid ranges.
        self.key_ranges: KeyRanges | ApiError | None
        self.update(requested)

    def update(self, requested: Any) -> None:
        """Set the fields that a request has for this partition."""
        self.fetch_offset = requested.fetch_offset
        self.max_bytes = requested.partition_max_bytes
        self.key_ranges = None
        if type(requested) is FetchPartition:
            self.current_leader_epoch = max(requested.current_leader_epoch, -1)
            self.last_fetched_epoch = requested.last_fetched_epoch
            self.log_start_offset = requested.log_start_offset
            return
        self.current_leader_epoch = max(getattr(requested, "current_leader_epoch", -1), -1)
        self.last_fetched_epoch = getattr(requested, "last_fetched_epoch", -1)
        self.log_start_offset = getattr(requested, "log_start_offset", -1)
        if getattr(requested, "key_ranges", None):
            self.key_ranges = _parse_key_ranges(requested)


class FetchSession:
    """The partitions of one fetcher. `epoch` is the epoch of the next request.

    In a follower's session, `active` has the partitions that the next fetch reads. The others have
    no news; `activate` brings one back when it changes.
    """

    __slots__ = (
        "active",
        "broker_epoch",
        "cursors",
        "epoch",
        "id",
        "last_used_ms",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used_ms = now_ms
        self.cursors: dict[PartitionKey, FetchCursor] = {}
        self.active: dict[PartitionKey, FetchCursor] | None = None
        #: The follower's broker epoch at its last fetch.
        self.broker_epoch = -1

    def rotate(self, cursor: FetchCursor) -> None:
        """Move a partition that returned data to the end."""
        for partitions in (self.cursors, self.active):
            if not partitions or next(reversed(partitions.values())) is cursor:
                continue
            if partitions.pop(cursor.key, None) is not None:
                partitions[cursor.key] = cursor

    def deactivate(self, cursor: FetchCursor) -> None:
        """Skip this partition until `activate`."""
        if self.active is not None:
            self.active.pop(cursor.key, None)

    def activate(self, cursor: FetchCursor) -> None:
        """Read this partition at the next fetch."""
        if self.active is not None and self.cursors.get(cursor.key) is cursor:
            self.active[cursor.key] = cursor


class FetchSessions:
    """The cache. `make_random_id` returns a random positive session id."""

    def __init__(
        self, slots_max: int, *, random_id: Callable[[], int], eviction_ms: int = EVICTION_MS
    ) -> None:
        self._slots_max = slots_max
        self._eviction_ms = eviction_ms
        self._random_id = random_id
        #: By id, the least recently used first.
        self._sessions: dict[int, FetchSession] = {}
        self.evictions_total = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def count_partitions(self) -> int:
        """Return the number of partitions in all sessions."""
        return sum(len(s.cursors) for s in self._sessions.values())

    def begin(
        self, request: Any, version: int, now_ms: int, *, follower: bool = False
    ) -> tuple[FetchSession | None, bool, list[FetchCursor]]:
        """Return the session of a request, whether the request is incremental, and the partitions
        to read. In a follower's session, these are the active ones.

        Raises `ApiError` for an unknown session, or for an epoch that is not the next one.
        """
        session_id = getattr(request, "session_id", NO_SESSION)
        epoch = getattr(request, "session_epoch", FINAL_EPOCH)
        uses_topic_ids = version >= TOPIC_IDS_FROM
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._sessions.pop(session_id, None)
            asked = _iterate_requested(request, uses_topic_ids)
            cursors = {cursor.key: cursor for cursor in itertools.starmap(FetchCursor, asked)}
            session = None
            if epoch == INITIAL_EPOCH and cursors:
                session = self._open(uses_topic_ids, now_ms)
            if session is not None:
                session.cursors = cursors
                session.active = dict(cursors) if follower else None
            return session, False, list(cursors.values())
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.fetch_session_topic_id_error)
        self._update(session, request, now_ms)
        partitions = session.cursors if session.active is None else session.active
        return session, True, list(partitions.values())

    def _open(self, uses_topic_ids: bool, now_ms: int) -> FetchSession | None:
        if len(self._sessions) >= self._slots_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms <= self._eviction_ms:
                return None
            del self._sessions[oldest.id]
            self.evictions_total += 1
        session_id = self._random_id()
        while session_id in self._sessions:
            session_id = self._random_id()
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, now_ms)
        return session

    def _update(self, session: FetchSession, request: Any, now_ms: int) -> None:
        for name, topic_id, requested in _iterate_requested(request, session.uses_topic_ids):
            cursor = session.cursors.get((topic_id or name, requested.partition))
            if cursor is None:
                cursor = FetchCursor(name, topic_id, requested)
                session.cursors[cursor.key] = cursor
            else:
                cursor.at_end = None
                cursor.update(requested)
            session.activate(cursor)
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if session.uses_topic_ids else topic.topic
            for index in topic.partitions:
                forgotten = session.cursors.pop((name, index), None)
                if forgotten is not None:
                    session.deactivate(forgotten)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.last_used_ms = now_ms
        if session.cursors:
            self._sessions[session.id] = self._sessions.pop(session.id)
        else:  # A session without partitions ends with this request.
            del self._sessions[session.id]


def _iterate_requested(
    request: Any, uses_topic_ids: bool
) -> Iterable[tuple[str, UUID | None, Any]]:
    """Iterate over (topic name, topic id, what is asked of a partition)."""
    for topic in request.topics:
        name = "" if uses_topic_ids else topic.topic
        topic_id = topic.topic_id if uses_topic_ids else None
        for requested in topic.partitions:
            yield name, topic_id, requested


def _parse_key_ranges(requested: Any) -> KeyRanges | ApiError:
    version = requested.key_hash_version
    if version != KEY_HASH_VERSION:
        return ApiError(
            ErrorCode.unsupported_version,
            f"the key ranges are of hash version {version}, and this broker has version "
            f"{KEY_HASH_VERSION}. Use the same version of Shoal on both sides",
        )
    try:
        return KeyRanges(
            (key_range.first_hash, key_range.last_hash) for key_range in requested.key_ranges
        )
    except InvalidKeyRanges as error:
        return ApiError(ErrorCode.invalid_request, str(error))
