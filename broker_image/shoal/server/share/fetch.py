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

from shoal.coordinator.share.acquisition import AcquireRequest
from shoal.coordinator.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from shoal.log.errors import LogOffline, OffsetOutOfRange
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import HEADERS_ONLY, OWN_CLIENT
from shoal.protocol.share import ShareFetchPartition, ShareFetchRequest, write_fetch
from shoal.record.batch import HEADER_SIZE, iter_headers
from shoal.security.acls import Operation, ResourceType
from shoal.server.authorization import CHANGES
from shoal.server.network.deferred import DeferredResponse
from shoal.server.network.error_counts import make_counted_body
from shoal.server.network.responses import list_leader_endpoints
from shoal.server.share.leader import LeaderPhase, ShareLeader
from shoal.server.share.state_write import Failure

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from shoal.coordinator.share.settings import ShareSettings
    from shoal.metadata.image import MetadataImage
    from shoal.server.authorization import AccessControl
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.metrics.share_meters import GroupedMean, ShareTopicMeter
    from shoal.server.network.api import Answer, Body, Peer, Request
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.network.response_limits import ResponseLimits
    from shoal.server.node import Node
    from shoal.server.share.acknowledge import PendingAcknowledgements
    from shoal.server.share.member_sessions import MemberSessions

RECORD_LIMIT = 1
#: The refusal of a topic that the member may not read. As in Kafka, it does not end the wait for
#: other topics.
UNAUTHORIZED = Failure(ErrorCode.topic_authorization_failed, None)
#: Topic id and partition index.
_Key = tuple[UUID, int]


class FetchQuotas(Protocol):
    """Client quotas on fetched bytes."""

    def compute_fetch_bytes_max(self, request: Request) -> int | None:
        """Bytes that a client may fetch now; None without a quota."""


class FetchPartitionsPort(Protocol):
    """The share partitions of one broker and their meters, as far as fetches use them."""

    sessions: MemberSessions
    waiting_fetches: int
    expired_fetches: int
    acquire_times: GroupedMean
    fetch_ratios: GroupedMean

    def lead(self, group_id: str, topic_id: UUID, index: int) -> ShareLeader | Failure:
        """The share partition, loading if it was not loaded, or why it is not served here."""

    def get_topic_meter(self, topic_id: UUID) -> ShareTopicMeter | None:
        """The meter of a topic that exists."""

    def get_settings(self, group_id: str) -> ShareSettings:
        """The group's configs in force."""


