"""The share session with one broker: its requests and their results (KIP-932).

A session belongs to a connection. Its epoch counts requests, and requests send only changed
partitions. If the broker dropped the session, the next fetch opens a new one. The broker releases
the old session's locks, and rejects acknowledgements of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.client.acquired import (
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquiredRange,
    AcquireMode,
    Refusal,
)
from shoal.client.errors import STALE_COORDINATOR, STALE_METADATA, ClientError, KafkaError
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import HEADERS_ONLY, HEADERS_ONLY_FEATURE, RELEASE_DELAY_FEATURE
from shoal.record.batch import HEADER_SIZE, headers

if TYPE_CHECKING:
    from shoal.client.cluster import Cluster
    from shoal.client.connection import Connection
    from shoal.client.membership import Membership

Partitions = frozenset[tuple[UUID, int]]
_LOST_SESSION = (ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch)
_LOCKS_GONE = "the broker ended the share session and released this member's locks"


class Limits(NamedTuple):
    """The limits of one acquisition, and whether it includes the records."""

    max_records: int
    max_bytes: int
    min_bytes: int
    mode: AcquireMode
    payload: bool


class NodeSession:
    """A session: its epoch, 0 if there is none, and the partitions that it includes."""

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
        #: The last value from the broker; 0 before the first.
        self.lock_timeout_ms = 0

    async def fetch(
        self,
        wanted: Partitions,
        acks: list[Acknowledgement],
        refusals: list[Refusal],
        wait_ms: int,
        limits: Limits,
        patience_ms: int | None = None,
    ) -> list[Acquired]:
        """Acquire from the `wanted` partitions. The broker may take `patience_ms` longer than
        `wait_ms` to answer. Raises a broker's refusal or the loss of the broker. Rejected `acks`
        are added to `refusals` in any case.
        """
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
        timeout_ms = wait_ms + (patience_ms or self._cluster.settings.request_timeout_ms)
        try:
            answer = await self.link.request(ApiKey.SHARE_FETCH, body, timeout_ms=timeout_ms)
        except asyncio.CancelledError:
            # No caller will receive what this fetch still acquires. Closing the connection releases
            # it.
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
        """Return what a response acquired. Raise a partition's error if nothing else was acquired,
        unless it is transient: its leader or the share coordinator moves.
        """
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

    async def acknowledge(
        self, acks: list[Acknowledgement], refusals: list[Refusal], timeout_ms: int
    ) -> None:
        """Settle or renew; rejected acknowledgements are added to `refusals`."""
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
            error = KafkaError(
                ErrorCode.unsupported_version, "the broker does not support lock renewal"
            )
            refusals += [Refusal(ack, error) for ack in acks]
            return
        try:
            answer = await self.link.request(ApiKey.SHARE_ACKNOWLEDGE, body, timeout_ms=timeout_ms)
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
        refusals += await self._rejected(answer, acks)

    async def _rejected(self, answer: Any, acks: list[Acknowledgement]) -> list[Refusal]:
        """Return the acknowledgements of partitions with an error."""
        found = []
        for topic in answer.responses:
            name = await self._cluster.topic_name(topic.topic_id)
            for part in topic.partitions:
                if not part.error_code:
                    continue
                if part.error_code in STALE_METADATA and name:
                    self._cluster.forget_topic(name)
                error = KafkaError(part.error_code, part.error_message)
                where = (name, part.partition_index)
                found += [Refusal(ack, error) for ack in acks if ack[:2] == where]
        return found

    async def close(self, undelivered: bool) -> None:
        """End the session, which releases its locks."""
        if self.epoch and not self.link.closed:
            body = self._head(-1) | {"topics": (), "undelivered": undelivered}
            await self.link.request(ApiKey.SHARE_ACKNOWLEDGE, body)

    def step(self) -> None:
        """Advance the session epoch after an answer."""
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
        """Return the request's partitions by topic. Acknowledgements of unknown topics are
        removed from `acks` and added to `refusals`.
        """
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
    """Return refusals of acknowledgements whose locks ended with their session."""
    error = KafkaError(ErrorCode.share_session_not_found, _LOCKS_GONE)
    return [Refusal(ack, error) for ack in acks]


def _delayable(
    link: Connection, acks: list[Acknowledgement], refusals: list[Refusal]
) -> list[Acknowledgement]:
    """Return the acknowledgements that this broker supports. Others would ignore the delay."""
    if RELEASE_DELAY_FEATURE in link.features:
        return acks
    error = KafkaError(
        ErrorCode.unsupported_version, "the broker does not support delayed releases"
    )
    refusals += [Refusal(ack, error) for ack in acks if ack.delay_ms >= 0]
    return [ack for ack in acks if ack.delay_ms < 0]


def _by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return [{"topic_id": t, "partitions": p} for t, p in found.items()]
