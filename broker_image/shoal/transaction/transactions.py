"""A transactional id as a value: who may write under it, and how its open transaction stands.

Each function gives the value after one move; none decides whether the move is allowed to whoever
asks (`shard` does). Source: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shoal.transaction.states import MOVES, State

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
#: The last epoch that a producer is given: one is left, so that it can still be fenced.
LAST_EPOCH = 2**15 - 2

#: The levels of the feature transaction.version that matter: with 2, every end bumps the epoch.
TV_0 = 0
TV_2 = 2

TopicPartition = tuple[str, int]


class Transaction(NamedTuple):
    """What `__transaction_state` keeps of one transactional id. `partitions` is an ordered set."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: Mapping[TopicPartition, None] = {}
    start_timestamp_ms: int = -1
    update_timestamp_ms: int = -1
    #: The producer id before the last move: another one after an id ran out of epochs.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The id that takes over once the markers of the old one's last transaction are written.
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = TV_0

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_EPOCH

    def _moved(self, state: State, now_ms: int, **changed: Any) -> Transaction:
        assert state in MOVES[self.state], f"{self.state.title} to {state.title}"
        return self._replace(
            state=state,
            update_timestamp_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=changed.pop("next_producer_id", NO_PRODUCER_ID),
            **changed,
        )

    def initialized(
        self, producer_id: int, producer_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """A producer may write as `producer_id` with that epoch, and nothing is open."""
        return self._moved(
            State.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timeout_ms=timeout_ms,
            partitions={},
            start_timestamp_ms=-1,
        )

    def with_partitions(
        self, added: Iterable[TopicPartition], version: int, now_ms: int
    ) -> Transaction:
        """Open, and `added` are among the partitions that it writes to."""
        begins = self.state is not State.ONGOING
        return self._moved(
            State.ONGOING,
            now_ms,
            partitions={**self.partitions, **dict.fromkeys(added)},
            start_timestamp_ms=now_ms if begins else self.start_timestamp_ms,
            client_transaction_version=version,
        )

    def prepared(
        self, *, committed: bool, version: int, next_producer_id: int, now_ms: int
    ) -> Transaction:
        """Decided. With version 2 the epoch is bumped: nothing that was sent under the old one can
        come into the next transaction."""
        return self._moved(
            State.PREPARE_COMMIT if committed else State.PREPARE_ABORT,
            now_ms,
            producer_epoch=self.producer_epoch + (version >= TV_2),
            start_timestamp_ms=now_ms if self.state.is_at_rest else self.start_timestamp_ms,
            next_producer_id=next_producer_id,
            client_transaction_version=version,
        )

    def completed(self, now_ms: int) -> Transaction:
        """All markers are written; an id that has run out of epochs gives way to the next."""
        committed = self.state is State.PREPARE_COMMIT
        changed: dict[str, Any] = {}
        if self.next_producer_id != NO_PRODUCER_ID:
            changed = {"producer_id": self.next_producer_id, "producer_epoch": 0}
        return self._moved(
            State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT,
            now_ms,
            partitions={},
            **changed,
        )
