"""The transaction coordinator's state machine: one partition of `__transaction_state` (KIP-98).

Only the producer id and epoch of the last InitProducerId may write under a transactional id; all
others are fenced. A decision is replayed at once, so later requests see it, and their replies wait
for the commit. A decided transaction repeats its `WriteMarkers` effect until `complete` reports
that the markers are written. A shard that is loaded does the same for every decided transaction.

Hard state is the transactions by id. Soft state is the deadlines, and for each id the epoch before
the last bump, which identifies a repeated InitProducerId (KIP-360).

Called by `server.coordinators.transactions` through the runtime. Decisions raise `ApiError` to
refuse a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    ProducerIdAndEpoch,
    RecordOrigin,
    Reply,
    Token,
)
from shoal.coordinator.deadlines import Deadlines
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.transaction.records import build_record, build_tombstone, decode
from shoal.transaction.states import TransactionState
from shoal.transaction.transactions import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TV_2,
    TopicPartition,
    TransactionMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shoal.protocol.responses import transactions as responses

#: The time after which unconfirmed markers are requested again.
MARKERS_RETRY_MS = 1_000
#: The most tombstones that one step of expiry writes, and the pause before the next step.
EXPIRY_RECORDS_MAX = 1_000
EXPIRY_PAUSE_MS = 10


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's broker configs of these names, in ms."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000


class ProducerIdentity(NamedTuple):
    """The producer that a request names."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class WriteMarkers(NamedTuple):
    """The effect of a decided transaction: write its markers to its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: Sequence[TopicPartition]
    transaction_version: int


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(
        self,
        settings: TransactionSettings,
        new_producer_id: Callable[[], int],
    ) -> None:
        self.settings = settings
        #: Returns a new producer id. Raises `ApiError` while there is none.
        self._new_producer_id = new_producer_id
        self._transactions: dict[str, TransactionMetadata] = {}
        self._deadlines = Deadlines()
        self._last_epochs: dict[str, int] = {}
        self._to_expire: list[str] = []

    def __len__(self) -> int:
        return len(self._transactions)

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def get_hard_state(self) -> Any:
        return self._transactions

    # Decisions about the producer.

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
        token: Token,
    ) -> CoordinatorResult:
        """Assign the transactional id to the producer, and fence the one before it. With
        `expected`, only that producer may have it.

        An open transaction is aborted first, and the producer has to retry.
        """
        if not transactional_id:
            raise ApiError(ErrorCode.invalid_request, "The transactional id is empty.")
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise ApiError(
                ErrorCode.invalid_transaction_timeout,
                f"transaction.timeout.ms may be 1 to {self.settings.transaction_max_timeout_ms},"
                f" which is the broker's transaction.max.timeout.ms, not {timeout_ms}.",
            )
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            transaction = TransactionMetadata(
                self._new_producer_id(), NO_PRODUCER_EPOCH, timeout_ms
            )
        _check_complete(transaction)
        if expected is not None and not _may_continue(transaction, expected):
            raise ApiError(ErrorCode.producer_fenced)
        if transaction.state is TransactionState.ONGOING:
            fenced = self._abort(transactional_id, transaction, now_ms)
            refusal = _build_producer_fields(ErrorCode.concurrent_transactions, NO_PRODUCER_ID, -1)
            return self._decide(transactional_id, fenced, Reply(token, refusal))
        producer_id, epoch = self._assign_next_epoch(transactional_id, transaction, expected)
        next_state = transaction.initialize(producer_id, epoch, timeout_ms, now_ms)
        reply = Reply(token, _build_producer_fields(ErrorCode.none, producer_id, epoch))
        return CoordinatorResult((build_record(transactional_id, next_state),), (reply,))

    def _assign_next_epoch(
        self,
        transactional_id: str,
        transaction: TransactionMetadata,
        expected: ProducerIdAndEpoch | None,
    ) -> tuple[int, int]:
        """The producer id and epoch of the InitProducerId response."""
        epoch, last = transaction.producer_epoch, self._last_epochs.get(transactional_id, -1)
        if transaction.is_epoch_exhausted and (
            expected is None or expected.producer_epoch == epoch
        ):
            self._last_epochs[transactional_id] = -1 if expected is None else epoch
            return self._new_producer_id(), 0
        if expected is None:
            self._last_epochs.pop(transactional_id, None)
        elif epoch == NO_PRODUCER_EPOCH or expected.producer_epoch == epoch:
            self._last_epochs[transactional_id] = epoch
        elif expected.producer_epoch == last:
            return transaction.producer_id, epoch
        else:
            raise ApiError(ErrorCode.producer_fenced)
        return transaction.producer_id, epoch + 1

    # Decisions about the open transaction.

    def add_partitions(
        self,
        writer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        version: int,
        now_ms: int,
        token: Token,
    ) -> CoordinatorResult:
        """AddPartitionsToTxn. Produce and TxnOffsetCommit imply it with transaction version 2."""
        transaction = self._find(writer)
        _check_complete(transaction)
        _check_writer(transaction, writer)
        response: responses.AddOffsetsToTxnResponse = {"error_code": ErrorCode.none}
        reply = Reply(token, response)
        if transaction.state is TransactionState.ONGOING and all(
            p in transaction.partitions for p in partitions
        ):
            return CoordinatorResult((), (reply,))
        next_state = transaction.with_partitions(partitions, version, now_ms)
        return CoordinatorResult((build_record(writer.transactional_id, next_state),), (reply,))

    def verify_partitions(
        self, writer: ProducerIdentity, partitions: Collection[TopicPartition], token: Token
    ) -> CoordinatorResult:
        """Check that partitions are in the writer's open transaction. The reply has the error of
        each (KIP-890)."""
        transaction = self._find(writer)
        _check_writer(transaction, writer)
        _check_complete(transaction)
        errors = {
            p: ErrorCode.none if p in transaction.partitions else ErrorCode.transaction_abortable
            for p in partitions
        }
        return CoordinatorResult((), (Reply(token, {"errors": errors}),))

    def end(
        self, writer: ProducerIdentity, *, committed: bool, version: int, now_ms: int, token: Token
    ) -> CoordinatorResult:
        """EndTxn. The reply has the producer id and epoch of the next transaction."""
        transaction = self._find(writer)
        has_ended = _has_ended if version >= TV_2 else _has_ended_in_version_1
        if has_ended(transaction, writer, committed=committed):
            reply = _build_producer_fields(
                ErrorCode.none, transaction.producer_id, transaction.producer_epoch
            )
            return CoordinatorResult((), (Reply(token, reply),))
        next_state = self._prepare(
            writer.transactional_id,
            transaction,
            committed=committed,
            version=version,
            now_ms=now_ms,
        )
        reply = _build_producer_fields(
            ErrorCode.none, next_state.producer_id, next_state.producer_epoch
        )
        if next_state.next_producer_id != NO_PRODUCER_ID:
            reply = _build_producer_fields(ErrorCode.none, next_state.next_producer_id, 0)
        return self._decide(writer.transactional_id, next_state, Reply(token, reply))

    def complete(self, markers: WriteMarkers, now_ms: int) -> CoordinatorResult:
        """Complete a transaction whose markers are written. Ignored unless they are owed."""
        transaction = self._transactions.get(markers.transactional_id)
        if transaction is None or not self.has_owed_markers(markers):
            return CoordinatorResult()
        return CoordinatorResult(
            (build_record(markers.transactional_id, transaction.complete(now_ms)),)
        )

    def has_owed_markers(self, markers: WriteMarkers) -> bool:
        """Whether these are the markers of a decided transaction that is not complete."""
        transaction = self._transactions.get(markers.transactional_id)
        if transaction is None or not transaction.state.is_prepared:
            return False
        return markers == _build_markers(markers.transactional_id, transaction)

    def _find(self, writer: ProducerIdentity) -> TransactionMetadata:
        transaction = self._transactions.get(writer.transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.invalid_producer_id_mapping)
        return transaction

    def _prepare(
        self,
        transactional_id: str,
        transaction: TransactionMetadata,
        *,
        committed: bool,
        version: int,
        now_ms: int,
    ) -> TransactionMetadata:
        next_id = NO_PRODUCER_ID
        if version >= TV_2:
            if transaction.is_epoch_exhausted:
                next_id = self._new_producer_id()
            self._last_epochs[transactional_id] = transaction.producer_epoch
        return transaction.prepare(
            committed=committed, version=version, next_producer_id=next_id, now_ms=now_ms
        )

    def _abort(
        self, transactional_id: str, transaction: TransactionMetadata, now_ms: int
    ) -> TransactionMetadata:
        """Abort a transaction that has timed out, and fence its producer by an epoch bump."""
        return self._prepare(
            transactional_id, transaction, committed=False, version=TV_2, now_ms=now_ms
        )

    def _decide(
        self, transactional_id: str, next_state: TransactionMetadata, *replies: Reply
    ) -> CoordinatorResult:
        effect = _build_markers(transactional_id, next_state)
        return CoordinatorResult((build_record(transactional_id, next_state),), replies, (effect,))

    # Admin requests.

    def describe(self, transactional_id: str) -> responses.DescribeTransactionsTransactionState:
        """One transaction of a DescribeTransactions response."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return {
                "transactional_id": transactional_id,
                "error_code": ErrorCode.transactional_id_not_found,
            }
        topics: dict[str, list[int]] = {}
        for topic, index in transaction.partitions:
            topics.setdefault(topic, []).append(index)
        return {
            "transactional_id": transactional_id,
            "error_code": ErrorCode.none,
            "transaction_state": transaction.state.title,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_start_time_ms": transaction.start_timestamp_ms,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "topics": [{"topic": t, "partitions": indexes} for t, indexes in topics.items()],
        }

    def list_transactions(
        self,
        *,
        states: Collection[str],
        producer_ids: Collection[int],
        duration_ms: int,
        matches: Callable[[str], bool],
        now_ms: int,
    ) -> list[responses.ListTransactionsTransactionState]:
        """Return the transactions of a ListTransactions response whose id `matches`. An empty
        filter, or a duration below 0, selects all."""
        return [
            {
                "transactional_id": transactional_id,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.title,
            }
            for transactional_id, transaction in self._transactions.items()
            if (not states or transaction.state.title in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - transaction.start_timestamp_ms > duration_ms)
            and matches(transactional_id)
        ]

    # The contract.

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    def replay(self, record: CoordinatorRecord, origin: RecordOrigin) -> None:
        decoded = decode(record)
        if decoded is None:
            return
        transactional_id, transaction = decoded
        timeout, markers = ("timeout", transactional_id), ("markers", transactional_id)
        if transaction is None:
            self._transactions.pop(transactional_id, None)
            self._last_epochs.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction
        if transaction is not None and transaction.state is TransactionState.ONGOING:
            self._deadlines.set(timeout, transaction.start_timestamp_ms + transaction.timeout_ms)
        else:
            self._deadlines.cancel(timeout)
        if transaction is not None and transaction.state.is_prepared:
            self._deadlines.set(markers, origin.timestamp_ms + MARKERS_RETRY_MS)
        else:
            self._deadlines.cancel(markers)

    def on_loaded(self, now_ms: int) -> None:
        for transactional_id, transaction in self._transactions.items():
            if transaction.state.is_prepared:
                self._deadlines.set(("markers", transactional_id), now_ms)
        interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
        self._deadlines.set(("expiry",), now_ms + interval_ms)

    def tick(self, now_ms: int) -> CoordinatorResult:
        key = self._deadlines.pop_due(now_ms)
        if key is None:
            return CoordinatorResult()
        if key == ("expiry",):
            return self._expire(now_ms)
        transactional_id = key[1]
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return CoordinatorResult()
        if key[0] == "markers":
            self._deadlines.set(key, now_ms + MARKERS_RETRY_MS)
            return CoordinatorResult(effects=(_build_markers(transactional_id, transaction),))
        try:
            next_state = self._abort(transactional_id, transaction, now_ms)
        except ApiError:  # There is no producer id for the next transaction: try again later.
            self._deadlines.set(key, now_ms + MARKERS_RETRY_MS)
            return CoordinatorResult()
        return self._decide(transactional_id, next_state)

    def _expire(self, now_ms: int) -> CoordinatorResult:
        """Expire unused transactional ids, a bounded number a step."""
        settings = self.settings
        if not self._to_expire:
            self._to_expire = [
                transactional_id
                for transactional_id, transaction in self._transactions.items()
                if self._is_expired(transaction, now_ms)
            ]
        step = self._to_expire[:EXPIRY_RECORDS_MAX]
        self._to_expire = self._to_expire[EXPIRY_RECORDS_MAX:]
        pause_ms = settings.transaction_remove_expired_transaction_cleanup_interval_ms
        if self._to_expire:
            pause_ms = EXPIRY_PAUSE_MS
        self._deadlines.set(("expiry",), now_ms + pause_ms)
        candidates = ((i, self._transactions.get(i)) for i in step)
        return CoordinatorResult(
            [build_tombstone(i) for i, t in candidates if t and self._is_expired(t, now_ms)]
        )

    def _is_expired(self, transaction: TransactionMetadata, now_ms: int) -> bool:
        unused_ms = now_ms - transaction.update_timestamp_ms
        return (
            transaction.state.is_at_rest
            and unused_ms >= self.settings.transactional_id_expiration_ms
        )


