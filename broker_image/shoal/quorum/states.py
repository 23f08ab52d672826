"""The roles of a replica of the metadata log, and the legal moves between them.

Theory. Time is divided into numbered epochs. An epoch has at most one leader: a leader needs the
votes of a majority, and a voter makes its one vote of an epoch durable before it answers. A replica
that learns of a higher epoch leaves its role in the lower one.

                     election timeout              majority grants          majority votes
    UNATTACHED ────────────────────────> PROSPECTIVE ───────────> CANDIDATE ────────────> LEADER
     ^   ^  │  <──── nobody is ahead ────┘   ^    ^     epoch + 1    │                       │
     │   │  │                                │    └──── lost ────────┘         majority silent,
     │   │  └─ finds the leader ─> FOLLOWER ─┘                                       or stopped
     │   └──────── higher epoch ──────┘  fetch timeout                                       │
     └───────────────────────────── RESIGNED <───────────────────────────────────────────────┘

*Prospective* is pre-vote (KIP-996). A higher epoch deposes the leader, so a replica first asks
whether it would win. Voters that have fetched from a leader refuse. A replica that was partitioned,
or was removed and has not learned it, therefore disturbs no leader.

*Resigned* is a leader that has stopped leading and has no successor yet. It must not lead its epoch
again, because it no longer knows which messages it has sent in it.

*Voter* and *observer* are not roles: the voter set decides about membership. *Voted* belongs to an
epoch and is kept beside the role. `format_current_state` combines them as Kafka's metric does.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Role(Enum):
    """The role of a replica in its epoch."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


class EpochStep(Enum):
    """How the epoch changes with a move."""

    SAME = "same"
    NEXT = "next"
    HIGHER = "higher"
    NOT_LOWER = "not lower"

    def may_change(self, before: int, after: int) -> bool:
        if self is EpochStep.SAME:
            return after == before
        if self is EpochStep.NEXT:
            return after == before + 1
        return after > before if self is EpochStep.HIGHER else after >= before


#: All legal moves, with the change of the epoch. Any other move is a bug.
MOVES: Mapping[tuple[Role, Role], EpochStep] = {
    (Role.UNATTACHED, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.UNATTACHED, Role.PROSPECTIVE): EpochStep.SAME,
    (Role.UNATTACHED, Role.FOLLOWER): EpochStep.NOT_LOWER,
    (Role.PROSPECTIVE, Role.CANDIDATE): EpochStep.NEXT,
    (Role.PROSPECTIVE, Role.UNATTACHED): EpochStep.NOT_LOWER,
    (Role.PROSPECTIVE, Role.FOLLOWER): EpochStep.NOT_LOWER,
    (Role.CANDIDATE, Role.LEADER): EpochStep.SAME,
    (Role.CANDIDATE, Role.PROSPECTIVE): EpochStep.SAME,
    (Role.CANDIDATE, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.CANDIDATE, Role.FOLLOWER): EpochStep.NOT_LOWER,
    (Role.LEADER, Role.RESIGNED): EpochStep.SAME,
    (Role.LEADER, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.LEADER, Role.FOLLOWER): EpochStep.HIGHER,
    (Role.FOLLOWER, Role.PROSPECTIVE): EpochStep.SAME,
    # In the same epoch, this is an observer that has lost its leader and looks for another.
    (Role.FOLLOWER, Role.UNATTACHED): EpochStep.NOT_LOWER,
    (Role.FOLLOWER, Role.FOLLOWER): EpochStep.HIGHER,
    (Role.RESIGNED, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.RESIGNED, Role.FOLLOWER): EpochStep.HIGHER,
}


def check_move(before: Role, epoch_before: int, after: Role, epoch_after: int) -> None:
    """Assert that a move is one of `MOVES`."""
    step = MOVES.get((before, after))
    move = f"{before.value} in epoch {epoch_before} must not become {after.value} in {epoch_after}"
    assert step is not None, move
    assert step.may_change(epoch_before, epoch_after), move


def format_current_state(role: Role, *, voter: bool, voted: bool) -> str:
    """Return the role as Kafka's `current-state` metric names it."""
    if not voter and role in (Role.UNATTACHED, Role.FOLLOWER):
        return "observer"
    if role is Role.UNATTACHED and voted:
        return "unattached-voted"
    if role is Role.PROSPECTIVE and voted:
        return "prospective-voted"
    return role.value