@dataclass(frozen=True, slots=True)
class FetchServices:
    """The collaborators of all share fetches on one broker."""

    node: Node
    cache: MetadataCache
    purgatory: Purgatory
    metrics: MetricRegistry
    quotas: FetchQuotas
    partitions: FetchPartitionsPort
    response_limits: ResponseLimits
    access: AccessControl

    def answer(
        self, request: Request, session: ShareSession, acks: PendingAcknowledgements
    ) -> Answer:
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
        "_acquire_request",
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
        "_sent_request",
        "_services",
        "_session",
    )

    def __init__(
        self,
        services: FetchServices,
        request: Request,
        session: ShareSession,
        acks: PendingAcknowledgements,
    ) -> None:
        body: ShareFetchRequest = request.body
        self._services = services
        self._request = body
        self._sent_request = request
        #: The changes of permissions that it has seen; None without an authorizer.
        self._generation = services.access.generation if services.access.enabled else None
        self._peer = request.peer
        self._room = services.quotas.compute_fetch_bytes_max(request)
        self._session = session
        self._acks = acks
        self._begun_ms = services.node.clock.now_ms()
        self._is_first = body.share_session_epoch == INITIAL_EPOCH
        self._acquire_request = AcquireRequest(
            session.member_id,
            body.max_records,
            body.batch_size,
            body.share_acquire_mode & ~HEADERS_ONLY == RECORD_LIMIT,
            bool(body.share_acquire_mode & HEADERS_ONLY),
        )
        session.reassigned = False
        self._keys = self._rotate(list(session.partitions), body.share_session_epoch)
        #: The entries of the answer; None while the fetch waits.
        self._entries: dict[_Key, ShareFetchPartition] | None = None
        #: The error of the whole request, if a change of permissions refuses it.
        self._error: ErrorCode | None = None
        self._locks: list[tuple[ShareLeader, int]] = []
        #: Leaders on other brokers that the answer names.
        self._leaders: dict[_Key, tuple[int, int]] = {}
        self._answer: DeferredResponse | None = None
        self._parked: DeferredResponse | None = None

    @staticmethod
    def _rotate(keys: list[_Key], epoch: int) -> list[_Key]:
        """Begin with another partition each time, so that none is always served last."""
        turn = epoch % len(keys) if keys else 0
        return keys[turn:] + keys[:turn]

    def answer(self) -> Answer:
        """The response, or the future of it."""
        body = self._request
        if self._is_empty_fetch():
            self._entries = self._build_refusals()
        elif self._collect(must=False):
            self._entries = self._entries or {}
        elif body.max_wait_ms <= 0:
            self._collect(must=True)
        else:
            self._parked = self._services.purgatory.park_fetch(
                keys=self._list_wake_keys(),
                attempt=self._attempt,
                expire=self._expire,
                deadline_ms=self._services.node.clock.now_ms() + body.max_wait_ms,
            )
            self._services.partitions.waiting_fetches += 1
            self._parked.add_done_callback(self._on_woken)
            if self._acks.settled:
                return self._parked
            self._parked.add_done_callback(lambda _: self._finish())
        if self._entries is not None and self._acks.settled:
            return self._encode()
        self._answer = DeferredResponse()
        self._answer.add_done_callback(self._on_given_up)
        self._acks.on_settled(self._finish)
        return self._answer

    def _is_empty_fetch(self) -> bool:
        body = self._request
        return (
            not self._keys
            or body.max_records <= 0
            or body.max_bytes <= 0
            or body.is_renew_ack
            or body.share_session_epoch == FINAL_EPOCH
        )

    def _build_refusals(self) -> dict[_Key, ShareFetchPartition]:
        """The entries of a request that fetches nothing: the topics that the member may not
        read."""
        body = self._request
        if self._generation is None or body.is_renew_ack:
            return {}
        if body.share_session_epoch == FINAL_EPOCH:
            return {}
        return {
            key: self._build_refusal(key, UNAUTHORIZED)
            for key in self._keys
            if not self._services.may_read(self._sent_request, key[0])
        }

    def _list_wake_keys(self) -> list[Hashable]:
        group_id = self._session.group_id
        of_partitions = (key for tp in self._keys for key in (tp, ("share", group_id, *tp)))
        keys: list[Hashable] = [("share member", group_id, self._session.member_id), *of_partitions]
        return keys if self._generation is None else [CHANGES, *keys]

    # Attempts.

    def _attempt(self) -> Body | None:
        # A member with a new assignment gets its answer now, and fetches its new partitions.
        must = self._session.reassigned or self._is_refused()
        return self._build_answer() if self._error or self._collect(must=must) else None

    def _is_refused(self) -> bool:
        """Whether a change of permissions refuses the request or a part of it."""
        services, request = self._services, self._sent_request
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
        if self._generation is not None and not services.may_read(self._sent_request, key[0]):
            return UNAUTHORIZED
        return services.partitions.lead(self._session.group_id, *key)

    def _on_woken(self, _: DeferredResponse) -> None:
        self._services.partitions.waiting_fetches -= 1

    def _expire(self) -> Body:
        self._services.partitions.expired_fetches += 1
        self._collect(must=True)
        return self._build_answer()

    def _build_answer(self) -> Body:
        # While acknowledgements are under way, `_finish` makes the answer.
        return self._encode() if self._answer is None else ()

    def _finish(self) -> None:
        answer = self._answer
        if self._entries is None or answer is None or answer.done() or not self._acks.settled:
            return
        answer.set_result(self._encode())

    def _on_given_up(self, answer: DeferredResponse) -> None:
        if answer.cancelled():
            if self._parked is not None:
                self._parked.cancel()
            for leader, lock in self._locks:
                if leader.phase is LeaderPhase.ACTIVE:
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
        if not must and not self._is_worth_answering():
            return False
        entries: dict[_Key, ShareFetchPartition] = {}
        left_records, left_bytes = self._request.max_records, self._compute_max_bytes()
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
    ) -> tuple[ShareFetchPartition, int, int]:
        """Acquire records of one partition. Return its entry of the answer, and the numbers of
        records and bytes."""
        services, partitions = self._services, self._services.partitions
        leader, meter = self._lead(key), partitions.get_topic_meter(key[0])
        if meter is not None:
            meter.fetches += 1
        if isinstance(leader, Failure):
            if meter is not None:
                meter.failed_fetches += 1
            return self._build_refusal(key, leader), 0, 0
        entry = ShareFetchPartition(key[1])
        if leader.phase is not LeaderPhase.ACTIVE or records_max <= 0 or bytes_max <= 0:
            return entry, 0, 0
        try:
            request = self._acquire_request._replace(max_records=records_max)
            records, got = leader.fetch(request, bytes_max)
        except ApiError as error:
            return self._build_refusal(key, Failure(error.code, error.message)), 0, 0
        if not got.total:
            return entry, 0, 0
        self._locks.append((leader, got.lock))
        if request.headers_only:
            records = slice_headers(records)
        size = sum(map(len, records))
        services.metrics.get_topic_meter(leader.partition.topic).bytes_out += size
        entry = entry._replace(records=records, acquired=got.records, acquired_encoded=got.encoded)
        return entry, got.total, size

    def _is_worth_answering(self) -> bool:
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
            elif leader.phase is LeaderPhase.ACTIVE and leader.may_acquire():
                if body.min_bytes <= 1:
                    return True
                try:
                    available += leader.count_available_bytes(body.min_bytes)
                except (OSError, LogOffline, OffsetOutOfRange):
                    return True  # The answer reports it.
                if available >= min(body.min_bytes, self._compute_max_bytes()):
                    return True
        return unauthorized == len(self._keys)

    def _compute_max_bytes(self) -> int:
        config = self._services.cache.image.broker_config
        limit = min(self._request.max_bytes, config["fetch.max.bytes"])
        limit = min(limit, self._services.response_limits.compute_fetch_bytes_max())
        return limit if self._room is None else min(limit, self._room)

    def _build_refusal(self, key: _Key, failure: Failure) -> ShareFetchPartition:
        entry = ShareFetchPartition(key[1], failure.code, failure.message)
        services = self._services
        leader = find_current_leader(services.cache.image, services.node.id, key, failure.code)
        if leader is None:
            return entry
        self._leaders[key] = leader
        return entry._replace(current_leader=leader)

    # The response.

    def _encode(self) -> Body:
        if self._error is not None:
            body = write_fetch({}, error_code=self._error, error_message=None)
            return make_counted_body(body, {self._error: 1})
        entries = self._entries or {}
        acknowledged = dict.fromkeys(self._acks.partitions)
        failures = self._acks.failures
        topics: dict[UUID, list[ShareFetchPartition]] = {}
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
                    _with_result(ShareFetchPartition(key[1]), failures.get(key))
                )
        services = self._services
        lock_ms = services.partitions.get_settings(self._session.group_id).lock_duration_ms
        leaders = self._leaders.values()
        endpoints = list_endpoints(services.cache.image, self._peer, leaders) if leaders else ()
        body = write_fetch(topics, acquisition_lock_timeout_ms=lock_ms, endpoints=endpoints)
        return make_counted_body(body, _count_errors(topics.values()))


