"""The share session with one broker: its requests, and what came of each (KIP-932).

The session is that of a connection: its epoch counts requests, its partitions are told by
difference. One that the broker has dropped is opened anew by the next fetch. The locks that it held
are the broker's to release, and settling them is refused.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple
from uuid import UUID

from shoal.client.acquired import (
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquiredRange,
    AcquireMode,
    Refusal,
)
from shoal.client.cluster import Cluster
from shoal.client.connection import Connection
from shoal.client.errors import STALE_COORDINATOR, STALE_METADATA, ClientError, KafkaError
from shoal.client.membership import Membership
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import HEADERS_ONLY, HEADERS_ONLY_FEATURE, RELEASE_DELAY_FEATURE
from shoal.record.batch import HEADER_SIZE, headers

Partitions = frozenset[tuple[UUID, int]]
_LOST_SESSION = (ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch)
_LOCKS_GONE = "the broker ended the share session, and with it the locks of this member"


class Limits(NamedTuple):
    """What one acquisition may take, and whether its records are wanted too."""

    max_records: int
    max_bytes: int
    min_bytes: int
    mode: AcquireMode
    payload: bool


class NodeSession:
    """Its epoch, 0 while there is none, and the partitions that the broker knows of."""

    __slots__ = (
        "_cluster",
        "_membership",
        "epoch",
        "link",
        "lock_timeout_ms",
        "node_id",
        "partitions",
    )

    def __init__(
        self, cluster: Cluster, membership: Membership, link: Connection, node_id: int
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self.link = link
        self.node_id = node_id
        self.epoch = 0
        self.partitions: Partitions = frozenset()
        #: As the broker said last; 0 until it has.
        self.lock_timeout_ms = 0

    async def fetch(
        self,
        wanted: Partitions,
        acks: list[Acknowledgement],
        refusals: list[Refusal],
        wait_ms: int,
        limits: Limits,
    ) -> list[Acquired]:
        """Acquire from the `wanted` partitions. Raises what the broker refuses, or its loss; what
        it does not take of `acks` is added to `refusals` in any case."""
        if self.epoch == 0 and acks:
            refusals += of_lost_locks(acks)
            acks = []
        if self.epoch == 0 and not wanted:
            return []
        acks = _delayable(self.link, acks, refusals)
        lean = not limits.payload and HEADERS_ONLY_FEATURE in self.link.features
        topics = await self._topics(wanted - self.partitions, acks, refusals)
        body = self._head(self.epoch) | {
            "max_wait_ms": wait_ms,
            "min_bytes": limits.min_bytes,
            "max_bytes": limits.max_bytes,
            "max_records": limits.max_records,
            "batch_size": limits.max_records,
            "share_acquire_mode": limits.mode | HEADERS_ONLY if lean else limits.mode,
            "topics": topics,
            "forgotten_topics_data": _by_topic(self.partitions - wanted),
        }
        timeout_ms = wait_ms + self._cluster.settings.request_timeout_ms
        try:
            answer = await self.link.request(ApiKey.SHARE_FETCH, body, timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            # Whatever this fetch still acquires nobody will hear of: a lost connection frees it.
            self.link.close()
            raise
        except ClientError as lost:
            self._forget()
            refusals += [Refusal(ack, lost) for ack in acks]
            raise
        if answer.error_code:
            error = KafkaError(answer.error_code, answer.error_message)
            refusals += [Refusal(ack, error) for ack in acks]
            if error.code in _LOST_SESSION:
                self._forget()
            raise error
        self.step()
        self.partitions = wanted
        strip = not limits.payload and not lean
        return await self._read(answer, acks, refusals, payload=limits.payload, strip=strip)

    async def _read(
        self,
        answer: Any,
        acks: list[Acknowledgement],
        refusals: list[Refusal],
        *,
        payload: bool,
        strip: bool,
    ) -> list[Acquired]:
        """What a response acquired. A partition's refusal is raised where nothing else came, unless
        that passes: its leader moves, or the coordinator that keeps its state."""
        found = []
        refused: KafkaError | None = None
        self.lock_timeout_ms = codec.ms(answer.acquisition_lock_timeout) or self.lock_timeout_ms
        for topic in answer.responses:
            name = await self._cluster.topic_name(topic.topic_id) or str(topic.topic_id)
            for part in topic.partitions:
                index = part.partition_index
                if part.acknowledge_error_code:
                    error = KafkaError(part.acknowledge_error_code, part.acknowledge_error_message)
                    refusals += [Refusal(a, error) for a in acks if a[:2] == (name, index)]
                if part.error_code:
                    self.partitions -= {(topic.topic_id, index)}
                    if part.error_code in STALE_METADATA:
                        self._cluster.forget_topic(name)
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
                    found.append(
                        Acquired(name, topic.topic_id, index, ranges, data, payload, self.node_id)
                    )
        if refused is not None and not found:
            raise refused
        return found

    async def acknowledge(self, acks: list[Acknowledgement], refusals: list[Refusal]) -> None:
        """Settle or renew; what is not taken is added to `refusals`."""
        if self.epoch == 0 or self.link.closed:
            refusals += of_lost_locks(acks)
            return
        acks = _delayable(self.link, acks, refusals)
        if not acks:
            return
        body = self._head(self.epoch)
        body["is_renew_ack"] = any(a.type == AcknowledgeType.RENEW for a in acks)
        body["topics"] = await self._topics(frozenset(), acks, refusals)
        version = self.link.version(ApiKey.SHARE_ACKNOWLEDGE)
        if body["is_renew_ack"] and version < 2:
            error = KafkaError(ErrorCode.unsupported_version, "the broker cannot renew locks")
            refusals += [Refusal(ack, error) for ack in acks]
            return
        try:
            answer = await self.link.request(ApiKey.SHARE_ACKNOWLEDGE, body)
        except ClientError as lost:
            self._forget()
            refusals += [Refusal(ack, lost) for ack in acks]
            return
        if answer.error_code:
            error = KafkaError(answer.error_code, answer.error_message)
            refusals += [Refusal(ack, error) for ack in acks]
            if error.code in _LOST_SESSION:
                self._forget()
            return
        self.step()
        if version >= 2:
            lock_ms = codec.ms(answer.acquisition_lock_timeout)
            self.lock_timeout_ms = lock_ms or self.lock_timeout_ms
        for topic in answer.responses:
            name = await self._cluster.topic_name(topic.topic_id)
            for part in topic.partitions:
                if part.error_code:
                    if part.error_code in STALE_METADATA and name:
                        self._cluster.forget_topic(name)
                    error = KafkaError(part.error_code, part.error_message)
                    where = (name, part.partition_index)
                    refusals += [Refusal(ack, error) for ack in acks if ack[:2] == where]

    async def close(self, undelivered: bool) -> None:
        """End the session, which releases its locks."""
        if self.epoch and not self.link.closed:
            body = self._head(-1) | {"topics": (), "undelivered": undelivered}
            await self.link.request(ApiKey.SHARE_ACKNOWLEDGE, body)

    def step(self) -> None:
        """A request of the session was answered."""
        self.epoch = 1 if self.epoch == 0x7FFFFFFF else self.epoch + 1

    def _forget(self) -> None:
        self.epoch, self.partitions = 0, frozenset()

    def _head(self, epoch: int) -> dict[str, Any]:
        return {
            "group_id": self._membership.group,
            "member_id": self._membership.member_id,
            "share_session_epoch": epoch,
        }

    async def _topics(
        self,
        added: Partitions,
        acks: list[Acknowledgement],
        refusals: list[Refusal],
    ) -> list[dict[str, Any]]:
        """What a request says by topic; those of `acks` whose topic nobody knows are refused, and
        leave `acks`."""
        batches: dict[UUID, dict[int, list[dict[str, Any]]]] = {}
        for topic_id, index in sorted(added):
            batches.setdefault(topic_id, {})[index] = []
        for ack in sorted(acks):
            try:
                known = (await self._cluster.topic(ack.topic)).topic_id
            except ClientError as error:
                refusals.append(Refusal(ack, error))
                acks.remove(ack)
                continue
            assert known is not None
            batches.setdefault(known, {}).setdefault(ack.partition, []).append(
                {
                    "first_offset": ack.first_offset,
                    "last_offset": ack.last_offset,
                    "acknowledge_types": [int(ack.type)],
                    "release_delay_ms": ack.delay_ms,
                }
            )
        return [
            {
                "topic_id": topic_id,
                "partitions": [
                    {"partition_index": index, "acknowledgement_batches": some}
                    for index, some in partitions.items()
                ],
            }
            for topic_id, partitions in batches.items()
        ]


def of_lost_locks(acks: list[Acknowledgement]) -> list[Refusal]:
    """The refusals of acknowledgements whose locks are gone with their session."""
    error = KafkaError(ErrorCode.share_session_not_found, _LOCKS_GONE)
    return [Refusal(ack, error) for ack in acks]


def _delayable(
    link: Connection, acks: list[Acknowledgement], refusals: list[Refusal]
) -> list[Acknowledgement]:
    """The acknowledgements that this broker understands: delays would be passed over elsewhere."""
    if RELEASE_DELAY_FEATURE in link.features:
        return acks
    error = KafkaError(ErrorCode.unsupported_version, "the broker cannot delay what is released")
    refusals += [Refusal(ack, error) for ack in acks if ack.delay_ms >= 0]
    return [ack for ack in acks if ack.delay_ms < 0]


def _by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return [{"topic_id": t, "partitions": p} for t, p in found.items()]
