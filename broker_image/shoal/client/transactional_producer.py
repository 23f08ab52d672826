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
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client import message_fields
from shoal.client.cluster import TRANSACTION, Cluster, TopicPartition
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
    Unsupported,
    check,
)
from shoal.client.groups import CommittedOffset
from shoal.client.producer import Produced, Producer
from shoal.client.progress import Commit
from shoal.client.range_positions import commit_fields
from shoal.client.shared_partitions import STALE_COMMIT_MS
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import (
    COMMIT_ORDER_FEATURE,
    GROUP_KEY_RANGES_FEATURE,
    INDIVIDUAL_COMMIT_FEATURE,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from shoal.client.connection import Connection
    from shoal.client.consumer import ConsumedRecord, GroupConsumer
    from shoal.client.range_positions import Piece

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


class State(Enum):
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
        self, cluster: Cluster, transactional_id: str, *, timeout_ms: int, **options: Any
    ) -> None:
        super().__init__(cluster, acks=-1, idempotent=True, **options)
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._backoff_ms = _PAUSE_MS
        self._producer = (-1, -1)
        self._state = State.READY
        #: Why the transaction must be aborted, or the producer cannot continue.
        self._error: TransactionError | None = None
        #: Whether the coordinator may have the transaction.
        self._begun = False
        #: What members finish when the transaction commits.
        self._finishing: list[tuple[GroupConsumer, Mapping[TopicPartition, Commit]]] = []
        #: Members whose positions each transaction commits, with those of the open transaction.
        self._members: dict[GroupConsumer, Mapping[TopicPartition, Sequence[Piece]]] = {}
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
        **options: Any,
    ) -> TransactionalProducer:
        """Fence earlier producers of the id, and abort their open transaction.

        The coordinator aborts a transaction that takes longer than `timeout_ms`. The other options
        are those of `Producer`. Raises `InvalidConfiguration`, also if the cluster has an older
        transaction.version, and network errors.
        """
        if not transactional_id:
            raise ValueError("the transactional id is empty; give each producer an id of its own")
        producer = cls(cluster, transactional_id, timeout_ms=timeout_ms, **options)
        await producer._init()
        return producer

    @property
    def state(self) -> State:
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
            if self._state in (State.OPEN, State.FAILED):
                with contextlib.suppress(ClientError):
                    await self.abort()
            raise

    def begin(self) -> None:
        """Begin a transaction. The coordinator gets it with its first record or offset."""
        self._check(State.READY, "begin")
        self._state = State.OPEN
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
    ) -> asyncio.Future[Produced]:
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
        wanted = {
            where: offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
            for where, offset in offsets.items()
        }
        commits = {
            where: Commit(offset.offset, tuple(offset.finished.ranges()))
            for where, offset in wanted.items()
            if offset.finished.count
        }
        await self._send_offsets(group, wanted, commits)

    async def send_finished(
        self, consumer: GroupConsumer, records: Iterable[ConsumedRecord]
    ) -> None:
        """Finish a member's records with the transaction, instead of `GroupConsumer.finished`.

        The consumer has joined with `individual_commit`. After an abort its records are unfinished:
        process them again. Raises `TransactionAbortable` if the member has lost a record's
        partition since, and other `TransactionError`s.
        """
        self._check_open()
        try:
            commits = consumer.commits_of(records)
        except KafkaError as error:
            raise self._failed(TransactionAbortable(error)) from error
        member = consumer.membership
        group = GroupMetadata(member.group, member.member_id, member.member_epoch)
        offsets = {where: CommittedOffset(commit.position) for where, commit in commits.items()}
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

    def commits_positions_of(self, consumer: GroupConsumer, *, in_order: bool = False) -> None:
        """Commit the positions of a member with each transaction: see `GroupConsumer.join`."""
        self.check_member(in_order=in_order)
        self._members[consumer] = {}
        self._in_order = in_order

    def forget_positions_of(self, consumer: GroupConsumer) -> None:
        """Leave out a member that leaves the group. A transaction with records that it has read
        must abort."""
        self._members.pop(consumer, None)
        self._in_order = False
        if self._state is not State.OPEN:
            return
        try:
            unfinished = bool(consumer.positions_to_commit())
        except KafkaError as error:
            self._failed(TransactionAbortable(error))
            return
        if unfinished:
            left = KafkaError(_ABORTABLE, "the member that has read its records was closed")
            self._failed(TransactionAbortable(left))

    def check_not_ending(self) -> None:
        """Raise `ValueError` while the result of a transaction is unknown."""
        if self._state in (State.COMMITTING, State.ABORTING):
            self._check(State.READY, "poll")

    async def commit(self) -> None:
        """Store all records, then commit the transaction. Raises `TransactionError`.

        After another `ClientError` the result is unknown: call it again.
        """
        if self._state is not State.COMMITTING:
            self._check_open()
            for consumer in self._members:
                await self._send_positions(consumer)
            self._release()
            await self.flush()
            self._check_open()
            self._state = State.COMMITTING
        await self._end(committed=True)
        for consumer, commits in self._finishing:
            consumer.committed_in_transaction(commits)
        self._finishing.clear()
        for consumer, pieces in self._members.items():
            consumer.positions_committed(pieces)
            self._members[consumer] = {}

    async def abort(self) -> None:
        """Abort the transaction, with the records that wait. Raises `TransactionError` if the
        producer cannot continue; after another `ClientError`, call it again."""
        if self._state is not State.ABORTING:
            if self._state is not State.FAILED:
                self._check(State.OPEN, "abort")
            self._state = State.ABORTING
            if self._error is None:
                aborted = KafkaError(_ABORTABLE, "the transaction was aborted")
                self._error = TransactionAbortable(aborted)
        self._finishing.clear()
        for consumer in self._members:
            self._members[consumer] = {}
            consumer.transaction_aborted()
        self._release()
        await self.flush()
        if self._error is not None and self._state is State.ENDED:
            raise self._error
        await self._end(committed=False)

    async def close(self) -> None:
        """Abort an open transaction. If that fails, its timeout or the next producer aborts it."""
        if self._state in (State.OPEN, State.FAILED, State.ABORTING):
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
            raise self._failed(TransactionAbortable(full))

    def _check(self, wanted: State, call: str) -> None:
        if self._state is wanted:
            return
        if self._error is not None and self._state in (State.FAILED, State.ENDED):
            raise self._error
        remedies = {
            State.READY: "begin a transaction first",
            State.OPEN: "commit or abort the open transaction first",
            State.COMMITTING: "the result of the last commit is unknown; call commit again",
            State.ABORTING: "the last abort is not complete; call abort again",
        }
        raise ValueError(f"{call} is not possible now: {remedies[self._state]}")

    def _check_open(self) -> None:
        self._check(State.OPEN, "this call")

    def _doomed(self) -> ClientError | None:
        return self._error

    def _given_up(self, error: ClientError) -> None:
        if isinstance(error, KafkaError) and error.code in _ABORTABLE_APPENDS:
            self._failed(TransactionAbortable(error))
        else:
            self._failed(_classified(error) or TransactionAbortable(error))

    def _failed(self, error: TransactionError) -> TransactionError:
        """Note why the transaction, or the producer, cannot continue. The first reason counts,
        unless a later one is final."""
        final = not isinstance(error, TransactionAbortable)
        if self._state is not State.ENDED and (final or self._error is None):
            self._error = error
        if final:
            self._state = State.ENDED
        elif self._state is State.OPEN:
            self._state = State.FAILED
        self._release()  # The records fail with the error.
        return error

    # Requests

    async def _producer_identity(self) -> tuple[int, int]:
        self._begun = True
        return self._producer

    async def _init(self) -> None:
        body = {
            "transactional_id": self._transactional_id,
            "transaction_timeout_ms": self._timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self._at_coordinator(ApiKey.INIT_PRODUCER_ID, body, _INIT_PRODUCER_ID)
        self._producer = answer.producer_id, answer.producer_epoch

    async def _end(self, *, committed: bool) -> None:
        if self._begun:
            body = {**self._fields(), "committed": committed}
            try:
                answer = await self._at_coordinator(ApiKey.END_TXN, body, _END_TXN)
            except TransactionAbortable:
                self._state = State.FAILED
                raise
            self._producer = answer.producer_id, answer.producer_epoch
        self._begun = False
        self._error = None
        self._state = State.READY

    def _fields(self) -> dict[str, Any]:
        producer_id, producer_epoch = self._producer
        return {
            "transactional_id": self._transactional_id,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
        }

    async def _at_coordinator(self, api_key: ApiKey, body: Mapping[str, Any], version: int) -> Any:
        """Send a request to the transaction coordinator, wherever it moves."""
        name = self._transactional_id
        assert name is not None

        async def attempt() -> Any:
            node = await self.cluster.coordinator(name, TRANSACTION)
            try:
                link = await self.cluster.connection(node, _LANE)
                if api_key is ApiKey.INIT_PRODUCER_ID:
                    _check_features(link)
                answer = await link.request(api_key, body, version=link.version(api_key, version))
            except ClientError:
                self.cluster.forget_coordinator(name, TRANSACTION)
                raise
            if answer.error_code in STALE_COORDINATOR:
                self.cluster.forget_coordinator(name, TRANSACTION)
            check(answer.error_code, f"{api_key.name} of transactional id {name!r}")
            return answer

        try:
            return await self.cluster.retrying(attempt, pause_ms=_PAUSE_MS)
        except ClientError as error:
            found = _classified(error)
            if found is None:
                raise
            if type(found) is TransactionAbortable and found.code != _ABORTABLE:
                found = ApplicationRecoverable(error)
            raise self._failed(found) from error

    async def _send_offsets(
        self,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, CommittedOffset],
        commits: Mapping[TopicPartition, Commit],
    ) -> None:
        """Send TxnOffsetCommit; in the partitions of `commits` with finished offsets."""
        self._check_open()
        fields = {where: commit.fields() for where, commit in commits.items()}
        feature = INDIVIDUAL_COMMIT_FEATURE if commits else None
        try:
            await self._request_offsets(group, offsets, fields, feature)
        except ClientError as error:
            raise self._failed(_classified(error) or TransactionAbortable(error)) from error

    async def _send_positions(self, consumer: GroupConsumer) -> None:
        """Send TxnOffsetCommit with the positions of a member that moved."""
        member, backoff = consumer.membership, self.cluster.backoff()
        #: The rest of the time is for the records and the end of the transaction.
        turn_s = self.cluster.now() + self._timeout_ms / 2000
        last_s = None
        try:
            while pieces := consumer.positions_to_commit():
                group = GroupMetadata(member.group, member.member_id, member.member_epoch)
                offsets = {w: CommittedOffset(min(p[2] for p in s)) for w, s in pieces.items()}
                fields = {where: commit_fields(some) for where, some in pieces.items()}
                feature = GROUP_KEY_RANGES_FEATURE if any(fields.values()) else None
                if self._in_order:
                    feature = COMMIT_ORDER_FEATURE
                    for where, row in fields.items():
                        row["first_offset"] = consumer.first_offset(where)
                try:
                    await self._request_offsets(group, offsets, fields, feature, turn_s)
                except KafkaError as error:
                    # The member got more of a partition: its new epoch is on its way.
                    now_s = self.cluster.now()
                    last_s = last_s or now_s + STALE_COMMIT_MS / 1000
                    if error.code != ErrorCode.stale_member_epoch or now_s > last_s:
                        raise
                else:
                    self._members[consumer] = pieces
                    return
                member.hurry()
                await backoff.pause()
        except ClientError as error:
            raise self._failed(_classified(error) or TransactionAbortable(error)) from error

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
        body = {**self._fields(), **_offsets_body(group, offsets, fields)}
        in_order = feature == COMMIT_ORDER_FEATURE
        # While it waits for its turn, the answers to others would wait behind it.
        lane = f"{_LANE} {self._transactional_id}" if in_order else _LANE
        timeout_ms: int | None = None

        async def attempt() -> None:
            nonlocal timeout_ms
            node = await self.cluster.coordinator(group.group)
            try:
                link = await self.cluster.connection(node, lane)
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
                version = link.version(ApiKey.TXN_OFFSET_COMMIT, _TXN_OFFSET_COMMIT)
                answer = await link.request(
                    ApiKey.TXN_OFFSET_COMMIT, body, version=version, timeout_ms=timeout_ms
                )
            except ClientError:
                self.cluster.forget_coordinator(group.group)
                raise
            for where, part in message_fields.each_partition(answer.topics):
                detail = getattr(part, "individual_commit", None)
                about = getattr(detail, "error_message", None)
                about = about or f"offset of {where} in group {group.group!r}"
                error = message_fields.error_of(part, about)
                if error is not None:
                    if error.code in STALE_COORDINATOR:
                        self.cluster.forget_coordinator(group.group)
                    raise error

        await self.cluster.retrying(attempt, pause_ms=_PAUSE_MS)


def _offsets_body(
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
                where,
                {
                    "partition_index": where.partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "committed_metadata": offset.metadata,
                    **fields.get(where, {}),
                },
            )
            for where, offset in offsets.items()
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


def _classified(error: ClientError) -> TransactionError | None:
    """Return the error in its category (KIP-1050); None if the request may be repeated."""
    if isinstance(error, TransactionError):
        return error
    if isinstance(error, SecurityError | Unsupported):
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


def _retrieve(future: asyncio.Future[Produced]) -> None:
    """Mark an error as seen: `commit` raises it."""
    if not future.cancelled():
        future.exception()
