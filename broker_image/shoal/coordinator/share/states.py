"""The states of a record in a share partition, and the moves between them (KIP-932).

Rule 1: every legal move stands in `MOVES`; whoever changes a state asks `may_move` first.
Rule 2: this file knows neither members nor time; who may cause a move is told elsewhere.

Theory. A record enters the window of a share partition AVAILABLE, and leaves it terminal:

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                   |    |
        |  release, expiry  |    +--reject, gap, limit reached--> ARCHIVED
        +-------------------+                                        ^
        +--passed by: retention, compaction, control, aborted--------+

The delivery count rises by one when a record is acquired. A record that comes back with its count
at the limit is archived instead of made available. ARCHIVING is the state of a record that waits
for its dead letter to be written (KIP-1191); it lies on the way from ACQUIRED to ARCHIVED and holds
the window's start like any state that is not terminal.

A record in retry back-off is WAITING instead of AVAILABLE until its time has come. That is a state
of the window alone: it is persisted as AVAILABLE, and when the wait ends beside it (`backoff`).
One whose dead letter is written and still holds its key is HOLDS_KEY, on its way from ARCHIVING to
ARCHIVED: it is persisted as ARCHIVING, and beside it that it waits until it is freed.

ACQUIRED is never persisted: a lock does not outlive the leader that gave it, so a record that was
acquired when the leader went comes back AVAILABLE with the count last written.
"""

from enum import IntEnum


class RecordState(IntEnum):
    """Numbers of `ShareSnapshotValue.DeliveryState`. WAITING and HOLDS_KEY are never persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4
    WAITING = 5
    HOLDS_KEY = 6


class AcknowledgeType(IntEnum):
    """Numbers as in ShareFetch and ShareAcknowledge requests; RENEW since their version 2."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


#: The same as plain ints, for the loops over a window's columns.
AVAILABLE = int(RecordState.AVAILABLE)
ACQUIRED = int(RecordState.ACQUIRED)
ACKNOWLEDGED = int(RecordState.ACKNOWLEDGED)
ARCHIVING = int(RecordState.ARCHIVING)
ARCHIVED = int(RecordState.ARCHIVED)
WAITING = int(RecordState.WAITING)
HOLDS_KEY = int(RecordState.HOLDS_KEY)
ACCEPT = int(AcknowledgeType.ACCEPT)

MOVES: dict[RecordState, frozenset[RecordState]] = {
    RecordState.AVAILABLE: frozenset(
        {RecordState.ACQUIRED, RecordState.ARCHIVING, RecordState.ARCHIVED}
    ),
    RecordState.ACQUIRED: frozenset(
        {
            RecordState.AVAILABLE,
            RecordState.WAITING,
            RecordState.ACKNOWLEDGED,
            RecordState.ARCHIVING,
            RecordState.ARCHIVED,
        }
    ),
    RecordState.ACKNOWLEDGED: frozenset(),
    RecordState.ARCHIVING: frozenset({RecordState.HOLDS_KEY, RecordState.ARCHIVED}),
    RecordState.ARCHIVED: frozenset(),
    RecordState.WAITING: frozenset({RecordState.AVAILABLE}),
    RecordState.HOLDS_KEY: frozenset({RecordState.ARCHIVED}),
}

#: What an acknowledgement makes of an acquired record. RENEW moves no state, only the lock.
SETTLES: dict[int, RecordState] = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}

TERMINAL = frozenset(state for state, moves in MOVES.items() if not moves)

#: The two tables by number, for the loops over a window's columns: legal[from] has bit `to` set.
_LEGAL = tuple(sum(1 << to for to in MOVES[state]) for state in RecordState)
_IS_TERMINAL = bytes(state in TERMINAL for state in RecordState)


def may_move(state: int, to: int) -> bool:
    """Whether a record in `state` may become `to`."""
    return _LEGAL[state] >> to & 1 == 1


def is_terminal(state: int) -> bool:
    """Whether delivery of a record in `state` is complete."""
    return _IS_TERMINAL[state] == 1
