"""Reconciliation of one consumer-group member with its target assignment (KIP-848).

A member owns the partitions that it is assigned and those that it has to revoke. No partition has
two owners. A member is in one of three states:

* STABLE: it owns its target, at the epoch of the target;
* UNREVOKED_PARTITIONS: it has to revoke partitions. It stays in its epoch until a heartbeat shows
  that it owns none of them, and is fenced when its rebalance timeout passes;
* UNRELEASED_PARTITIONS: it is at the epoch of its target, but other members have not released all
  partitions of the target.

So a member first revokes partitions, then advances its epoch, then is assigned partitions. Each
partition has the member epoch at which it was assigned: an offset commit with an earlier epoch is
fenced (KIP-1251). `reconcile` is pure, and is called for each heartbeat of a member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from shoal.coordinator.group.assignment import Assignment, TopicIdPartition

#: Partitions with the member epoch at which each was assigned, by topic id.
Owned = Mapping[UUID, Mapping[int, int]]
NONE: Owned = {}


class MemberState(IntEnum):
    """The states, with the numbers in records. Any state may follow any other."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions that a member owns, and its epoch."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    pending_revocation: Owned = field(default_factory=dict)

    def owns(self, topic: UUID, partition: int) -> bool:
        return partition in self.assigned.get(topic, ()) or partition in (
            self.pending_revocation.get(topic, ())
        )

    def assignment_epoch(self, topic: UUID, partition: int) -> int | None:
        """The epoch at which a partition was assigned; None if the member does not own it."""
        epoch = self.assigned.get(topic, {}).get(partition)
        return self.pending_revocation.get(topic, {}).get(partition) if epoch is None else epoch

    def reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def advanced(
        self, epoch: int, state: MemberState, assigned: Owned, pending: Owned
    ) -> CurrentAssignment:
        """Return the assignment that follows this one. This epoch becomes the previous one."""
        return CurrentAssignment(epoch, self.member_epoch, state, assigned, pending)


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """The partitions that a member is to own.

    `subscribed` has the ids of its subscribed topics. A partition of any other topic is revoked
    before a target without it is computed.
    """

    epoch: int
    assignment: Assignment
    subscribed: frozenset[UUID]


def reconcile(
    current: CurrentAssignment,
    target: TargetAssignment,
    *,
    free: Callable[[UUID, int], bool],
    owned: Assignment | None,
    subscription_changed: bool = False,
) -> CurrentAssignment:
    """Return the member's next step towards `target`; `current` itself if there is none.

    `free` returns whether no other member owns a partition. `owned` has the partitions that the
    heartbeat lists as owned, or None.
    """
    if current.state is MemberState.STABLE:
        if current.member_epoch != target.epoch:
            return _next(current, target, free, owned)
    elif current.state is MemberState.UNRELEASED_PARTITIONS or not _owns_any(
        owned, current.pending_revocation
    ):
        return _next(current, target, free, owned)
    return _unsubscribed(current, target, owned) if subscription_changed else current


def _next(
    current: CurrentAssignment,
    target: TargetAssignment,
    free: Callable[[UUID, int], bool],
    owned: Assignment | None,
) -> CurrentAssignment:
    kept: dict[UUID, dict[int, int]] = {}
    revoked: dict[UUID, dict[int, int]] = {}
    for topic, partitions in current.assigned.items():
        wanted = _wanted(target, topic)
        for partition, epoch in partitions.items():
            side = kept if partition in wanted else revoked
            side.setdefault(topic, {})[partition] = epoch
    if revoked and _owns_any(owned, revoked):
        # The member stays in its epoch until it has revoked them.
        state = MemberState.UNREVOKED_PARTITIONS
        return current.advanced(current.member_epoch, state, kept, revoked)
    state = MemberState.STABLE
    for topic, partition in _missing(target, kept):
        if partition in current.pending_revocation.get(topic, ()) or free(topic, partition):
            kept.setdefault(topic, {})[partition] = target.epoch
        else:
            state = MemberState.UNRELEASED_PARTITIONS
    found = current.advanced(target.epoch, state, kept, NONE)
    # If only the previous epoch changes, nothing has to be written.
    same = replace(found, previous_member_epoch=current.previous_member_epoch) == current
    return current if same else found


def _unsubscribed(
    current: CurrentAssignment, target: TargetAssignment, owned: Assignment | None
) -> CurrentAssignment:
    """Revoke partitions of topics without subscription, before the next target is computed."""
    kept = {t: p for t, p in current.assigned.items() if t in target.subscribed}
    if len(kept) == len(current.assigned):
        return current
    pending = {t: dict(p) for t, p in current.pending_revocation.items()}
    for topic, partitions in current.assigned.items():
        if topic not in target.subscribed:
            pending.setdefault(topic, {}).update(partitions)
    epoch = current.member_epoch
    if _owns_any(owned, pending):
        return current.advanced(epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending)
    return current.advanced(epoch, current.state, kept, current.pending_revocation)


def _wanted(target: TargetAssignment, topic: UUID) -> frozenset[int]:
    return target.assignment.get(topic, frozenset()) if topic in target.subscribed else frozenset()


def _missing(target: TargetAssignment, kept: Owned) -> list[TopicIdPartition]:
    return [
        (topic, partition)
        for topic in sorted(target.assignment)
        for partition in sorted(_wanted(target, topic))
        if partition not in kept.get(topic, ())
    ]


def _owns_any(owned: Assignment | None, revoked: Owned) -> bool:
    if owned is None:
        return True
    return any(p in revoked.get(t, ()) for t, partitions in owned.items() for p in partitions)


def is_subset(owned: Assignment | None, assigned: Owned) -> bool:
    """Whether a member owns only partitions that it is assigned. Only then may its epoch be
    behind."""
    return owned is not None and all(
        p in assigned.get(t, ()) for t, partitions in owned.items() for p in partitions
    )


def owned_on_wire(owned: Owned) -> list[dict[str, Any]]:
    """The `TopicPartitions` array of the current-assignment record."""
    return [
        {
            "topic_id": topic,
            "partitions": sorted(owned[topic]),
            "assignment_epochs": [owned[topic][p] for p in sorted(owned[topic])],
        }
        for topic in sorted(owned)
    ]


def owned_from_wire(topics: list[dict[str, Any]], member_epoch: int) -> Owned:
    """Read what `owned_on_wire` wrote. Older records have no epochs: the member epoch is used."""
    found: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        partitions = topic["partitions"]
        epochs = topic.get("assignment_epochs") or [member_epoch] * len(partitions)
        if partitions:
            found[topic["topic_id"]] = dict(zip(partitions, epochs, strict=True))
    return found
