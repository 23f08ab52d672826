"""A member of a share group: acquire records, settle them, release what is left (KIP-932).

Acquiring is one ShareFetch to each broker that leads an assigned partition, in a share session of
its own connection: its epoch counts requests, its partitions are told by difference. Nothing is
fetched ahead, so every lock that this member holds is known to its caller. Settling is
ShareAcknowledge (accept, release, reject, renew), or rides on the next fetch. A session that the
broker has dropped is opened anew; the locks it held are gone, and settling them says so.

One task at a time may call a session; heartbeats run beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from shoal.client.batches import decode
from shoal.client.cluster import Cluster
from shoal.client.connection import Connection
from shoal.client.errors import (
    STALE_COORDINATOR,
    STALE_METADATA,
    ClientError,
    ConnectionLost,
    KafkaError,
    transient,
)
from shoal.client.membership import Assignment, Membership
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import HEADERS_ONLY, HEADERS_ONLY_FEATURE, RELEASE_DELAY_FEATURE
from shoal.record.batch import HEADER_SIZE, BatchHeader, headers, read_header

#: One long poll when several brokers are asked: the answers are waited for together, so a busy
#: broker's records wait at most this long for a quiet one.
LONG_POLL_MS_MAX = 250
#: A round that ends sooner without a record was no long poll: pause instead of asking in circles.
QUICK_ROUND_S = 0.02
#: The same of a round in which no broker was reached.
UNREACHED_S = 0.1
_LOST_SESSION = (ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch)


class AcknowledgeType(IntEnum):
    """Kafka's numbers. GAP says that an offset of an acquired range holds no record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    """Whole batches, possibly past `max_records`; or never more than that (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class AcquiredRange(NamedTuple):
    """Offsets (both inclusive) locked for this member, and how often they were delivered."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """What to do with a range of acquired offsets, both inclusive."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    type: AcknowledgeType = AcknowledgeType.ACCEPT
    #: Of a release: milliseconds before the records are available again; -1 leaves that to the
    #: group's back-off. At most the group's `share.redelivery.backoff.max.ms`.
    delay_ms: int = -1


class Refusal(NamedTuple):
    """An acknowledgement that the broker did not take: most often since the lock had run out."""

    acknowledgement: Acknowledgement
    error: ClientError


class SharedRecord(NamedTuple):
    """A record as a share consumer sees it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Acquired:
    """What one fetch locked in one partition: ranges in offset order, and the batches' bytes."""

    topic: str
    topic_id: UUID
    partition: int
    ranges: tuple[AcquiredRange, ...]
    data: bytes = field(repr=False)
    has_payload: bool = True

    @property
    def count(self) -> int:
        """Locked offsets; gaps in the log count too."""
        return sum(r.last_offset - r.first_offset + 1 for r in self.ranges)

    def batches(self) -> Iterator[BatchHeader]:
        """The headers of the log's batches that hold the ranges: their offsets and sizes."""
        if self.has_payload:
            return (header for _, header in headers(self.data))
        places = range(0, len(self.data) - HEADER_SIZE + 1, HEADER_SIZE)
        return (read_header(self.data, at) for at in places)

    def records(self) -> Iterator[SharedRecord]:
        """Decode the locked records; what else the batches hold is passed over.

        Raises `ValueError` where the payload was left at the broker.
        """
        if not self.has_payload:
            raise ValueError("these records were acquired without their payload")
        ranges = iter(self.ranges)
        current = next(ranges, None)
        for record in decode(self.data):
            while current is not None and record.offset > current.last_offset:
                current = next(ranges, None)
            if current is None:
                return
            if record.offset >= current.first_offset:
                yield SharedRecord(self.topic, self.partition, *record, current.delivery_count)

    def acknowledge(self, type: AcknowledgeType, *, delay_ms: int = -1) -> list[Acknowledgement]:
        """One acknowledgement for each of the ranges; `delay_ms` as `Acknowledgement` has it."""
        topic, partition = self.topic, self.partition
        return [Acknowledgement(topic, partition, r.first_offset, r.last_offset, type, delay_ms)
                for r in self.ranges]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Acquisition:
    """The result of `ShareSession.acquire`. `lock_timeout_ms` is 0 where nothing was acquired."""

    acquired: tuple[Acquired, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    lock_timeout_ms: int = 0

    def __iter__(self) -> Iterator[Acquired]:
        return iter(self.acquired)

    @property
    def count(self) -> int:
        return sum(a.count for a in self.acquired)


class ShareMembership(Membership):
    """The heartbeat of a share group's member."""

    api_key: ClassVar[ApiKey] = ApiKey.SHARE_GROUP_HEARTBEAT

    def __init__(
        self, cluster: Cluster, group: str, topics: Sequence[str], rack: str | None
    ) -> None:
        super().__init__(cluster, group)
        self._topics = sorted(topics)
        self._rack = rack

    def _body(self, *, whole: bool) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.member_epoch,
            "rack_id": self._rack if whole else None,
            "subscribed_topic_names": self._topics if whole else None,
        }


