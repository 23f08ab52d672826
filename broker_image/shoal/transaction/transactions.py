"""The state of a transactional id as a value: its producer and its open transaction.

Each method returns the value after one move. `shard` decides whether a producer may make the move.
Source: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.transaction.states import MOVES, TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
#: The last epoch of a producer. One more is left to fence it.
LAST_EPOCH = 2**15 - 2

#: Levels of the feature transaction.version. With 2, every end of a transaction bumps the epoch.
TV_0 = 0
TV_2 = 2

TopicPartition = tuple[str, int]


class TransactionMetadata(NamedTuple):
    """The state of one transactional id in `__transaction_state`. `partitions` is an ordered
    set."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: Mapping[TopicPartition, None] = {}
    start_timestamp_ms: int = -1
    update_timestamp_ms: int = -1
    #: The producer id before the last move, which differs after a rollover.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The producer id after the rollover, once the markers of the last transaction are written.
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = TV_0

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_EPOCH

    def _with_state(
        self, state: TransactionState, now_ms: int, **changed: Any
    ) -> TransactionMetadata:
        assert state in MOVES[self.state], f"{self.state.title} to {state.title}"
        return self._replace(
            state=state,
            update_timestamp_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=changed.pop("next_producer_id", NO_PRODUCER_ID),
            **changed,
        )

    def initialize(
        self, producer_id: int, producer_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """Initialize a producer: no transaction is open."""
        return self._with_state(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timeout_ms=timeout_ms,
            partitions={},
            start_timestamp_ms=-1,
        )

    def with_partitions(
        self, added: Iterable[TopicPartition], version: int, now_ms: int
    ) -> TransactionMetadata:
        """Add partitions to the open transaction, or open one with them."""
        begins = self.state is not TransactionState.ONGOING
        return self._with_state(
            TransactionState.ONGOING,
            now_ms,
            partitions={**self.partitions, **dict.fromkeys(added)},
            start_timestamp_ms=now_ms if begins else self.start_timestamp_ms,
            client_transaction_version=version,
        )

    def prepare(
        self, *, committed: bool, version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """Decide the transaction. With version 2 the epoch is bumped, so that no late request of
        the old epoch can join the next transaction."""
        return self._with_state(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + (version >= TV_2),
            start_timestamp_ms=now_ms if self.state.is_at_rest else self.start_timestamp_ms,
            next_producer_id=next_producer_id,
            client_transaction_version=version,
        )

    def complete(self, now_ms: int) -> TransactionMetadata:
        """Complete the transaction: all markers are written. A rollover takes effect."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        changed: dict[str, Any] = {}
        if self.next_producer_id != NO_PRODUCER_ID:
            changed = {"producer_id": self.next_producer_id, "producer_epoch": 0}
        return self._with_state(
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
            now_ms,
            partitions={},
            **changed,
        )
