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

A member may own *slices*: slots of partitions that it shares with others (`key_slots`). All rules
hold for each slot. `slices` of an assignment has the slots of such partitions; a member owns all
slots of the others. A member that does not share gets whole partitions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.coordinator.group.key_slots import ALL, NO_SLICES, Slices, of_ranges, ranges_of

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
    #: The slots of partitions of which only a part is assigned, or is to be revoked.
    slices: Slices = field(default_factory=dict)
    pending_slices: Slices = field(default_factory=dict)

    def owns(self, topic: UUID, partition: int) -> bool:
        return partition in self.assigned.get(topic, ()) or partition in (
            self.pending_revocation.get(topic, ())
        )

    def assignment_epoch(self, topic: UUID, partition: int) -> int | None:
        """The epoch at which a partition was assigned; None if the member does not own it."""
        epoch = self.assigned.get(topic, {}).get(partition)
        return self.pending_revocation.get(topic, {}).get(partition) if epoch is None else epoch

    def slots_of(self, topic: UUID, partition: int) -> int:
        """The slots of a partition that the member owns; 0 if it owns none."""
        return _slots(self.assigned, self.slices, topic, partition) | _slots(
            self.pending_revocation, self.pending_slices, topic, partition
        )

    def reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def advanced(
        self, epoch: int, state: MemberState, assigned: _Part, pending: _Part
    ) -> CurrentAssignment:
        """Return the assignment that follows this one. This epoch becomes the previous one."""
        return CurrentAssignment(
            epoch,
            self.member_epoch,
            state,
            assigned.owned,
            pending.owned,
            assigned.slices,
            pending.slices,
        )


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """The partitions that a member is to own.

    `subscribed` has the ids of its subscribed topics. A partition of any other topic is revoked
    before a target without it is computed.
    """

    epoch: int
    assignment: Assignment
    subscribed: frozenset[UUID]
    #: The slots of partitions of which the member is to own a part.
    slices: Slices = field(default_factory=dict)
    #: Whether the member can own slices.
    shares: bool = False

    def slots_of(self, topic: UUID, partition: int) -> int:
        if topic not in self.subscribed:
            return 0
        if partition in self.assignment.get(topic, ()):
            return ALL
        return self.slices.get((topic, partition), 0)


class _Part:
    """Partitions and slots that are collected for an assignment."""

    def __init__(self) -> None:
        self.owned: dict[UUID, dict[int, int]] = {}
        self.slices: Slices = {}

    def add(self, topic: UUID, partition: int, epoch: int, slots: int) -> None:
        """Set the slots of a partition. Without slots, nothing is added."""
        if not slots:
            return
        self.owned.setdefault(topic, {})[partition] = epoch
        if slots == ALL:
            self.slices.pop((topic, partition), None)
        else:
            self.slices[topic, partition] = slots

    def slots_of(self, topic: UUID, partition: int) -> int:
        return _slots(self.owned, self.slices, topic, partition)


_NOTHING = _Part()


def reconcile(
    current: CurrentAssignment,
    target: TargetAssignment,
    *,
    free: Callable[[UUID, int], int],
    owned: Assignment | None,
    owned_slices: Slices = NO_SLICES,
    subscription_changed: bool = False,
) -> CurrentAssignment:
    """Return the member's next step towards `target`; `current` itself if there is none.

    `free` returns the slots of a partition that no other member owns. `owned` has the partitions
    that the heartbeat lists as owned, or None, and `owned_slices` those that it owns in part.
    """
    report = None if owned is None else _Report(owned, owned_slices)
    pending = current.pending_revocation, current.pending_slices
    if current.state is MemberState.STABLE:
        if current.member_epoch != target.epoch:
            return _next(current, target, free, report)
    elif current.state is MemberState.UNRELEASED_PARTITIONS or not _owns_any(report, *pending):
        return _next(current, target, free, report)
    return _unsubscribed(current, target, report) if subscription_changed else current


class _Report(NamedTuple):
    """What a heartbeat lists as owned."""

    owned: Assignment
    slices: Slices