class _Limits(NamedTuple):
    """What one acquisition may take, and whether its records are wanted too."""

    max_records: int
    max_bytes: int
    min_bytes: int
    mode: AcquireMode
    payload: bool


@dataclass(slots=True)
class _NodeSession:
    """The share session with one broker: its epoch, and the partitions the broker knows of."""

    link: Connection
    epoch: int = 0
    partitions: frozenset[tuple[UUID, int]] = frozenset()

    def step(self) -> None:
        self.epoch = 1 if self.epoch == 0x7FFFFFFF else self.epoch + 1


class ShareSession:
    """One member with its locks. Made by `ShareSession.join`; `await close()` releases all."""

    def __init__(self, cluster: Cluster, membership: ShareMembership) -> None:
        self.cluster = cluster
        self.membership = membership
        self.lock_timeout_ms = 0
        self._nodes: dict[int, _NodeSession] = {}
        self._lane = f"share {membership.member_id}"
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    async def join(
        cls, cluster: Cluster, group: str, topics: Sequence[str], *, rack: str | None = None
    ) -> ShareSession:
        """Become a member of `group` that subscribes to `topics`.

        Raises `KafkaError`: GROUP_MAX_SIZE_REACHED, INVALID_GROUP_ID or GROUP_ID_NOT_FOUND for a
        group of another type, UNSUPPORTED_VERSION where share groups are off.
        """
        membership = ShareMembership(cluster, group, topics, rack)
        await membership.join()
        return cls(cluster, membership)

    async def __aenter__(self) -> ShareSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def group(self) -> str:
        return self.membership.group

    @property
    def member_id(self) -> str:
        return self.membership.member_id

    @property
    def assignment(self) -> Assignment:
        """Topic ids and their partitions that this member may acquire from at present."""
        return self.membership.assignment

    async def acquire(
        self, *, max_records: int = 500, max_bytes: int = 50 << 20, max_wait_ms: int = 500,
        min_bytes: int = 1, mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
        acknowledgements: Iterable[Acknowledgement] = (), payload: bool = True,
    ) -> Acquisition:  # fmt: skip
        """Lock records that are available, waiting up to `max_wait_ms` for the first.

        `acknowledgements` ride along and cost no request of their own; renewals may not, use
        `acknowledge`. Without `payload` the result tells ranges and batch sizes alone, and a
        broker that can leaves the records at home. Returns an empty acquisition when the time is
        over. Raises what ended the membership, and `KafkaError` of brokers that refused until
        then, such as SHARE_SESSION_LIMIT_REACHED.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_ms / 1000
        limits = _Limits(max_records, max_bytes, min_bytes, mode, payload)
        async with self._one_at_a_time:
            acks = list(acknowledgements)
            refusals: list[Refusal] = []
            while True:
                self.membership.check()
                left_ms = max(0, int((deadline - loop.time()) * 1000))
                began = loop.time()
                try:
                    found = await self._fetch(acks, refusals, left_ms, limits)
                except KafkaError as error:
                    if left_ms == 0 or not error.retriable:
                        raise
                    found = []
                acks = []
                if found or left_ms == 0:
                    lock_ms = self.lock_timeout_ms if found else 0
                    return Acquisition(tuple(found), tuple(refusals), lock_ms)
                if not self.assignment:
                    await self.membership.changed(min(left_ms, 1_000) / 1000)
                elif loop.time() - began < QUICK_ROUND_S:
                    await asyncio.sleep(QUICK_ROUND_S if self._nodes else UNREACHED_S)

    async def acknowledge(self, acknowledgements: Iterable[Acknowledgement]) -> tuple[Refusal, ...]:
        """Settle or renew locked offsets; what the broker refuses comes back.

        Acknowledgements of one partition stand or fall together. A renewal restarts the locks'
        time (`lock_timeout_ms`) and keeps the records with this member.
        """
        async with self._one_at_a_time:
            refusals: list[Refusal] = []
            by_node = await self._by_node(list(acknowledgements), refusals)
            await asyncio.gather(
                *(self._acknowledge(node, acks, refusals) for node, acks in by_node.items())
            )
            return tuple(refusals)

    async def renew(self, acquired: Iterable[Acquired]) -> tuple[Refusal, ...]:
        """Start the locks of these anew (KIP-1222); needs `share.renew.acknowledge.enable`."""
        return await self.acknowledge(
            ack for one in acquired for ack in one.acknowledge(AcknowledgeType.RENEW)
        )

    async def close(self, *, undelivered: bool = False) -> None:
        """Release every lock and leave the group. Failures are passed over: locks run out.

        `undelivered` says that nothing came of what is still locked, so that its delivery does not
        count; Kafka's brokers count it all the same.
        """
        async with self._one_at_a_time:
            await asyncio.gather(
                *(self._close_node(node, undelivered) for node in self._nodes.values()),
                return_exceptions=True,
            )
            for node in self._nodes.values():
                node.link.close()
            self._nodes.clear()
            await self.membership.leave()

    async def _close_node(self, node: _NodeSession, undelivered: bool) -> None:
        if node.epoch and not node.link.closed:
            body = self._head(-1) | {"topics": (), "undelivered": undelivered}
            await node.link.request(ApiKey.SHARE_ACKNOWLEDGE, body)

    # -- fetching

    async def _fetch(
        self, acks: list[Acknowledgement], refusals: list[Refusal], wait_ms: int, limits: _Limits
    ) -> list[Acquired]:
        """One round over all brokers that lead assigned partitions. Sessions with others stay:
        to close them would release what the member is still at work on.

        Raises a broker's refusal where nothing was acquired; network failures are passed over.
        """
        carried = await self._by_node(acks, refusals)
        try:
            by_leader = await self._by_leader()
        except ClientError as unknown:
            refusals += [Refusal(ack, unknown) for some in carried.values() for ack in some]
            raise
        nodes = sorted({*by_leader, *carried})
        if not nodes:
            return []
        patience_s = None
        if len(nodes) > 1:
            wait_ms = min(wait_ms, LONG_POLL_MS_MAX)
            patience_s = LONG_POLL_MS_MAX / 1000
        each = limits._replace(max_records=max(1, limits.max_records // len(nodes)))
        rounds = (
            self._fetch_node(
                n,
                by_leader.get(n, frozenset()),
                carried.get(n, []),
                refusals,
                wait_ms,
                each,
                patience_s,
            )
            for n in nodes
        )
        found: list[Acquired] = []
        refused: KafkaError | None = None
        results = await asyncio.gather(*rounds, return_exceptions=True)
        for n, result in zip(nodes, results, strict=True):
            if isinstance(result, KafkaError):
                refused = result
            elif isinstance(result, ClientError) and transient(result):
                # Somebody else may lead by now what this broker led, and nobody says so.
                for topic_id, _ in by_leader.get(n, frozenset()):
                    self.cluster.forget_topic_id(topic_id)
            elif isinstance(result, BaseException):
                raise result
            else:
                found += result
        if refused is not None and not found:
            raise refused
        return found

    async def _by_leader(self) -> dict[int, frozenset[tuple[UUID, int]]]:
        """The assigned partitions of each broker; those without a leader wait."""
        found: dict[int, set[tuple[UUID, int]]] = {}
        for topic_id, partitions in self.assignment.items():
            name = await self.cluster.topic_name(topic_id)
            if name is None:
                continue
            for partition in partitions:
                try:
                    leader = await self.cluster.leader(name, partition)
                except KafkaError:
                    continue
                found.setdefault(leader, set()).add((topic_id, partition))
        return {node: frozenset(some) for node, some in found.items()}

    async def _fetch_node(
        self, node_id: int, wanted: frozenset[tuple[UUID, int]], acks: list[Acknowledgement],
        refusals: list[Refusal], wait_ms: int, limits: _Limits, patience_s: float | None,
    ) -> list[Acquired]:  # fmt: skip
        try:
            node = await self._node(node_id, patience_s)
        except ClientError as unreachable:
            refusals += [Refusal(ack, unreachable) for ack in acks]
            raise
        if node.epoch == 0 and acks:
            error = KafkaError(ErrorCode.share_session_not_found, _LOCKS_GONE)
            refusals += [Refusal(ack, error) for ack in acks]
            acks = []
        if node.epoch == 0 and not wanted:
            return []
        acks = _delayable(node.link, acks, refusals)
        lean = not limits.payload and HEADERS_ONLY_FEATURE in node.link.features
        topics = await self._topics(wanted - node.partitions, acks, refusals)
        body = self._head(node.epoch) | {
            "max_wait_ms": wait_ms,
            "min_bytes": limits.min_bytes,
            "max_bytes": limits.max_bytes,
            "max_records": limits.max_records,
            "batch_size": limits.max_records,
            "share_acquire_mode": limits.mode | HEADERS_ONLY if lean else limits.mode,
            "topics": topics,
            "forgotten_topics_data": _by_topic(node.partitions - wanted),
        }
        timeout_ms = wait_ms + self.cluster.settings.request_timeout_ms
        try:
            answer = await node.link.request(ApiKey.SHARE_FETCH, body, timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            # Whatever this fetch still acquires nobody will hear of: a lost connection frees it.
            node.link.close()
            raise
        except ClientError as lost:
            self._drop(node_id)
            refusals += [Refusal(ack, lost) for ack in acks]
            raise
        if answer.error_code:
            error = KafkaError(answer.error_code, answer.error_message)
            refusals += [Refusal(ack, error) for ack in acks]
            if error.code in _LOST_SESSION:
                self._drop(node_id)
            raise error
        node.step()
        node.partitions = wanted
        strip = not limits.payload and not lean
        return await self._read(node, answer, acks, refusals, payload=limits.payload, strip=strip)

    async def _read(
        self, node: _NodeSession, answer: Any, acks: list[Acknowledgement],
        refusals: list[Refusal], *, payload: bool, strip: bool,
    ) -> list[Acquired]:  # fmt: skip
        """What a response acquired. A partition's refusal is raised where nothing else came, unless
        that passes: its leader moves, or the coordinator that keeps its state."""
        found = []
        refused: KafkaError | None = None
        self.lock_timeout_ms = codec.ms(answer.acquisition_lock_timeout) or self.lock_timeout_ms
        for topic in answer.responses:
            name = await self.cluster.topic_name(topic.topic_id) or str(topic.topic_id)
            for part in topic.partitions:
                index = part.partition_index
                if part.acknowledge_error_code:
                    error = KafkaError(part.acknowledge_error_code, part.acknowledge_error_message)
                    refusals += [Refusal(a, error) for a in acks if a[:2] == (name, index)]
                if part.error_code:
                    node.partitions -= {(topic.topic_id, index)}
                    if part.error_code in STALE_METADATA:
                        self.cluster.forget_topic(name)
                    elif part.error_code not in STALE_COORDINATOR:
                        refused = KafkaError(
                            part.error_code, part.error_message or f"partition {name}-{index}"
                        )
                if part.acquired_records:
                    ranges = tuple(
                        AcquiredRange(r.first_offset, r.last_offset, r.delivery_count)
                        for r in part.acquired_records
                    )
                    data = bytes(part.records or b"")
                    if strip:
                        data = b"".join(data[at : at + HEADER_SIZE] for at, _ in headers(data))
                    found.append(Acquired(name, topic.topic_id, index, ranges, data, payload))
        if refused is not None and not found:
            raise refused
        return found

    # -- acknowledging

    async def _by_node(
        self, acks: list[Acknowledgement], refusals: list[Refusal]
    ) -> dict[int, list[Acknowledgement]]:
        """Acknowledgements by the broker whose session holds the lock."""
        found: dict[int, list[Acknowledgement]] = {}
        for ack in acks:
            try:
                leader = await self.cluster.leader(ack.topic, ack.partition)
            except ClientError as error:
                refusals.append(Refusal(ack, error))
            else:
                found.setdefault(leader, []).append(ack)
        return found

    async def _acknowledge(
        self, node_id: int, acks: list[Acknowledgement], refusals: list[Refusal]
    ) -> None:
        node = self._nodes.get(node_id)
        if node is None or node.epoch == 0 or node.link.closed:
            error = KafkaError(ErrorCode.share_session_not_found, _LOCKS_GONE)
            refusals += [Refusal(ack, error) for ack in acks]
            return
        acks = _delayable(node.link, acks, refusals)
        if not acks:
            return
        body = self._head(node.epoch)
        body["is_renew_ack"] = any(a.type == AcknowledgeType.RENEW for a in acks)
        body["topics"] = await self._topics(frozenset(), acks, refusals)
        version = node.link.version(ApiKey.SHARE_ACKNOWLEDGE)
        if body["is_renew_ack"] and version < 2:
            error = KafkaError(ErrorCode.unsupported_version, "the broker cannot renew locks")
            refusals += [Refusal(ack, error) for ack in acks]
            return
        try:
            answer = await node.link.request(ApiKey.SHARE_ACKNOWLEDGE, body)
        except ClientError as lost:
            self._drop(node_id)
            refusals += [Refusal(ack, lost) for ack in acks]
            return
        if answer.error_code:
            error = KafkaError(answer.error_code, answer.error_message)
            refusals += [Refusal(ack, error) for ack in acks]
            if error.code in _LOST_SESSION:
                self._drop(node_id)
            return
        node.step()
        if version >= 2:
            lock_ms = codec.ms(answer.acquisition_lock_timeout)
            self.lock_timeout_ms = lock_ms or self.lock_timeout_ms
        for topic in answer.responses:
            name = await self.cluster.topic_name(topic.topic_id)
            for part in topic.partitions:
                if part.error_code:
                    if part.error_code in STALE_METADATA and name:
                        self.cluster.forget_topic(name)
                    error = KafkaError(part.error_code, part.error_message)
                    where = (name, part.partition_index)
                    refusals += [Refusal(ack, error) for ack in acks if ack[:2] == where]

    # -- sessions

    async def _node(self, node_id: int, patience_s: float | None) -> _NodeSession:
        """The session with a broker. A connection that takes longer than `patience_s` goes on to be
        made, and is there for a later round: the other brokers' records do not wait for it."""
        node = self._nodes.get(node_id)
        if node is None or node.link.closed:
            connecting = self.cluster.connection(node_id, self._lane)
            try:
                link = await asyncio.wait_for(connecting, patience_s)
            except TimeoutError:
                raise ConnectionLost(f"broker {node_id} does not answer yet") from None
            node = self._nodes[node_id] = _NodeSession(link)
        return node

    def _drop(self, node_id: int) -> None:
        """Forget a session; the next fetch opens one. Its locks are the broker's to release."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            node.epoch, node.partitions = 0, frozenset()
            if not node.link.closed:
                self._nodes[node_id] = node

    def _head(self, epoch: int) -> dict[str, Any]:
        return {
            "group_id": self.group, "member_id": self.member_id, "share_session_epoch": epoch,
        }  # fmt: skip

    async def _topics(
        self, added: frozenset[tuple[UUID, int]], acks: list[Acknowledgement],
        refusals: list[Refusal],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """What a request says by topic; those of `acks` whose topic nobody knows are refused, and
        leave `acks`."""
        batches: dict[UUID, dict[int, list[dict[str, Any]]]] = {}
        for topic_id, index in sorted(added):
            batches.setdefault(topic_id, {})[index] = []
        for ack in sorted(acks):
            try:
                known = (await self.cluster.topic(ack.topic)).topic_id
            except ClientError as error:
                refusals.append(Refusal(ack, error))
                acks.remove(ack)
                continue
            assert known is not None
            batches.setdefault(known, {}).setdefault(ack.partition, []).append({
                "first_offset": ack.first_offset,
                "last_offset": ack.last_offset,
                "acknowledge_types": [int(ack.type)],
                "release_delay_ms": ack.delay_ms,
            })  # fmt: skip
        return [
            {"topic_id": topic_id, "partitions": [
                {"partition_index": index, "acknowledgement_batches": some}
                for index, some in partitions.items()
            ]}
            for topic_id, partitions in batches.items()
        ]  # fmt: skip


def _delayable(
    link: Connection, acks: list[Acknowledgement], refusals: list[Refusal]
) -> list[Acknowledgement]:
    """The acknowledgements that this broker understands: delays would be passed over elsewhere."""
    if RELEASE_DELAY_FEATURE in link.features:
        return acks
    error = KafkaError(ErrorCode.unsupported_version, "the broker cannot delay what is released")
    refusals += [Refusal(ack, error) for ack in acks if ack.delay_ms >= 0]
    return [ack for ack in acks if ack.delay_ms < 0]


_LOCKS_GONE = "the broker ended the share session, and with it the locks of this member"


def _by_topic(partitions: frozenset[tuple[UUID, int]]) -> list[dict[str, Any]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return [{"topic_id": t, "partitions": p} for t, p in found.items()]
