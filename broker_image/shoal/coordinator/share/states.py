"""The states of a record in a share partition, and the moves between them (KIP-932).

Rule 1: `MOVES` has every legal move; code that changes a state checks `may_move` first.
Rule 2: this file has neither members nor time; other modules decide who may cause a move.

Theory. A record enters the window of a share partition AVAILABLE, and leaves it terminal:

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                   |    |
        |  release, expiry  |    +--reject, gap, limit reached--> ARCHIVED
        +-------------------+                                        ^
        +--skipped: retention, compaction, control, aborted----------+

Acquiring a record increments its delivery count. A record that comes back at the limit is archived
instead of becoming available. An ARCHIVING record waits for its dead letter (KIP-1191), between
ACQUIRED and ARCHIVED. The window's start does not pass it, as with any state that is not terminal.

A record in retry back-off is WAITING until it is due. Only the window has this state: it is
persisted as AVAILABLE with the end of the wait (`backoff`). A record whose dead letter is written
and holds its key is HOLDS_KEY, between ARCHIVING and ARCHIVED. It is persisted as ARCHIVING, with a
wait until it is freed.

ACQUIRED is never persisted: a lock ends with its leader. A record that was acquired then is
AVAILABLE at the next leader, with the count that was written last. Once it is cancelled, it is
persisted as ARCHIVED or ARCHIVING while a member still holds it (`cancellation`).
"""

from enum import IntEnum

#: Offsets with one state, as they are persisted: first, last, state, delivery count. A plain tuple,
#: because writes to the state topic carry thousands, which C code packs.
StateBatch = tuple[int, int, int, int]


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
    """Numbers in ShareFetch and ShareAcknowledge requests; RENEW since version 2."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


#: The same as plain integers, for the loops over a window's columns.
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

#: The state after an acknowledgement. RENEW changes only the lock.
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
