"""The states of a transactional id, and the moves between them (KIP-98, KIP-890).

    Empty ──────────► Ongoing ──► PrepareCommit ──► CompleteCommit
      │                  │                              │
      └──► PrepareAbort ◄┘ ◄────────────────────────────┘
                 └──────► CompleteAbort

A transaction is decided once its Prepare record is committed: it can then only have its markers
written. Complete means that all markers are written. In Empty and the Complete states, a
transaction can begin and a producer can be initialized. With transaction version 2, an abort also
bumps the epoch there, without any write. Numbers and names are Kafka's.

PrepareEpochFence and Dead are states of Kafka's coordinator between a decision and its write. Shoal
replays a decision at once, so no transaction is in them. Filters accept them, and logs that Kafka
wrote may have them.
"""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """The number in the record, and the name in responses."""

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    DEAD = (6, "Dead")
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def title(self) -> str:
        return self.value[1]

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided and its markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_at_rest(self) -> bool:
        """Whether no transaction is open, so that the id may be initialized or expire."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )


BY_NUMBER = {state.number: state for state in TransactionState}

#: The legal moves of each state. A state moves to itself where a record is written for that.
MOVES: dict[TransactionState, tuple[TransactionState, ...]] = {
    TransactionState.EMPTY: (
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    ),
    TransactionState.ONGOING: (
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    ),
    TransactionState.PREPARE_COMMIT: (TransactionState.COMPLETE_COMMIT,),
    TransactionState.PREPARE_ABORT: (TransactionState.COMPLETE_ABORT,),
    TransactionState.COMPLETE_COMMIT: (
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    ),
    TransactionState.COMPLETE_ABORT: (
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    ),
    TransactionState.PREPARE_EPOCH_FENCE: (TransactionState.PREPARE_ABORT,),
    TransactionState.DEAD: (),
}
