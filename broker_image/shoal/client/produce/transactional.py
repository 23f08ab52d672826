"""A transactional producer (KIP-98): records and a group's offsets are stored together, or not.

The cluster must have finalized transaction.version 2 (KIP-890). The end of each transaction then
gives the producer a new epoch. A late batch of an earlier transaction is fenced by its epoch, so a
transaction can be aborted at any time, even if the answer to a batch is missing.

Errors have the categories of KIP-1050. After `TransactionAbortable` the application aborts and
begins again. `ProducerFenced`, `ApplicationRecoverable` and `InvalidConfiguration` are final: each
later call raises them again. A commit without an answer, such as `RequestTimeout`, has an unknown
result: call `commit` again.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from shoal.client.admin.groups import CommittedOffset
from shoal.client.consume.progress import ProgressCommit
from shoal.client.consume.range_positions import make_commit_fields
from shoal.client.consume.shared_partitions import STALE_COMMIT_MS
from shoal.client.errors import (
    STALE_COORDINATOR,
    ApplicationRecoverable,
    ClientError,
    InvalidConfiguration,
    KafkaError,
    ProducerFenced,
    SecurityError,
    TransactionAbortable,
    TransactionError,
    UnsupportedVersion,
    check,
)
from shoal.client.net import message_fields
from shoal.client.net.cluster import TRANSACTION, Cluster, TopicPartition
from shoal.client.produce.producer import Producer, RecordMetadata
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import (
    COMMIT_ORDER_FEATURE,
    GROUP_KEY_RANGES_FEATURE,
    INDIVIDUAL_COMMIT_FEATURE,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from shoal.client.consume.consumer import GroupConsumer
    from shoal.client.consume.range_positions import RangePosition
    from shoal.client.consume.reader import Record
    from shoal.client.consume.shared_partitions import SharedPartitions
    from shoal.client.net.connection import Connection
    from shoal.client.produce.producer import BatchOptions

#: Milliseconds after which the coordinator aborts a transaction: Kafka's transaction.timeout.ms.
TIMEOUT_MS = 60_000
#: Milliseconds before a request is repeated the first time. The markers of the last transaction are
#: usually written by then.
_PAUSE_MS = 20
TRANSACTION_FEATURE, TRANSACTION_VERSION = "transaction.version", 2
#: Versions with the semantics of transaction version 2.
_INIT_PRODUCER_ID, _TXN_OFFSET_COMMIT, _END_TXN = 5, 5, 5
#: Requests to coordinators do not wait behind a member's heartbeats.
_LANE = "transaction"

#: What a coordinator that lacks a feature does not offer, and the remedy.
_FEATURES = {
    INDIVIDUAL_COMMIT_FEATURE: "individual commits; upgrade it, or set "
    "shoal.group.consumer.individual.commit.enable=true on it",
    GROUP_KEY_RANGES_FEATURE: "key ranges; upgrade it, or set "
    "shoal.group.consumer.key.ranges.enable=true on it",
    COMMIT_ORDER_FEATURE: "commits in the order of a partition; upgrade it, or set "
    "shoal.group.consumer.key.ranges.enable=true on it",
}
_ABORTABLE = ErrorCode.transaction_abortable
_FENCED = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
#: A member's epoch that is not the present one, by the version of TxnOffsetCommit (KIP-1319).
_STALE_EPOCH = frozenset({ErrorCode.stale_member_epoch, ErrorCode.illegal_generation})
_RECOVERABLE = frozenset(
    {
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.unknown_producer_id,
    }
)
_CONFIGURATION = frozenset(
    {
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
    }
)
#: An append with an old epoch or an unexpected sequence. The coordinator decides at the abort
#: whether the producer is fenced (KIP-588).
_ABORTABLE_APPENDS = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.unknown_producer_id})


class ProducerTransactionState(Enum):
    """Where the producer is between two transactions."""

    READY = "no transaction"
    OPEN = "a transaction"
    #: Only `abort` may follow.
    FAILED = "a transaction that must be aborted"
    #: The result of EndTxn may be unknown. Only the same call may follow.
    COMMITTING = "a commit"
    ABORTING = "an abort"
    ENDED = "ended"


class GroupMetadata(NamedTuple):
    """The group whose offsets a transaction commits, and the member that has read them. Without a
    member, the group has no members."""

    group: str
    member_id: str = ""
    member_epoch: int = -1


class TransactionalProducer(Producer):
    """The one producer of a transactional id. Created by `start`; `await close()` aborts."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__(cluster, acks=-1, idempotent=True, **options)
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._backoff_ms = _PAUSE_MS
        self._producer = (-1, -1)
        self._state = ProducerTransactionState.READY
        #: Why the transaction must be aborted, or the producer cannot continue.
        self._error: TransactionError | None = None
        #: Whether the coordinator may have the transaction.
        self._begun = False
        #: What members finish when the transaction commits.
        self._finishing: list[tuple[GroupConsumer, Mapping[TopicPartition, ProgressCommit]]] = []
        #: Members whose positions each transaction commits, with those of the open transaction.
        self._members: dict[SharedPartitions, Mapping[TopicPartition, Sequence[RangePosition]]] = {}
        #: Whether transactions commit in the order of the partitions that their member reads. Their
        #: records then are held until their turn.
        self._in_order = False

    @classmethod
    async def start(
        cls,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        **options: Unpack[BatchOptions],
    ) -> TransactionalProducer:
        """Fence earlier producers of the id, and abort their open transaction.

        The coordinator aborts a transaction that takes longer than `timeout_ms`. The other options
        are `BatchOptions`. Raises `InvalidConfiguration`, also if the cluster has an older
        transaction.version, and network errors.
        """
        if not transactional_id:
            raise ValueError("the transactional id is empty; give each producer an id of its own")
        producer = cls(cluster, transactional_id, timeout_ms=timeout_ms, **options)
        await producer._init()
        return producer

    @property
    def state(self) -> ProducerTransactionState:
        """Where the producer is between two transactions."""
        return self._state

    # Transactions

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[TransactionalProducer]:
        """Begin a transaction. Commit it at the end of the block, or abort it if an error leaves
        the block or the commit is not possible."""
        self.begin()
        try:
            yield self
            await self.commit()
        except BaseException:
            if self._state in (ProducerTransactionState.OPEN, ProducerTransactionState.FAILED):
                with contextlib.suppress(ClientError):
                    await self.abort()
            raise

    def begin(self) -> None:
        """Begin a transaction. The coordinator gets it with its first record or offset."""
        self._check(ProducerTransactionState.READY, "begin")
        self._state = ProducerTransactionState.OPEN
        if self._in_order:
            self._released = asyncio.Event()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue a record in the transaction; see `Producer.send`. `commit` waits for it, so the
        future need not be awaited. In a transaction `in_order` (`GroupConsumer.join`), it is not
        complete before `commit`. Raises `TransactionError` after a record that failed."""
        self._check_open()
        future = await super().send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        future.add_done_callback(_retrieve)
        return future

    async def send_offsets(
        self, group: GroupMetadata, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        """Commit a group's positions with the transaction. Raises `TransactionError`."""
        committed_offsets = {
            partition: offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
            for partition, offset in offsets.items()
        }
        commits = {
            partition: ProgressCommit(offset.offset, tuple(offset.finished.iter_ranges()))
            for partition, offset in committed_offsets.items()
            if offset.finished.count
        }
        await self._send_offsets(group, committed_offsets, commits)

    async def send_finished(self, consumer: GroupConsumer, records: Iterable[Record]) -> None:
        """Finish a member's records with the transaction, instead of `GroupConsumer.finish`.

        The consumer has joined with `individual_commit`. After an abort its records are unfinished:
        process them again. Raises `TransactionAbortable` if the member has lost a record's
        partition since, and other `TransactionError`s.
        """
        self._check_open()
        try:
            commits = consumer.make_commits(records)
        except KafkaError as error:
            raise self._fail(TransactionAbortable(error)) from error
        member = consumer.membership
        group = GroupMetadata(member.group, member.member_id, member.member_epoch)
        offsets = {
            partition: CommittedOffset(commit.position) for partition, commit in commits.items()
        }
        await self._send_offsets(group, offsets, commits)
        self._finishing.append((consumer, commits))

    async def flush(self) -> None:
        """Wait until every queued record is stored or has failed. Raises `ValueError` in a
        transaction `in_order`, whose records are not sent before `commit`."""
        if self._released is not None and not self._released.is_set():
            raise ValueError("flush is not possible now: commit sends the records, in order")
        await super().flush()

    def check_member(self, *, in_order: bool) -> None:
        """Raise `ValueError` if the producer cannot have one more member."""
        if self._members and (in_order or self._in_order):
            raise ValueError(
                "transactions in order have one member; start a producer for each of them"
            )

    def commit_positions_of(self, partitions: SharedPartitions, *, in_order: bool = False) -> None:
        """Commit the positions of a member with each transaction: see `GroupConsumer.join`."""
        self.check_member(in_order=in_order)
        self._members[partitions] = {}
        self._in_order = in_order

    def forget_positions_of(self, partitions: SharedPartitions) -> None:
        """Leave out a member that leaves the group. A transaction with records that it has read
        must abort."""
        self._members.pop(partitions, None)
        self._in_order = False
        if self._state is not ProducerTransactionState.OPEN:
            return
        try:
            unfinished = bool(partitions.collect_for_transaction())
        except KafkaError as error:
            self._fail(TransactionAbortable(error))
            return
        if unfinished:
            closed_error = KafkaError(_ABORTABLE, "the member that has read its records was closed")
            self._fail(TransactionAbortable(closed_error))

    def check_not_ending(self) -> None:
        """Raise `ValueError` while the result of a transaction is unknown."""
        if self._state in (ProducerTransactionState.COMMITTING, ProducerTransactionState.ABORTING):
            self._check(ProducerTransactionState.READY, "poll")

    async def commit(self) -> None:
        """Store all records, then commit the transaction. Raises `TransactionError`.

        After another `ClientError` the result is unknown: call it again.
        """
        if self._state is not ProducerTransactionState.COMMITTING:
            self._check_open()
            for partitions in self._members:
                await self._send_positions(partitions)
            self._release()
            await self.flush()
            self._check_open()
            self._state = ProducerTransactionState.COMMITTING
        await self._end(committed=True)
        for consumer, commits in self._finishing:
            consumer.on_transaction_committed(commits)
        self._finishing.clear()
        for partitions, pieces in self._members.items():
            partitions.on_transaction_committed(pieces)
            self._members[partitions] = {}

    async def abort(self) -> None:
        """Abort the transaction, with the records that wait. Raises `TransactionError` if the
        producer cannot continue; after another `ClientError`, call it again."""
        if self._state is not ProducerTransactionState.ABORTING:
            if self._state is not ProducerTransactionState.FAILED:
                self._check(ProducerTransactionState.OPEN, "abort")
            self._state = ProducerTransactionState.ABORTING
            if self._error is None:
                aborted = KafkaError(_ABORTABLE, "the transaction was aborted")
                self._error = TransactionAbortable(aborted)
        self._finishing.clear()
        for partitions in self._members:
            self._members[partitions] = {}
            partitions.on_transaction_aborted()
        self._release()
        await self.flush()
        if self._error is not None and self._state is ProducerTransactionState.ENDED:
            raise self._error
        await self._end(committed=False)

    async def close(self) -> None:
        """Abort an open transaction. If that fails, its timeout or the next producer aborts it."""
        if self._state in (
            ProducerTransactionState.OPEN,
            ProducerTransactionState.FAILED,
            ProducerTransactionState.ABORTING,
        ):
            with contextlib.suppress(ClientError):
                await self.abort()
        await self.flush()

    def _release(self) -> None:
        """Send what a transaction in order has held."""
        if self._released is not None:
            self._released.set()

    # Checks

    def _check_room(self) -> None:
        if self._released is not None and not self._released.is_set():
            full = KafkaError(
                _ABORTABLE,
                f"the records of a transaction in order are held until its commit, and "
                f"buffer_bytes={self._buffer_bytes} is full; commit after fewer records, or start "
                "the producer with a larger buffer",
            )
            raise self._fail(TransactionAbortable(full))

    def _check(self, expected: ProducerTransactionState, call: str) -> None:
        if self._state is expected:
            return
        if self._error is not None and self._state in (
            ProducerTransactionState.FAILED,
            ProducerTransactionState.ENDED,
        ):
            raise self._error
        remedies = {
            ProducerTransactionState.READY: "begin a transaction first",
            ProducerTransactionState.OPEN: "commit or abort the open transaction first",
            ProducerTransactionState.COMMITTING: (
                "the result of the last commit is unknown; call commit again"
            ),
            ProducerTransactionState.ABORTING: "the last abort is not complete; call abort again",
        }
        raise ValueError(f"{call} is not possible now: {remedies[self._state]}")

    def _check_open(self) -> None:
        self._check(ProducerTransactionState.OPEN, "this call")

    def _get_batch_error(self) -> ClientError | None:
        return self._error

    def _on_batch_abandoned(self, error: ClientError) -> None:
        if isinstance(error, KafkaError) and error.code in _ABORTABLE_APPENDS:
            self._fail(TransactionAbortable(error))
        else:
            self._fail(_classify(error) or TransactionAbortable(error))

    def _fail(self, error: TransactionError) -> TransactionError:
        """Note why the transaction, or the producer, cannot continue. The first reason counts,
        unless a later one is final."""
        final = not isinstance(error, TransactionAbortable)
        if self._state is not ProducerTransactionState.ENDED and (final or self._error is None):
            self._error = error
        if final:
            self._state = ProducerTransactionState.ENDED
        elif self._state is ProducerTransactionState.OPEN:
            self._state = ProducerTransactionState.FAILED
        self._release()  # The records fail with the error.
        return error

    # Requests

    async def _get_producer_identity(self) -> tuple[int, int]:
        self._begun = True
        return self._producer

    async def _init(self) -> None:
        body = {
            "transactional_id": self._transactional_id,
            "transaction_timeout_ms": self._timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self._request_coordinator(ApiKey.INIT_PRODUCER_ID, body, _INIT_PRODUCER_ID)
        self._producer = answer.producer_id, answer.producer_epoch

    async def _end(self, *, committed: bool) -> None:
        if self._begun:
            body = {**self._make_fields(), "committed": committed}
            try:
                answer = await self._request_coordinator(ApiKey.END_TXN, body, _END_TXN)
            except TransactionAbortable:
                self._state = ProducerTransactionState.FAILED
                raise
            self._producer = answer.producer_id, answer.producer_epoch
        self._begun = False
        self._error = None
        self._state = ProducerTransactionState.READY

    def _make_fields(self) -> dict[str, Any]:
        producer_id, producer_epoch = self._producer
        return {
            "transactional_id": self._transactional_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
        }

    async def _request_coordinator(
        self, api_key: ApiKey, body: Mapping[str, Any], version: int
    ) -> Any:
        """Send a request to the transaction coordinator, wherever it moves."""
        name = self._transactional_id
        assert name is not None

        async def attempt() -> Any:
            node = await self.cluster.find_coordinator(name, TRANSACTION)
            try:
                link = await self.cluster.get_connection(node, _LANE)
                if api_key is ApiKey.INIT_PRODUCER_ID:
                    _check_features(link)
                answer = await link.request(
                    api_key, body, version=link.choose_version(api_key, version)
                )
            except ClientError:
                self.cluster.forget_coordinator(name, TRANSACTION)
                raise
            if answer.error_code in STALE_COORDINATOR:
                self.cluster.forget_coordinator(name, TRANSACTION)
            check(answer.error_code, f"{api_key.name} of transactional id {name!r}")
            return answer

        try:
            return await self.cluster.retry(attempt, pause_ms=_PAUSE_MS)
        except ClientError as error:
            classified = _classify(error)
            if classified is None:
                raise
            if type(classified) is TransactionAbortable and classified.code != _ABORTABLE:
                classified = ApplicationRecoverable(error)
            raise self._fail(classified) from error

    async def _send_offsets(
        self,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, CommittedOffset],
        commits: Mapping[TopicPartition, ProgressCommit],
    ) -> None:
        """Send TxnOffsetCommit; in the partitions of `commits` with finished offsets."""
        self._check_open()
        fields = {partition: commit.to_fields() for partition, commit in commits.items()}
        feature = INDIVIDUAL_COMMIT_FEATURE if commits else None
        try:
            await self._request_offsets(group, offsets, fields, feature)
        except ClientError as error:
            raise self._fail(_classify(error) or TransactionAbortable(error)) from error

    async def _send_positions(self, partitions: SharedPartitions) -> None:
        """Send TxnOffsetCommit with the positions of a member that moved."""
        member, backoff = partitions.member, self.cluster.make_backoff()
        #: The rest of the time is for the records and the end of the transaction.
        turn_s = self.cluster.now() + self._timeout_ms / 2000
        last_s = None
        try:
            while positions := partitions.collect_for_transaction():
                group = GroupMetadata(member.group, member.member_id, member.member_epoch)
                offsets = {w: CommittedOffset(min(p[2] for p in s)) for w, s in positions.items()}
                fields = {
                    partition: make_commit_fields(range_positions)
                    for partition, range_positions in positions.items()
                }
                feature = GROUP_KEY_RANGES_FEATURE if any(fields.values()) else None
                if self._in_order:
                    feature = COMMIT_ORDER_FEATURE
                    for partition, row in fields.items():
                        row["first_offset"] = partitions.positions.get_first_offset(partition)
                try:
                    await self._request_offsets(group, offsets, fields, feature, turn_s)
                except KafkaError as error:
                    # The member got more of a partition: its new epoch is on its way.
                    now_s = self.cluster.now()
                    last_s = last_s or now_s + STALE_COMMIT_MS / 1000
                    if error.code not in _STALE_EPOCH or now_s > last_s:
                        raise
                else:
                    self._members[partitions] = positions
                    return
                member.hurry()
                await backoff.pause()
        except ClientError as error:
            raise self._fail(_classify(error) or TransactionAbortable(error)) from error

    async def _request_offsets(
        self,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, CommittedOffset],
        fields: Mapping[TopicPartition, Mapping[str, Any]],
        feature: str | None,
        turn_s: float = 0,
    ) -> None:
        """Send TxnOffsetCommit, to a coordinator that offers `feature`. One in order waits for its
        turn until `turn_s`."""
        self._begun = True
        body = {**self._make_fields(), **_make_offsets_body(group, offsets, fields)}
        in_order = feature == COMMIT_ORDER_FEATURE
        # While it waits for its turn, the answers to others would wait behind it.
        lane = f"{_LANE} {self._transactional_id}" if in_order else _LANE
        timeout_ms: int | None = None

        async def attempt() -> None:
            nonlocal timeout_ms
            node = await self.cluster.find_coordinator(group.group)
            try:
                link = await self.cluster.get_connection(node, lane)
                if in_order:
                    left_ms = max(1, int((turn_s - self.cluster.now()) * 1000))
                    body["order_timeout_ms"] = left_ms
                    timeout_ms = left_ms + self.cluster.settings.request_timeout_ms
                if feature is not None and feature not in link.features:
                    raise KafkaError(
                        _ABORTABLE,
                        f"broker {node}, the coordinator of group {group.group!r}, does not offer "
                        f"{_FEATURES[feature]}",
                    )
                version = link.choose_version(ApiKey.TXN_OFFSET_COMMIT, _TXN_OFFSET_COMMIT)
                answer = await link.request(
                    ApiKey.TXN_OFFSET_COMMIT, body, version=version, timeout_ms=timeout_ms
                )
            except ClientError:
                self.cluster.forget_coordinator(group.group)
                raise
            for partition, part in message_fields.iterate_partitions(answer.topics):
                detail = getattr(part, "individual_commit", None)
                message = getattr(detail, "error_message", None)
                message = message or f"offset of {partition} in group {group.group!r}"
                error = message_fields.parse_error(part, message)
                if error is not None:
                    if error.code in STALE_COORDINATOR:
                        self.cluster.forget_coordinator(group.group)
                    raise error

        await self.cluster.retry(attempt, pause_ms=_PAUSE_MS)


