"""One ShareFetch: its acknowledgements, its wait, and its response.

A request without available records waits until a high watermark moves or records become available,
up to its `max_wait`. A request with acknowledgements also waits for their commit. Records are
acquired when they are read. If the connection closes before the answer leaves, they are released as
undelivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from shoal.coordinator.share.acquisition import Wanted
from shoal.coordinator.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import HEADERS_ONLY, OWN_CLIENT
from shoal.protocol.share import PartitionRecords, ShareFetchRequest, write_fetch
from shoal.record.batch import HEADER_SIZE, headers
from shoal.security.acls import Operation, ResourceType
from shoal.server.authorization import CHANGES
from shoal.server.network.deferred import DeferredResponse
from shoal.server.network.error_counts import counted
from shoal.server.network.responses import leader_endpoints
from shoal.server.share.leader import Phase, ShareLeader
from shoal.server.share.state_write import Failure

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from shoal.coordinator.share.settings import ShareSettings
    from shoal.metadata.image import MetadataImage
    from shoal.server.authorization import Access
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import Metrics
    from shoal.server.metrics.share_meters import Mean, ShareTopicMeter
    from shoal.server.network.api import Answer, Body, Peer, Request
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.network.response_limits import ResponseLimits
    from shoal.server.node import Node
    from shoal.server.share.acknowledge import Acks
    from shoal.server.share.member_sessions import MemberSessions

RECORD_LIMIT = 1
#: The refusal of a topic that the member may not read. As in Kafka, it does not end the wait for
#: other topics.
UNAUTHORIZED = Failure(ErrorCode.topic_authorization_failed, None)
#: Topic id and partition index.
_Key = tuple[UUID, int]


class FetchQuotas(Protocol):
    """Client quotas on fetched bytes."""

    def fetch_bytes_max(self, request: Request) -> int | None:
        """Bytes that a client may fetch now; None without a quota."""


class SharePartitions(Protocol):
    """The share partitions of one broker and their meters, as far as fetches use them."""

    sessions: MemberSessions
    waiting_fetches: int
    expired_fetches: int
    acquire_times: Mean
    fetch_ratios: Mean

    def lead(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | Failure:
        """The share partition, loading if it was not loaded, or why it is not served here."""

    def topic(self, topic_id: UUID) -> ShareTopicMeter | None:
        """The meter of a topic that exists."""

    def settings(self, group_id: str) -> ShareSettings:
        """The group's configs in force."""


@dataclass(frozen=True, slots=True)
class FetchServices:
    """The collaborators of all share fetches on one broker."""

    node: Node
    cache: MetadataCache
    purgatory: Purgatory
    metrics: Metrics
    quotas: FetchQuotas
    partitions: SharePartitions
    response_limits: ResponseLimits
    access: Access

    def answer(self, request: Request, session: ShareSession, acks: Acks) -> Answer:
        """Fetch for a member. `acks` are the request's acknowledgements."""
        return ShareFetch(self, request, session, acks).answer()

    def may_read(self, request: Request, topic_id: UUID) -> bool:
        """Return whether a request's sender may read a topic. A topic that does not exist has no
        name to hide."""
        topic = self.cache.image.topics_by_id.get(topic_id)
        if topic is None:
            return True
        return self.access.allows(request, Operation.READ, ResourceType.TOPIC, topic.name)

    def may_join(self, request: Request, group_id: str) -> bool:
        """Return whether a request's sender may read in a group."""
        return self.access.allows(request, Operation.READ, ResourceType.GROUP, group_id)


