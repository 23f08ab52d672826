"""The share session with one broker: its requests and their results (KIP-932).

A session belongs to a connection. Its epoch counts requests, and requests send only changed
partitions. If the broker dropped the session, the next fetch opens a new one. The broker releases
the old session's locks, and rejects acknowledgements of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.client.errors import (
    STALE_COORDINATOR,
    STALE_METADATA,
    ClientError,
    KafkaError,
    RecordCancelled,
)
from shoal.client.share.acquired import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRange,
    AcquiredRecords,
    AcquireMode,
    RejectedAcknowledgement,
)
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import (
    FAILURE_REASON_FEATURE,
    HEADERS_ONLY,
    HEADERS_ONLY_FEATURE,
    RELEASE_DELAY_FEATURE,
)
from shoal.protocol.reasons import REASONS_MAX, REQUEST_BYTES_MAX, encode_reason
from shoal.record.batch import HEADER_SIZE, iter_headers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.net.cluster import Cluster
    from shoal.client.net.connection import Connection
    from shoal.client.net.membership import Membership

Partitions = frozenset[tuple[UUID, int]]
_LOST_SESSION = (ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch)
_LOCKS_GONE = "the broker ended the share session and released this member's locks"


class AcquireLimits(NamedTuple):
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
        "hold",
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
        #: Stands for the locks of this session. Another object follows once they are lost.
        self.hold = object()
        self.partitions: Partitions = frozenset()
        #: The last value from the broker; 0 before the first.
        self.lock_timeout_ms = 0

    async def fetch(
        self,
        partitions: Partitions,
        acks: list[Acknowledgement],
        refusals: list[RejectedAcknowledgement],
        wait_ms: int,
        limits: AcquireLimits,
        patience_ms: int | None = None,
    ) -> list[AcquiredRecords]:
        """Acquire from the `partitions` partitions. The broker may take `patience_ms` longer than
        `wait_ms` to answer. Raises a broker's refusal or the loss of the broker. Rejected `acks`
        are added to `refusals` in any case.
        """
        if self.epoch == 0 and acks:
            refusals += refuse_lost_locks(acks)
            acks = []
        if self.epoch == 0 and not partitions:
            return []
        acks = _select_delayable(self.link, acks, refusals)
        lean = not limits.payload and HEADERS_ONLY_FEATURE in self.link.features
        topics = await self._make_topics(partitions - self.partitions, acks, refusals)
        body = self._make_head(self.epoch) | {
            "max_wait_ms": wait_ms,
            "min_bytes": limits.min_bytes,
            "max_bytes": limits.max_bytes,
            "max_records": limits.max_records,
            "batch_size": limits.max_records,
            "share_acquire_mode": limits.mode | HEADERS_ONLY if lean else limits.mode,
            "topics": topics,
            "forgotten_topics_data": _group_by_topic(self.partitions - partitions),
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
            refusals += [RejectedAcknowledgement(ack, lost) for ack in acks]
            raise
        if answer.error_code:
            error = KafkaError(answer.error_code, answer.error_message)
            refusals += [RejectedAcknowledgement(ack, error) for ack in acks]
            if error.code in _LOST_SESSION:
                self._forget()
            raise error
        self.step()
        self.partitions = partitions
        strip = not limits.payload and not lean
        return await self._read(answer, acks, refusals, payload=limits.payload, strip=strip)

    async def _read(
        self,
        answer: Any,
        acks: list[Acknowledgement],
        refusals: list[RejectedAcknowledgement],
        *,
        payload: bool,
        strip: bool,
    ) -> list[AcquiredRecords]:
        """Return what a response acquired. Raise a partition's error if nothing else was acquired,
        unless it is transient: its leader or the share coordinator moves.
        """
        acquired = []
        refused: KafkaError | None = None
        self.lock_timeout_ms = codec.to_ms(answer.acquisition_lock_timeout) or self.lock_timeout_ms
        for topic in answer.responses:
            name = await self._cluster.get_topic_name(topic.topic_id) or str(topic.topic_id)
            for part in topic.partitions:
                index = part.partition_index
                if part.acknowledge_error_code:
                    error = KafkaError(part.acknowledge_error_code, part.acknowledge_error_message)
                    refusals += [
                        RejectedAcknowledgement(a, error) for a in acks if a[:2] == (name, index)
                    ]
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
                        data = b"".join(
                            data[position : position + HEADER_SIZE]
                            for position, _ in iter_headers(data)
                        )
                    acquired.append(
                        AcquiredRecords(
                            name, topic.topic_id, index, ranges, data, payload, self.node_id
                        )
                    )
        if refused is not None and not acquired:
            raise refused
        return acquired

    async def acknowledge(
        self, acks: list[Acknowledgement], refusals: list[RejectedAcknowledgement], timeout_ms: int
    ) -> None:
        """Settle or renew; rejected acknowledgements are added to `refusals`."""
        if self.epoch == 0 or self.link.closed:
            refusals += refuse_lost_locks(acks)
            return
        acks = _select_delayable(self.link, acks, refusals)
        if not acks:
            return
        body = self._make_head(self.epoch)
        body["is_renew_ack"] = any(a.type == AcknowledgeType.RENEW for a in acks)
        body["topics"] = await self._make_topics(frozenset(), acks, refusals)
        version = self.link.choose_version(ApiKey.SHARE_ACKNOWLEDGE)
        if body["is_renew_ack"] and version < 2:
            error = KafkaError(
                ErrorCode.unsupported_version, "the broker does not support lock renewal"
            )
            refusals += [RejectedAcknowledgement(ack, error) for ack in acks]
            return
        try:
            answer = await self.link.request(ApiKey.SHARE_ACKNOWLEDGE, body, timeout_ms=timeout_ms)
        except ClientError as lost:
            self._forget()
            refusals += [RejectedAcknowledgement(ack, lost) for ack in acks]
            return
        if answer.error_code:
            error = KafkaError(answer.error_code, answer.error_message)
            refusals += [RejectedAcknowledgement(ack, error) for ack in acks]
            if error.code in _LOST_SESSION:
                self._forget()
            return
        self.step()
        if version >= 2:
            self.lock_timeout_ms = _read_lock_ms(answer) or self.lock_timeout_ms
        refusals += await self._parse_rejected(answer, acks)

    async def _parse_rejected(
        self, answer: Any, acks: list[Acknowledgement]
    ) -> list[RejectedAcknowledgement]:
        """Return the acknowledgements of partitions with an error, and renewals of cancelled
        records, which the broker leaves out."""
        refusals = []
        for topic in answer.responses:
            name = await self._cluster.get_topic_name(topic.topic_id)
            for part in topic.partitions:
                cancelled = getattr(part, "cancelled", ())
                if not part.error_code and not cancelled:
                    continue
                if part.error_code in STALE_METADATA and name:
                    self._cluster.forget_topic(name)
                of_partition = [ack for ack in acks if ack[:2] == (name, part.partition_index)]
                if cancelled:
                    refusals += _find_cancelled(of_partition, cancelled)
                else:
                    error = KafkaError(part.error_code, part.error_message)
                    refusals += [RejectedAcknowledgement(ack, error) for ack in of_partition]
        return refusals

    async def close(self, undelivered: bool) -> None:
        """End the session, which releases its locks."""
        if self.epoch and not self.link.closed:
            body = self._make_head(-1) | {"topics": (), "undelivered": undelivered}
            await self.link.request(ApiKey.SHARE_ACKNOWLEDGE, body)

    def step(self) -> None:
        """Advance the session epoch after an answer."""
        self.epoch = 1 if self.epoch == 0x7FFFFFFF else self.epoch + 1

    def _forget(self) -> None:
        self.epoch, self.partitions = 0, frozenset()
        self.hold = object()

    def _make_head(self, epoch: int) -> dict[str, Any]:
        return {
            "group_id": self._membership.group,
            "member_id": self._membership.member_id,
            "share_session_epoch": epoch,
        }

    async def _make_topics(
        self,
        added: Partitions,
        acks: list[Acknowledgement],
        refusals: list[RejectedAcknowledgement],
    ) -> list[dict[str, Any]]:
        """Return the request's partitions by topic. Acknowledgements of unknown topics are
        removed from `acks` and added to `refusals`.
        """
        batches: dict[UUID, dict[int, list[dict[str, Any]]]] = {}
        for topic_id, index in sorted(added):
            batches.setdefault(topic_id, {})[index] = []
        reasons = _ReasonFields(FAILURE_REASON_FEATURE in self.link.features)
        for ack in sorted(acks, key=_get_place):
            try:
                ack_topic_id = (await self._cluster.get_topic(ack.topic)).topic_id
            except ClientError as error:
                refusals.append(RejectedAcknowledgement(ack, error))
                acks.remove(ack)
                continue
            assert ack_topic_id is not None
            batches.setdefault(ack_topic_id, {}).setdefault(ack.partition, []).append(
                {
                    "first_offset": ack.first_offset,
                    "last_offset": ack.last_offset,
                    "acknowledge_types": [int(ack.type)],
                    "release_delay_ms": ack.delay_ms,
                    "reason": reasons.make(ack),
                }
            )
        return [
            {
                "topic_id": topic_id,
                "partitions": [
                    {"partition_index": index, "acknowledgement_batches": ack_batches}
                    for index, ack_batches in partitions.items()
                ],
            }
            for topic_id, partitions in batches.items()
        ]


class _ReasonFields:
    """The reasons of one request, as far as the broker takes them."""

    def __init__(self, supported: bool) -> None:
        self._reasons_left = REASONS_MAX if supported else 0
        self._bytes_left = REQUEST_BYTES_MAX

    def make(self, ack: Acknowledgement) -> dict[str, str] | None:
        """Return the field of an acknowledgement, or None if its reason is left out."""
        if ack.reason is None or not self._reasons_left:
            return None
        reason = ack.reason.fit()
        size = len(encode_reason(reason))
        if size > self._bytes_left:
            return None
        self._reasons_left -= 1
        self._bytes_left -= size
        return reason._asdict()


def _read_lock_ms(answer: Any) -> int:
    """Return the duration of locks in a response, whose type depends on tagged fields of Shoal."""
    plain_ms: int | None = getattr(answer, "acquisition_lock_timeout_ms", None)
    return codec.to_ms(answer.acquisition_lock_timeout) if plain_ms is None else plain_ms


def _find_cancelled(
    acks: list[Acknowledgement], cancelled: Iterable[Any]
) -> list[RejectedAcknowledgement]:
    """Return the parts of renewals that are in cancelled ranges."""
    error = RecordCancelled()
    refusals = []
    for offsets in cancelled:
        for ack in acks:
            first = max(ack.first_offset, offsets.first_offset)
            last = min(ack.last_offset, offsets.last_offset)
            if ack.type is AcknowledgeType.RENEW and first <= last:
                part = ack._replace(first_offset=first, last_offset=last)
                refusals.append(RejectedAcknowledgement(part, error))
    return refusals


def _get_place(ack: Acknowledgement) -> tuple[str, int, int, int]:
    return ack[:4]


def refuse_lost_locks(acks: list[Acknowledgement]) -> list[RejectedAcknowledgement]:
    """Return refusals of acknowledgements whose locks ended with their session."""
    error = KafkaError(ErrorCode.share_session_not_found, _LOCKS_GONE)
    return [RejectedAcknowledgement(ack, error) for ack in acks]


def _select_delayable(
    link: Connection, acks: list[Acknowledgement], refusals: list[RejectedAcknowledgement]
) -> list[Acknowledgement]:
    """Return the acknowledgements that this broker supports. Others would ignore the delay."""
    if RELEASE_DELAY_FEATURE in link.features:
        return acks
    error = KafkaError(
        ErrorCode.unsupported_version, "the broker does not support delayed releases"
    )
    refusals += [RejectedAcknowledgement(ack, error) for ack in acks if ack.delay_ms >= 0]
    return [ack for ack in acks if ack.delay_ms < 0]


def _group_by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    indexes_by_topic: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        indexes_by_topic.setdefault(topic_id, []).append(index)
    return [{"topic_id": t, "partitions": p} for t, p in indexes_by_topic.items()]