def _make_offsets_body(
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, CommittedOffset],
    fields: Mapping[TopicPartition, Mapping[str, Any]],
) -> dict[str, Any]:
    return {
        "group_id": group.group,
        "generation_id": group.member_epoch,
        "member_id": group.member_id,
        "group_instance_id": None,
        "topics": message_fields.group_by_topic(
            (
                partition,
                {
                    "partition_index": partition.partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "committed_metadata": offset.metadata,
                    **fields.get(partition, {}),
                },
            )
            for partition, offset in offsets.items()
        ),
    }


def _check_features(link: Connection) -> None:
    """Raise `KafkaError` without transactions of version 2 (KIP-890)."""
    if not link.finalized:  # The broker has just started. A new connection may have features.
        link.close()
        raise KafkaError(
            ErrorCode.coordinator_not_available, f"the broker at {link} reports no features"
        )
    level = link.finalized.get(TRANSACTION_FEATURE, 0)
    if level < TRANSACTION_VERSION:
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"the cluster has {TRANSACTION_FEATURE} {level}; raise it to {TRANSACTION_VERSION} with"
            f" kafka-features.sh upgrade --feature {TRANSACTION_FEATURE}={TRANSACTION_VERSION}",
        )


def _classify(error: ClientError) -> TransactionError | None:
    """Return the error in its category (KIP-1050); None if the request may be repeated."""
    if isinstance(error, TransactionError):
        return error
    if isinstance(error, SecurityError | UnsupportedVersion):
        return InvalidConfiguration(error)
    if not isinstance(error, KafkaError) or error.retriable:
        return None
    if error.code in _FENCED:
        return ProducerFenced(error)
    if error.code in _RECOVERABLE:
        return ApplicationRecoverable(error)
    if error.code in _CONFIGURATION:
        return InvalidConfiguration(error)
    return TransactionAbortable(error)


def _retrieve(future: asyncio.Future[RecordMetadata]) -> None:
    """Mark an error as seen: `commit` raises it."""
    if not future.cancelled():
        future.exception()
