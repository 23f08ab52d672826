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

from shoal.coordinator.contract import ProducerIdAndEpoch, Record, Replayed, Reply, Result, Token
from shoal.coordinator.deadlines import Deadlines
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.transaction.records import decode, record, tombstone
from shoal.transaction.states import State
from shoal.transaction.transactions import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TV_2,
    TopicPartition,
    Transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

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


class Writer(NamedTuple):
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
        self._transactions: dict[str, Transaction] = {}
        self._deadlines = Deadlines()
        self._last_epochs: dict[str, int] = {}
        self._to_expire: list[str] = []

    def __len__(self) -> int:
        return len(self._transactions)

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def hard_state(self) -> Any:
        return self._transactions

    # Decisions about the producer.

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        now_ms: int,
        token: Token,
    ) -> Result:
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
        found = self._transactions.get(transactional_id)
        if found is None:
            found = Transaction(self._new_producer_id(), NO_PRODUCER_EPOCH, timeout_ms)
        _check_complete(found)
        if expected is not None and not _may_continue(found, expected):
            raise ApiError(ErrorCode.producer_fenced)
        if found.state is State.ONGOING:
            fenced = self._aborted(transactional_id, found, now_ms)
            refusal = _producer(ErrorCode.concurrent_transactions, NO_PRODUCER_ID, -1)
            return self._decided(transactional_id, fenced, Reply(token, refusal))
        producer_id, epoch = self._next_epoch(transactional_id, found, expected)
        moved = found.initialized(producer_id, epoch, timeout_ms, now_ms)
        reply = Reply(token, _producer(ErrorCode.none, producer_id, epoch))
        return Result((record(transactional_id, moved),), (reply,))

    def _next_epoch(
        self, transactional_id: str, found: Transaction, expected: ProducerIdAndEpoch | None
    ) -> tuple[int, int]:
        """The producer id and epoch of the InitProducerId response."""
        epoch, last = found.producer_epoch, self._last_epochs.get(transactional_id, -1)
        if found.is_epoch_exhausted and (expected is None or expected.producer_epoch == epoch):
            self._last_epochs[transactional_id] = -1 if expected is None else epoch
            return self._new_producer_id(), 0
        if expected is None:
            self._last_epochs.pop(transactional_id, None)
        elif epoch == NO_PRODUCER_EPOCH or expected.producer_epoch == epoch:
            self._last_epochs[transactional_id] = epoch
        elif expected.producer_epoch == last:
            return found.producer_id, epoch
        else:
            raise ApiError(ErrorCode.producer_fenced)
        return found.producer_id, epoch + 1

    # Decisions about the open transaction.

    def add_partitions(
        self,
        writer: Writer,
        partitions: Collection[TopicPartition],
        version: int,
        now_ms: int,
        token: Token,
    ) -> Result:
        """AddPartitionsToTxn. Produce and TxnOffsetCommit imply it with transaction version 2."""
        found = self._find(writer)
        _check_complete(found)
        _check_writer(found, writer)
        reply = Reply(token, {"error_code": ErrorCode.none})
        if found.state is State.ONGOING and all(p in found.partitions for p in partitions):
            return Result((), (reply,))
        moved = found.with_partitions(partitions, version, now_ms)
        return Result((record(writer.transactional_id, moved),), (reply,))

    def verify_partitions(
        self, writer: Writer, partitions: Collection[TopicPartition], token: Token
    ) -> Result:
        """Check that partitions are in the writer's open transaction. The reply has the error of
        each (KIP-890)."""
        found = self._find(writer)
        _check_writer(found, writer)
        _check_complete(found)
        errors = {
            p: ErrorCode.none if p in found.partitions else ErrorCode.transaction_abortable
            for p in partitions
        }
        return Result((), (Reply(token, {"errors": errors}),))

    def end(
        self, writer: Writer, *, committed: bool, version: int, now_ms: int, token: Token
    ) -> Result:
        """EndTxn. The reply has the producer id and epoch of the next transaction."""
        found = self._find(writer)
        has_ended = _has_ended if version >= TV_2 else _has_ended_in_version_1
        if has_ended(found, writer, committed=committed):
            reply = _producer(ErrorCode.none, found.producer_id, found.producer_epoch)
            return Result((), (Reply(token, reply),))
        moved = self._prepared(
            writer.transactional_id, found, committed=committed, version=version, now_ms=now_ms
        )
        reply = _producer(ErrorCode.none, moved.producer_id, moved.producer_epoch)
        if moved.next_producer_id != NO_PRODUCER_ID:
            reply = _producer(ErrorCode.none, moved.next_producer_id, 0)
        return self._decided(writer.transactional_id, moved, Reply(token, reply))

    def complete(self, markers: WriteMarkers, now_ms: int) -> Result:
        """Complete a transaction whose markers are written. Ignored unless they are owed."""
        found = self._transactions.get(markers.transactional_id)
        if found is None or not self.owes(markers):
            return Result()
        return Result((record(markers.transactional_id, found.completed(now_ms)),))

    def owes(self, markers: WriteMarkers) -> bool:
        """Whether these are the markers of a decided transaction that is not complete."""
        found = self._transactions.get(markers.transactional_id)
        if found is None or not found.state.is_prepared:
            return False
        return markers == _markers(markers.transactional_id, found)

    def _find(self, writer: Writer) -> Transaction:
        found = self._transactions.get(writer.transactional_id)
        if found is None:
            raise ApiError(ErrorCode.invalid_producer_id_mapping)
        return found

    def _prepared(
        self,
        transactional_id: str,
        found: Transaction,
        *,
        committed: bool,
        version: int,
        now_ms: int,
    ) -> Transaction:
        next_id = NO_PRODUCER_ID
        if version >= TV_2:
            if found.is_epoch_exhausted:
                next_id = self._new_producer_id()
            self._last_epochs[transactional_id] = found.producer_epoch
        return found.prepared(
            committed=committed, version=version, next_producer_id=next_id, now_ms=now_ms
        )

    def _aborted(self, transactional_id: str, found: Transaction, now_ms: int) -> Transaction:
        """Abort a transaction that has timed out, and fence its producer by an epoch bump."""
        return self._prepared(transactional_id, found, committed=False, version=TV_2, now_ms=now_ms)

    def _decided(self, transactional_id: str, moved: Transaction, *replies: Reply) -> Result:
        effect = _markers(transactional_id, moved)
        return Result((record(transactional_id, moved),), replies, (effect,))

    # Admin requests.

    def describe(self, transactional_id: str) -> Mapping[str, Any]:
        """One transaction of a DescribeTransactions response."""
        found = self._transactions.get(transactional_id)
        if found is None:
            return {
                "transactional_id": transactional_id,
                "error_code": ErrorCode.transactional_id_not_found,
            }
        topics: dict[str, list[int]] = {}
        for topic, index in found.partitions:
            topics.setdefault(topic, []).append(index)
        return {
            "transactional_id": transactional_id,
            "error_code": ErrorCode.none,
            "transaction_state": found.state.title,
            "transaction_timeout_ms": found.timeout_ms,
            "transaction_start_time_ms": found.start_timestamp_ms,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
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
    ) -> list[Mapping[str, Any]]:
        """Return the transactions of a ListTransactions response whose id `matches`. An empty
        filter, or a duration below 0, selects all."""
        return [
            {
                "transactional_id": transactional_id,
                "producer_id": found.producer_id,
                "transaction_state": found.state.title,
            }
            for transactional_id, found in self._transactions.items()
            if (not states or found.state.title in states)
            and (not producer_ids or found.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - found.start_timestamp_ms > duration_ms)
            and matches(transactional_id)
        ]

    # The contract.

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms

    def replay(self, record: Record, at: Replayed) -> None:
        decoded = decode(record)
        if decoded is None:
            return
        transactional_id, found = decoded
        timeout, markers = ("timeout", transactional_id), ("markers", transactional_id)
        if found is None:
            self._transactions.pop(transactional_id, None)
            self._last_epochs.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = found
        if found is not None and found.state is State.ONGOING:
            self._deadlines.set(timeout, found.start_timestamp_ms + found.timeout_ms)
        else:
            self._deadlines.cancel(timeout)
        if found is not None and found.state.is_prepared:
            self._deadlines.set(markers, at.timestamp_ms + MARKERS_RETRY_MS)
        else:
            self._deadlines.cancel(markers)

    def loaded(self, now_ms: int) -> None:
        for transactional_id, found in self._transactions.items():
            if found.state.is_prepared:
                self._deadlines.set(("markers", transactional_id), now_ms)
        interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
        self._deadlines.set(("expiry",), now_ms + interval_ms)

    def tick(self, now_ms: int) -> Result:
        key = self._deadlines.due(now_ms)
        if key is None:
            return Result()
        if key == ("expiry",):
            return self._expire(now_ms)
        transactional_id = key[1]
        found = self._transactions.get(transactional_id)
        if found is None:
            return Result()
        if key[0] == "markers":
            self._deadlines.set(key, now_ms + MARKERS_RETRY_MS)
            return Result(effects=(_markers(transactional_id, found),))
        try:
            moved = self._aborted(transactional_id, found, now_ms)
        except ApiError:  # There is no producer id for the next transaction: try again later.
            self._deadlines.set(key, now_ms + MARKERS_RETRY_MS)
            return Result()
        return self._decided(transactional_id, moved)

    def _expire(self, now_ms: int) -> Result:
        """Expire unused transactional ids, a bounded number a step."""
        settings = self.settings
        if not self._to_expire:
            self._to_expire = [
                transactional_id
                for transactional_id, found in self._transactions.items()
                if self._is_expired(found, now_ms)
            ]
        step = self._to_expire[:EXPIRY_RECORDS_MAX]
        self._to_expire = self._to_expire[EXPIRY_RECORDS_MAX:]
        pause_ms = settings.transaction_remove_expired_transaction_cleanup_interval_ms
        if self._to_expire:
            pause_ms = EXPIRY_PAUSE_MS
        self._deadlines.set(("expiry",), now_ms + pause_ms)
        there = ((i, self._transactions.get(i)) for i in step)
        return Result([tombstone(i) for i, t in there if t and self._is_expired(t, now_ms)])

    def _is_expired(self, found: Transaction, now_ms: int) -> bool:
        unused_ms = now_ms - found.update_timestamp_ms
        return found.state.is_at_rest and unused_ms >= self.settings.transactional_id_expiration_ms


