"""The states of a transactional id, and the moves between them (KIP-98, KIP-890).

    Empty ──────────► Ongoing ──► PrepareCommit ──► CompleteCommit
      │                  │                              │
      └──► PrepareAbort ◄┘ ◄────────────────────────────┘
                 └──────► CompleteAbort

A transaction is decided once its Prepare record is committed: from then on nothing but writing its
markers can happen to it, whoever asks. Complete says that all of them are written. From Empty and
the Complete states a transaction begins, a producer is initialized anew, or, with transaction
version 2, an abort bumps the epoch though nothing was written. Numbers and names are Kafka's.

PrepareEpochFence and Dead are states of Kafka's coordinator between a decision and its write. Here
a decision is replayed at once, so that no transaction is ever found in them; they are known to
filters and to whoever reads a log that Kafka wrote.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The number in the record, and the name that tools are told."""

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
        """Decided, and its markers are being written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_at_rest(self) -> bool:
        """No transaction is open: the id may be initialized anew, or expire."""
        return self in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


BY_NUMBER = {state.number: state for state in State}

#: To which states each state may move; staying is among the moves where a record is written for it.
MOVES: dict[State, tuple[State, ...]] = {
    State.EMPTY: (State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD),
    State.ONGOING: (
        State.ONGOING,
        State.PREPARE_COMMIT,
        State.PREPARE_ABORT,
        State.PREPARE_EPOCH_FENCE,
    ),
    State.PREPARE_COMMIT: (State.COMPLETE_COMMIT,),
    State.PREPARE_ABORT: (State.COMPLETE_ABORT,),
    State.COMPLETE_COMMIT: (State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD),
    State.COMPLETE_ABORT: (State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD),
    State.PREPARE_EPOCH_FENCE: (State.PREPARE_ABORT,),
    State.DEAD: (),
}