def _count_errors(topics: Iterable[list[ShareFetchPartition]]) -> dict[int, int]:
    """Return the counts of a response's error codes: none of the whole, and those of partitions."""
    counts: dict[int, int] = {ErrorCode.none: 1}
    for entries in topics:
        for entry in entries:
            counts[entry.error_code] = counts.get(entry.error_code, 0) + 1
    return counts


def find_current_leader(
    image: MetadataImage, node_id: int, key: _Key, code: int
) -> tuple[int, int] | None:
    """Return id and epoch of the leader that a refusal names (KIP-951), or None."""
    if code not in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
        return None
    topic = image.topics_by_id.get(key[0])
    if topic is None or not 0 <= key[1] < len(topic.partitions):
        return None
    partition = topic.partitions[key[1]]
    # This broker leads and refuses: it is cut off, or reads the state again.
    return None if partition.leader == node_id else (partition.leader, partition.leader_epoch)


def list_endpoints(
    image: MetadataImage, peer: Peer, leaders: Iterable[tuple[int, int]]
) -> list[tuple[int, str, int, str | None]]:
    """Return node id, host, port and rack of these leaders, on the client's listener."""
    endpoints = list_leader_endpoints(image, peer.listener, (leader_id for leader_id, _ in leaders))
    return [
        (endpoint["node_id"], endpoint["host"], endpoint["port"], endpoint["rack"])
        for endpoint in endpoints
    ]


def check_acquire_mode(request: Request) -> None:
    """Raise INVALID_REQUEST for an unknown acquire mode. Only our own clients use
    `HEADERS_ONLY`."""
    mode = request.body.share_acquire_mode
    own = request.peer.client_software[0] == OWN_CLIENT
    if mode & ~HEADERS_ONLY not in (0, RECORD_LIMIT) or (mode & HEADERS_ONLY and not own):
        raise ApiError(ErrorCode.invalid_request, f"Unknown share acquire mode id: {mode}")


def slice_headers(records: Sequence[memoryview]) -> list[memoryview]:
    """Return the headers of batches."""
    return [data[at : at + HEADER_SIZE] for data in records for at, _ in iter_headers(data)]


def _with_result(entry: ShareFetchPartition, failure: Failure | None) -> ShareFetchPartition:
    if failure is None:
        return entry
    return entry._replace(
        acknowledge_error_code=failure.code, acknowledge_error_message=failure.message
    )