def _may_continue(found: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Whether `expected` may be the producer that had the id last (KIP-360)."""
    return (
        found.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == found.producer_id
        or (
            expected.producer_id == found.previous_producer_id
            and expected.producer_epoch >= LAST_EPOCH
        )
    )


def _check_complete(found: Transaction) -> None:
    """Check that no markers are being written. Raises CONCURRENT_TRANSACTIONS.

    Since transaction version 2 this comes before all checks of the producer. The EndTxn response
    has already told it the id and epoch of its next transaction, and after a rollover the state has
    them only once the markers are written.
    """
    if found.state.is_prepared:
        raise ApiError(ErrorCode.concurrent_transactions)


def _check_writer(found: Transaction, writer: Writer) -> None:
    """Check that the writer is the producer of the last InitProducerId. Raises `ApiError`."""
    if found.producer_id != writer.producer_id:
        raise ApiError(ErrorCode.invalid_producer_id_mapping)
    if found.producer_epoch != writer.producer_epoch:
        raise ApiError(ErrorCode.producer_fenced)


def _has_ended_in_version_1(found: Transaction, writer: Writer, *, committed: bool) -> bool:
    """Whether the EndTxn is a repeated one, so that it is only answered. Raises `ApiError`."""
    _check_writer(found, writer)
    _check_complete(found)
    if found.state is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT):
        return True
    if found.state is not State.ONGOING:
        raise _out_of_turn(found, writer, committed=committed)
    return False


def _has_ended(found: Transaction, writer: Writer, *, committed: bool) -> bool:
    """Whether the EndTxn of version 2 is a repeated one, so that it is only answered. The epoch
    distinguishes it from the end of the next transaction (KIP-890). Raises `ApiError`."""
    _check_complete(found)
    if _is_repeated(found, writer):
        if found.state is (State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT):
            return True
        if found.state is State.COMPLETE_COMMIT:
            raise _out_of_turn(found, writer, committed=committed)
        # The coordinator has aborted the transaction that is to be committed (KAFKA-20785), or the
        # producer of the last InitProducerId has another epoch.
        raise ApiError(ErrorCode.producer_fenced)
    _check_writer(found, writer)
    # An abort without a transaction bumps the epoch, which fences earlier requests.
    if committed and found.state is not State.ONGOING:
        raise _out_of_turn(found, writer, committed=committed)
    return False


def _is_repeated(found: Transaction, writer: Writer) -> bool:
    """Whether an EndTxn names the epoch before the bump, or the producer id before the rollover.
    Its response was lost, and it was sent again (KIP-890)."""
    if found.producer_id == writer.producer_id:
        return found.producer_epoch == writer.producer_epoch + 1
    return (
        found.previous_producer_id == writer.producer_id
        and writer.producer_epoch == LAST_EPOCH
        and found.producer_epoch == 0
    )


def _out_of_turn(found: Transaction, writer: Writer, *, committed: bool) -> ApiError:
    return ApiError(
        ErrorCode.invalid_txn_state,
        f"{writer.transactional_id} is in state {found.state.title}, which a"
        f" {'commit' if committed else 'abort'} does not follow.",
    )


def _markers(transactional_id: str, found: Transaction) -> WriteMarkers:
    return WriteMarkers(
        transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state is State.PREPARE_COMMIT,
        tuple(found.partitions),
        found.client_transaction_version,
    )


def _producer(error: ErrorCode, producer_id: int, epoch: int) -> Mapping[str, Any]:
    return {"error_code": error, "producer_id": producer_id, "producer_epoch": epoch}
