"""Incremental fetch sessions (KIP-227): what a fetcher asks for is remembered between requests.

A session holds the partitions of a client in the order in which they are read; those that gave data
move to the end, so that a small `max_bytes` serves all in turn. An incremental request names only
what changes and gets only what is new. The cache is bounded: a new session takes the place of one
that was idle, otherwise its client goes on with full requests, which need no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from shoal.protocol.errors import ApiError, ErrorCode

TOPIC_IDS_FROM = 13
#: A request without a session, or one that ends its session.
FINAL_EPOCH = -1
#: The first request of a session.
INITIAL_EPOCH = 0
NO_SESSION = 0
_EPOCH_MAX = 2**31 - 1

PartitionKey = tuple[Any, int]


class Cursor:
    """What a client wants of one partition, and what it was told last."""

    __slots__ = (
        "at_end",
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "name",
        "told",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: UUID | None, asked: Any) -> None:
        self.name = name
        self.topic_id = topic_id
        self.index: int = asked.partition
        #: (high watermark, log start offset) of the last response, None before the first.
        self.told: tuple[int, int] | None = None
        #: What a follower's fetch has found once it was at the end of a log where all is committed.
        self.at_end: Any = None
        self.ask(asked)

    def ask(self, asked: Any) -> None:
        """Take over a request's entry."""
        self.fetch_offset: int = asked.fetch_offset
        self.max_bytes: int = asked.partition_max_bytes
        self.current_leader_epoch: int = getattr(asked, "current_leader_epoch", -1)
        self.last_fetched_epoch: int = getattr(asked, "last_fetched_epoch", -1)
        #: A follower's.
        self.log_start_offset: int = getattr(asked, "log_start_offset", -1)

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id or self.name, self.index)


class Session:
    """The partitions of one fetcher; `epoch` is that of the request it expects next.

    A follower's session knows which of them are to be looked at (`lively`): the others are quiet,
    and come back when something happens to them (`stir`).
    """

    __slots__ = ("broker_epoch", "by_id", "cursors", "epoch", "id", "lively", "used_ms")

    def __init__(self, session_id: int, by_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.used_ms = now_ms
        self.cursors: dict[PartitionKey, Cursor] = {}
        self.lively: dict[PartitionKey, Cursor] | None = None
        #: The follower's, at its last fetch.
        self.broker_epoch = -1

    def rotate(self, cursor: Cursor) -> None:
        """This partition gave data: others come before it the next time."""
        for held in (self.cursors, self.lively):
            if held is not None and held.pop(cursor.key, None) is not None:
                held[cursor.key] = cursor

    def quieten(self, cursor: Cursor) -> None:
        """Do not look at this partition until it stirs."""
        if self.lively is not None:
            self.lively.pop(cursor.key, None)

    def stir(self, cursor: Cursor) -> None:
        """Look at this partition at the next fetch."""
        if self.lively is not None and self.cursors.get(cursor.key) is cursor:
            self.lively[cursor.key] = cursor


class FetchSessions:
    """The cache. `random_id` gives a new positive session id."""

    def __init__(self, slots_max: int, eviction_ms: int, random_id: Callable[[], int]) -> None:
        self._slots_max = slots_max
        self._eviction_ms = eviction_ms
        self._random_id = random_id
        #: By id, the one used longest ago first.
        self._sessions: dict[int, Session] = {}
        self.evictions_total = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self) -> int:
        """Partitions remembered by all sessions."""
        return sum(len(s.cursors) for s in self._sessions.values())

    def begin(
        self, request: Any, version: int, now_ms: int, *, follower: bool = False
    ) -> tuple[Session | None, bool, list[Cursor]]:
        """The session of a request, whether it is an incremental one, and what is to be read: of a
        follower's session what is lively.

        Raises `ApiError` for a session that is not there or an epoch out of turn.
        """
        session_id = getattr(request, "session_id", NO_SESSION)
        epoch = getattr(request, "session_epoch", FINAL_EPOCH)
        by_id = version >= TOPIC_IDS_FROM
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._sessions.pop(session_id, None)
            cursors = {c.key: c for c in _asked(request, by_id)}
            session = None
            if epoch == INITIAL_EPOCH and cursors:
                session = self._open(by_id, now_ms)
            if session is not None:
                session.cursors = cursors
                session.lively = dict(cursors) if follower else None
            return session, False, list(cursors.values())
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id != by_id:
            raise ApiError(ErrorCode.fetch_session_topic_id_error)
        self._update(session, request, now_ms)
        held = session.cursors if session.lively is None else session.lively
        return session, True, list(held.values())

    def _open(self, by_id: bool, now_ms: int) -> Session | None:
        if len(self._sessions) >= self._slots_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= self._eviction_ms:
                return None
            del self._sessions[oldest.id]
            self.evictions_total += 1
        session_id = self._random_id()
        while session_id in self._sessions:
            session_id = self._random_id()
        session = self._sessions[session_id] = Session(session_id, by_id, now_ms)
        return session

    def _update(self, session: Session, request: Any, now_ms: int) -> None:
        for cursor in _asked(request, session.by_id):
            known = session.cursors.get(cursor.key)
            if known is None:
                session.cursors[cursor.key] = known = cursor
            else:
                cursor.told = known.told
                known.at_end = None
                known.fetch_offset = cursor.fetch_offset
                known.max_bytes = cursor.max_bytes
                known.current_leader_epoch = cursor.current_leader_epoch
                known.last_fetched_epoch = cursor.last_fetched_epoch
                known.log_start_offset = cursor.log_start_offset
            session.stir(known)
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if session.by_id else topic.topic
            for index in topic.partitions:
                gone = session.cursors.pop((name, index), None)
                if gone is not None:
                    session.quieten(gone)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        if session.cursors:
            self._sessions[session.id] = self._sessions.pop(session.id)
        else:  # nothing left to fetch: the session ends, and this request is the last it answers
            del self._sessions[session.id]


def _asked(request: Any, by_id: bool) -> Iterable[Cursor]:
    for topic in request.topics:
        name = "" if by_id else topic.topic
        topic_id = topic.topic_id if by_id else None
        for asked in topic.partitions:
            yield Cursor(name, topic_id, asked)