def _may_continue(transaction: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether `expected` may be the producer that had the id last (KIP-360)."""
    return (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == transaction.producer_id
        or (
            expected.producer_id == transaction.previous_producer_id
            and expected.producer_epoch >= LAST_EPOCH
        )
    )


def _check_complete(transaction: TransactionMetadata) -> None:
    """Check that no markers are being written. Raises CONCURRENT_TRANSACTIONS.

    Since transaction version 2 this comes before all checks of the producer. The EndTxn response
    has already told it the id and epoch of its next transaction, and after a rollover the state has
    them only once the markers are written.
    """
    if transaction.state.is_prepared:
        raise ApiError(ErrorCode.concurrent_transactions)


def _check_writer(transaction: TransactionMetadata, writer: ProducerIdentity) -> None:
    """Check that the writer is the producer of the last InitProducerId. Raises `ApiError`."""
    if transaction.producer_id != writer.producer_id:
        raise ApiError(ErrorCode.invalid_producer_id_mapping)
    if transaction.producer_epoch != writer.producer_epoch:
        raise ApiError(ErrorCode.producer_fenced)


def _has_ended_in_version_1(
    transaction: TransactionMetadata, writer: ProducerIdentity, *, committed: bool
) -> bool:
    """Whether the EndTxn is a repeated one, so that it is only answered. Raises `ApiError`."""
    _check_writer(transaction, writer)
    _check_complete(transaction)
    if transaction.state is (
        TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    ):
        return True
    if transaction.state is not TransactionState.ONGOING:
        raise _build_state_error(transaction, writer, committed=committed)
    return False


def _has_ended(
    transaction: TransactionMetadata, writer: ProducerIdentity, *, committed: bool
) -> bool:
    """Whether the EndTxn of version 2 is a repeated one, so that it is only answered. The epoch
    distinguishes it from the end of the next transaction (KIP-890). Raises `ApiError`."""
    _check_complete(transaction)
    if _is_repeated(transaction, writer):
        if transaction.state is (
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        ):
            return True
        if transaction.state is TransactionState.COMPLETE_COMMIT:
            raise _build_state_error(transaction, writer, committed=committed)
        # The coordinator has aborted the transaction that is to be committed (KAFKA-20785), or the
        # producer of the last InitProducerId has another epoch.
        raise ApiError(ErrorCode.producer_fenced)
    _check_writer(transaction, writer)
    # An abort without a transaction bumps the epoch, which fences earlier requests.
    if committed and transaction.state is not TransactionState.ONGOING:
        raise _build_state_error(transaction, writer, committed=committed)
    return False


def _is_repeated(transaction: TransactionMetadata, writer: ProducerIdentity) -> bool:
    """Whether an EndTxn names the epoch before the bump, or the producer id before the rollover.
    Its response was lost, and it was sent again (KIP-890)."""
    if transaction.producer_id == writer.producer_id:
        return transaction.producer_epoch == writer.producer_epoch + 1
    return (
        transaction.previous_producer_id == writer.producer_id
        and writer.producer_epoch == LAST_EPOCH
        and transaction.producer_epoch == 0
    )


def _build_state_error(
    transaction: TransactionMetadata, writer: ProducerIdentity, *, committed: bool
) -> ApiError:
    return ApiError(
        ErrorCode.invalid_txn_state,
        f"{writer.transactional_id} is in state {transaction.state.title}, which a"
        f" {'commit' if committed else 'abort'} does not follow.",
    )


def _build_markers(transactional_id: str, transaction: TransactionMetadata) -> WriteMarkers:
    return WriteMarkers(
        transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.state is TransactionState.PREPARE_COMMIT,
        tuple(transaction.partitions),
        transaction.client_transaction_version,
    )


def _build_producer_fields(
    error: ErrorCode, producer_id: int, epoch: int
) -> responses.InitProducerIdResponse:
    """The response of InitProducerId, whose fields are also those of EndTxn's."""
    return {"error_code": error, "producer_id": producer_id, "producer_epoch": epoch}