class ShareFetch:
    """One ShareFetch under way."""

    __slots__ = (
        "_acks",
        "_answer",
        "_begun_ms",
        "_entries",
        "_error",
        "_generation",
        "_is_first",
        "_keys",
        "_leaders",
        "_locks",
        "_parked",
        "_peer",
        "_request",
        "_room",
        "_sent",
        "_services",
        "_session",
        "_wanted",
    )

    def __init__(
        self, services: FetchServices, request: Request, session: ShareSession, acks: Acks
    ) -> None:
        body: ShareFetchRequest = request.body
        self._services = services
        self._request = body
        self._sent = request
        #: The changes of permissions that it has seen; None without an authorizer.
        self._generation = services.access.generation if services.access.enabled else None
        self._peer = request.peer
        self._room = services.quotas.fetch_bytes_max(request)
        self._session = session
        self._acks = acks
        self._begun_ms = services.node.clock.now_ms()
        self._is_first = body.share_session_epoch == INITIAL_EPOCH
        self._wanted = Wanted(
            session.member_id,
            body.max_records,
            body.batch_size,
            body.share_acquire_mode & ~HEADERS_ONLY == RECORD_LIMIT,
            bool(body.share_acquire_mode & HEADERS_ONLY),
        )
        session.reassigned = False
        self._keys = self._rotated(list(session.partitions), body.share_session_epoch)
        #: The entries of the answer; None while the fetch waits.
        self._entries: dict[_Key, PartitionRecords] | None = None
        #: The error of the whole request, if a change of permissions refuses it.
        self._error: ErrorCode | None = None
        self._locks: list[tuple[ShareLeader, int]] = []
        #: Leaders on other brokers that the answer names.
        self._leaders: dict[_Key, tuple[int, int]] = {}
        self._answer: DeferredResponse | None = None
        self._parked: DeferredResponse | None = None

    @staticmethod
    def _rotated(keys: list[_Key], epoch: int) -> list[_Key]:
        """Begin with another partition each time, so that none is always served last."""
        turn = epoch % len(keys) if keys else 0
        return keys[turn:] + keys[:turn]

    def answer(self) -> Answer:
        """The response, or the future of it."""
        body = self._request
        if self._fetches_nothing():
            self._entries = self._refusals()
        elif self._collect(must=False):
            self._entries = self._entries or {}
        elif body.max_wait_ms <= 0:
            self._collect(must=True)
        else:
            self._parked = self._services.purgatory.park_fetch(
                keys=self._wake_keys(),
                attempt=self._attempt,
                expire=self._expire,
                deadline_ms=self._services.node.clock.now_ms() + body.max_wait_ms,
            )
            self._services.partitions.waiting_fetches += 1
            self._parked.add_done_callback(self._woken)
            if self._acks.settled:
                return self._parked
            self._parked.add_done_callback(lambda _: self._finish())
        if self._entries is not None and self._acks.settled:
            return self._encode()
        self._answer = DeferredResponse()
        self._answer.add_done_callback(self._given_up)
        self._acks.when_settled(self._finish)
        return self._answer

    def _fetches_nothing(self) -> bool:
        body = self._request
        return (
            not self._keys
            or body.max_records <= 0
            or body.max_bytes <= 0
            or body.is_renew_ack
            or body.share_session_epoch == FINAL_EPOCH
        )

    def _refusals(self) -> dict[_Key, PartitionRecords]:
        """The entries of a request that fetches nothing: the topics that the member may not
        read."""
        body = self._request
        if self._generation is None or body.is_renew_ack:
            return {}
        if body.share_session_epoch == FINAL_EPOCH:
            return {}
        return {
            key: self._refusal(key, UNAUTHORIZED)
            for key in self._keys
            if not self._services.may_read(self._sent, key[0])
        }

    def _wake_keys(self) -> list[Hashable]:
        group_id = self._session.group_id
        of_partitions = (key for tp in self._keys for key in (tp, ("share", group_id, *tp)))
        keys: list[Hashable] = [("share member", group_id, self._session.member_id), *of_partitions]
        return keys if self._generation is None else [CHANGES, *keys]

    # Attempts.

    def _attempt(self) -> Body | None:
        # A member with a new assignment gets its answer now, and fetches its new partitions.
        must = self._session.reassigned or self._is_refused()
        return self._done() if self._error or self._collect(must=must) else None

    def _is_refused(self) -> bool:
        """Whether a change of permissions refuses the request or a part of it."""
        services, request = self._services, self._sent
        if self._generation in (None, services.access.generation):
            return False
        self._generation = services.access.generation
        if not services.may_join(request, self._session.group_id):
            self._entries, self._error = {}, ErrorCode.group_authorization_failed
            return True
        return not all(services.may_read(request, topic_id) for topic_id, _ in self._keys)

    def _lead(self, key: _Key) -> ShareLeader | Failure:
        """The share partition, or why the member gets nothing of it here."""
        services = self._services
        if self._generation is not None and not services.may_read(self._sent, key[0]):
            return UNAUTHORIZED
        return services.partitions.lead(self._session.group_id, *key)

    def _woken(self, _: DeferredResponse) -> None:
        self._services.partitions.waiting_fetches -= 1

    def _expire(self) -> Body:
        self._services.partitions.expired_fetches += 1
        self._collect(must=True)
        return self._done()

    def _done(self) -> Body:
        # While acknowledgements are under way, `_finish` makes the answer.
        return self._encode() if self._answer is None else ()

    def _finish(self) -> None:
        answer = self._answer
        if self._entries is None or answer is None or answer.done() or not self._acks.settled:
            return
        answer.set_result(self._encode())

    def _given_up(self, answer: DeferredResponse) -> None:
        if answer.cancelled():
            if self._parked is not None:
                self._parked.cancel()
            for leader, lock in self._locks:
                if leader.phase is Phase.ACTIVE:
                    leader.take_back(lock)

    def _collect(self, *, must: bool) -> bool:
        """Acquire records. Return whether they are enough to answer; with `must`, any number is."""
        session = self._session
        if (
            self._services.partitions.sessions.get(session.group_id, session.member_id)
            is not session
        ):
            self._entries = {}  # It was closed or replaced: acquire nothing.
            return True
        if not must and not self._worth_answering():
            return False
        entries: dict[_Key, PartitionRecords] = {}
        left_records, left_bytes = self._request.max_records, self._max_bytes()
        for key in self._keys:
            if key in session.partitions:
                entries[key], records, size = self._acquire(key, left_records, left_bytes)
                left_records -= records
                left_bytes -= size
        if not must and not self._locks and not any(e.error_code for e in entries.values()):
            return False
        self._entries = entries
        if self._locks:
            partitions, group_id = self._services.partitions, session.group_id
            took_ms = self._services.node.clock.now_ms() - self._begun_ms
            partitions.acquire_times.note(group_id, took_ms)
            partitions.fetch_ratios.note(group_id, 100 * len(self._locks) // len(self._keys))
        return True

    def _acquire(
        self, key: _Key, records_max: int, bytes_max: int
    ) -> tuple[PartitionRecords, int, int]:
        """Acquire records of one partition. Return its entry of the answer, and the numbers of
        records and bytes."""
        services, partitions = self._services, self._services.partitions
        leader, meter = self._lead(key), partitions.topic(key[0])
        if meter is not None:
            meter.fetches += 1
        if isinstance(leader, Failure):
            if meter is not None:
                meter.failed_fetches += 1
            return self._refusal(key, leader), 0, 0
        entry = PartitionRecords(key[1])
        if leader.phase is not Phase.ACTIVE or records_max <= 0 or bytes_max <= 0:
            return entry, 0, 0
        try:
            wanted = self._wanted._replace(max_records=records_max)
            records, got = leader.fetch(wanted, bytes_max)
        except ApiError as error:
            return self._refusal(key, Failure(error.code, error.message)), 0, 0
        if not got.total:
            return entry, 0, 0
        self._locks.append((leader, got.lock))
        if wanted.headers_only:
            records = headers_of(records)
        size = sum(map(len, records))
        services.metrics.topic(leader.partition.topic).bytes_out += size
        entry = entry._replace(records=records, acquired=got.records, acquired_encoded=got.encoded)
        return entry, got.total, size

    def _worth_answering(self) -> bool:
        """Whether an answer is due: enough records are available, or a failure is to be
        reported."""
        session, body = self._session, self._request
        available = unauthorized = 0
        for key in self._keys:
            leader = self._lead(key)
            if leader is UNAUTHORIZED:
                unauthorized += 1
            elif isinstance(leader, Failure):
                if session.partitions.get(key):
                    return True
            elif leader.phase is Phase.ACTIVE and leader.may_acquire():
                if body.min_bytes <= 1:
                    return True
                try:
                    available += leader.available_bytes(body.min_bytes)
                except (OSError, LogOffline, OffsetOutOfRange):
                    return True  # The answer reports it.
                if available >= min(body.min_bytes, self._max_bytes()):
                    return True
        return unauthorized == len(self._keys)

    def _max_bytes(self) -> int:
        config = self._services.cache.image.broker_config
        limit = min(self._request.max_bytes, config["fetch.max.bytes"])
        limit = min(limit, self._services.response_limits.fetch_bytes_max())
        return limit if self._room is None else min(limit, self._room)

    def _refusal(self, key: _Key, failure: Failure) -> PartitionRecords:
        entry = PartitionRecords(key[1], failure.code, failure.message)
        services = self._services
        leader = current_leader(services.cache.image, services.node.id, key, failure.code)
        if leader is None:
            return entry
        self._leaders[key] = leader
        return entry._replace(current_leader=leader)

    # The response.

    def _encode(self) -> Body:
        if self._error is not None:
            body = write_fetch({}, error_code=self._error, error_message=None)
            return counted(body, {self._error: 1})
        entries = self._entries or {}
        acknowledged = dict.fromkeys(self._acks.partitions)
        failures = self._acks.failures
        topics: dict[UUID, list[PartitionRecords]] = {}
        session = self._session.partitions
        for key in self._keys:
            entry = entries.get(key)
            if entry is None:
                continue
            news = bool(entry.acquired or entry.error_code or session.get(key))
            if key in session:
                session[key] = entry.error_code != 0
            if key in acknowledged:
                entry = _with_result(entry, failures.get(key))
            elif not news:
                continue
            topics.setdefault(key[0], []).append(entry)
        for key in acknowledged:
            if key not in entries:
                topics.setdefault(key[0], []).append(
                    _with_result(PartitionRecords(key[1]), failures.get(key))
                )
        services = self._services
        lock_ms = services.partitions.settings(self._session.group_id).lock_duration_ms
        leaders = self._leaders.values()
        endpoints = endpoints_of(services.cache.image, self._peer, leaders) if leaders else ()
        body = write_fetch(topics, acquisition_lock_timeout_ms=lock_ms, endpoints=endpoints)
        return counted(body, _error_counts(topics.values()))


def _error_counts(topics: Iterable[list[PartitionRecords]]) -> dict[int, int]:
    """Return the counts of a response's error codes: none of the whole, and those of partitions."""
    counts: dict[int, int] = {ErrorCode.none: 1}
    for some in topics:
        for entry in some:
            counts[entry.error_code] = counts.get(entry.error_code, 0) + 1
    return counts


def current_leader(
    image: MetadataImage, node_id: int, key: _Key, code: int
) -> tuple[int, int] | None:
    """Return id and epoch of the leader that a refusal names (KIP-951), or None."""
    if code not in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
        return None
    topic = image.topics_by_id.get(key[0])
    if topic is None or not 0 <= key[1] < len(topic.partitions):
        return None
    found = topic.partitions[key[1]]
    # This broker leads and refuses: it is cut off, or reads the state again.
    return None if found.leader == node_id else (found.leader, found.leader_epoch)


def endpoints_of(
    image: MetadataImage, peer: Peer, leaders: Iterable[tuple[int, int]]
) -> list[tuple[int, str, int, str | None]]:
    """Return node id, host, port and rack of these leaders, on the client's listener."""
    found = leader_endpoints(image, peer.listener, (leader_id for leader_id, _ in leaders))
    return [(one["node_id"], one["host"], one["port"], one["rack"]) for one in found]


def check_acquire_mode(request: Request) -> None:
    """Raise INVALID_REQUEST for an unknown acquire mode. Only our own clients use
    `HEADERS_ONLY`."""
    mode = request.body.share_acquire_mode
    own = request.peer.client_software[0] == OWN_CLIENT
    if mode & ~HEADERS_ONLY not in (0, RECORD_LIMIT) or (mode & HEADERS_ONLY and not own):
        raise ApiError(ErrorCode.invalid_request, f"Unknown share acquire mode id: {mode}")


def headers_of(records: Sequence[memoryview]) -> list[memoryview]:
    """Return the headers of batches."""
    return [data[at : at + HEADER_SIZE] for data in records for at, _ in headers(data)]


def _with_result(entry: PartitionRecords, failure: Failure | None) -> PartitionRecords:
    if failure is None:
        return entry
    return entry._replace(
        acknowledge_error_code=failure.code, acknowledge_error_message=failure.message
    )