def _next(
    current: CurrentAssignment,
    target: TargetAssignment,
    free: Callable[[UUID, int], int],
    report: _Report | None,
) -> CurrentAssignment:
    kept, revoked = _Part(), _Part()
    for topic, partitions in current.assigned.items():
        for partition, epoch in partitions.items():
            slots = _slots(current.assigned, current.slices, topic, partition)
            wanted = slots & target.slots_of(topic, partition)
            if wanted != ALL and not target.shares:
                wanted = 0
            kept.add(topic, partition, epoch, wanted)
            revoked.add(topic, partition, epoch, slots & ~wanted)
    if revoked.owned and _owns_any(report, revoked.owned, revoked.slices):
        # The member stays in its epoch until it has revoked them.
        state = MemberState.UNREVOKED_PARTITIONS
        return current.advanced(current.member_epoch, state, kept, revoked)
    state = MemberState.STABLE
    for topic, partition in _wanted(target):
        before = kept.slots_of(topic, partition)
        missing = target.slots_of(topic, partition) & ~before
        if not missing:
            continue
        pending = _slots(current.pending_revocation, current.pending_slices, topic, partition)
        given = missing & (pending if not missing & ~pending else pending | free(topic, partition))
        if given != missing:
            state = MemberState.UNRELEASED_PARTITIONS
            if not target.shares:
                continue
        if given:
            kept.add(topic, partition, target.epoch, before | given)
    found = current.advanced(target.epoch, state, kept, _NOTHING)
    # If only the previous epoch changes, nothing has to be written.
    same = replace(found, previous_member_epoch=current.previous_member_epoch) == current
    return current if same else found


def _unsubscribed(
    current: CurrentAssignment, target: TargetAssignment, report: _Report | None
) -> CurrentAssignment:
    """Revoke partitions of topics without subscription, before the next target is computed."""
    if all(topic in target.subscribed for topic in current.assigned):
        return current
    kept, pending, before = _Part(), _Part(), _Part()
    for topic, partitions in current.pending_revocation.items():
        for partition, epoch in partitions.items():
            slots = _slots(current.pending_revocation, current.pending_slices, topic, partition)
            for side in (pending, before):
                side.add(topic, partition, epoch, slots)
    for topic, partitions in current.assigned.items():
        for partition, epoch in partitions.items():
            slots = _slots(current.assigned, current.slices, topic, partition)
            if topic in target.subscribed:
                kept.add(topic, partition, epoch, slots)
            else:
                pending.add(topic, partition, epoch, slots | pending.slots_of(topic, partition))
    epoch = current.member_epoch
    if _owns_any(report, pending.owned, pending.slices):
        return current.advanced(epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending)
    return current.advanced(epoch, current.state, kept, before)


def _wanted(target: TargetAssignment) -> list[TopicIdPartition]:
    """The partitions of the target, also those of which the member is to own a part."""
    whole = [(t, p) for t in target.assignment for p in target.assignment[t]]
    return sorted((t, p) for t, p in [*whole, *target.slices] if t in target.subscribed)


def _slots(owned: Owned, slices: Slices, topic: UUID, partition: int) -> int:
    if partition not in owned.get(topic, ()):
        return 0
    return slices.get((topic, partition), ALL) if slices else ALL


def _owns_any(report: _Report | None, revoked: Owned, slices: Slices) -> bool:
    if report is None:
        return True
    return any(
        p in revoked.get(t, ()) for t, partitions in report.owned.items() for p in partitions
    ) or any(slots & _slots(revoked, slices, t, p) for (t, p), slots in report.slices.items())


def is_subset(
    owned: Assignment | None,
    assigned: Owned,
    owned_slices: Slices = NO_SLICES,
    slices: Slices = NO_SLICES,
) -> bool:
    """Whether a member owns only partitions that it is assigned. Only then may its epoch be
    behind."""
    if owned is None:
        return False
    whole = all(
        _slots(assigned, slices, t, p) == ALL for t, partitions in owned.items() for p in partitions
    )
    parts = owned_slices.items()
    return whole and not any(slots & ~_slots(assigned, slices, t, p) for (t, p), slots in parts)


def slices_on_wire(owned: Owned, slices: Slices) -> list[dict[str, Any]]:
    """The partitions of the current-assignment record of which the member owns a part."""
    return [
        {
            "topic_id": topic,
            "partition": partition,
            "assignment_epoch": owned[topic][partition],
            "ranges": [
                {"first_hash": first, "last_hash": last}
                for first, last in ranges_of(slices[topic, partition])
            ],
        }
        for topic, partition in sorted(slices)
    ]


def add_slices(owned: Owned, stored: list[dict[str, Any]]) -> tuple[Owned, Slices]:
    """Read what `slices_on_wire` wrote, and add it to the partitions that are owned as a whole."""
    if not stored:
        return owned, {}
    found = {topic: dict(partitions) for topic, partitions in owned.items()}
    slices: Slices = {}
    for one in stored:
        topic, partition = one["topic_id"], one["partition"]
        slots = of_ranges((r["first_hash"], r["last_hash"]) for r in one["ranges"])
        found.setdefault(topic, {})[partition] = one["assignment_epoch"]
        slices[topic, partition] = slots
    return found, slices


def owned_on_wire(owned: Owned, slices: Slices = NO_SLICES) -> list[dict[str, Any]]:
    """The `TopicPartitions` array of the current-assignment record: partitions that are owned as a
    whole."""
    if slices:
        owned = {t: {p: e for p, e in owned[t].items() if (t, p) not in slices} for t in owned}
        owned = {t: partitions for t, partitions in owned.items() if partitions}
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
