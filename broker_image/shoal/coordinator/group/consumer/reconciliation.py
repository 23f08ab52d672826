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

from shoal.coordinator.group.key_ranges.key_slots import (
    ALL,
    NO_SLICES,
    Slices,
    from_ranges,
    to_ranges,
)

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

    def has_partition(self, topic: UUID, partition: int) -> bool:
        return partition in self.assigned.get(topic, ()) or partition in (
            self.pending_revocation.get(topic, ())
        )

    def get_assignment_epoch(self, topic: UUID, partition: int) -> int | None:
        """The epoch at which a partition was assigned; None if the member does not own it."""
        epoch = self.assigned.get(topic, {}).get(partition)
        return self.pending_revocation.get(topic, {}).get(partition) if epoch is None else epoch

    def get_slots(self, topic: UUID, partition: int) -> int:
        """The slots of a partition that the member owns; 0 if it owns none."""
        return _get_slots(self.assigned, self.slices, topic, partition) | _get_slots(
            self.pending_revocation, self.pending_slices, topic, partition
        )

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def advance(
        self,
        epoch: int,
        state: MemberState,
        assigned: _PartialAssignment,
        pending: _PartialAssignment,
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

    def get_slots(self, topic: UUID, partition: int) -> int:
        if topic not in self.subscribed:
            return 0
        if partition in self.assignment.get(topic, ()):
            return ALL
        return self.slices.get((topic, partition), 0)


class _PartialAssignment:
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

    def get_slots(self, topic: UUID, partition: int) -> int:
        return _get_slots(self.owned, self.slices, topic, partition)


_NOTHING = _PartialAssignment()


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
    report = None if owned is None else _OwnershipReport(owned, owned_slices)
    pending = current.pending_revocation, current.pending_slices
    if current.state is MemberState.STABLE:
        if current.member_epoch != target.epoch:
            return _take_step(current, target, free, report)
    elif current.state is MemberState.UNRELEASED_PARTITIONS or not _may_own_any(report, *pending):
        return _take_step(current, target, free, report)
    return _revoke_unsubscribed(current, target, report) if subscription_changed else current


class _OwnershipReport(NamedTuple):
    """What a heartbeat lists as owned."""

    owned: Assignment
    slices: Slices


def _take_step(
    current: CurrentAssignment,
    target: TargetAssignment,
    free: Callable[[UUID, int], int],
    report: _OwnershipReport | None,
) -> CurrentAssignment:
    kept, revoked = _PartialAssignment(), _PartialAssignment()
    for topic, partitions in current.assigned.items():
        for partition, epoch in partitions.items():
            slots = _get_slots(current.assigned, current.slices, topic, partition)
            target_slots = slots & target.get_slots(topic, partition)
            if target_slots != ALL and not target.shares:
                target_slots = 0
            kept.add(topic, partition, epoch, target_slots)
            revoked.add(topic, partition, epoch, slots & ~target_slots)
    if revoked.owned and _may_own_any(report, revoked.owned, revoked.slices):
        # The member stays in its epoch until it has revoked them.
        state = MemberState.UNREVOKED_PARTITIONS
        return current.advance(current.member_epoch, state, kept, revoked)
    state = MemberState.STABLE
    for topic, partition in _list_target_partitions(target):
        before = kept.get_slots(topic, partition)
        missing = target.get_slots(topic, partition) & ~before
        if not missing:
            continue
        pending = _get_slots(current.pending_revocation, current.pending_slices, topic, partition)
        granted = missing & (
            pending if not missing & ~pending else pending | free(topic, partition)
        )
        if granted != missing:
            state = MemberState.UNRELEASED_PARTITIONS
            if not target.shares:
                continue
        if granted:
            kept.add(topic, partition, target.epoch, before | granted)
    next_assignment = current.advance(target.epoch, state, kept, _NOTHING)
    # If only the previous epoch changes, nothing has to be written.
    same = replace(next_assignment, previous_member_epoch=current.previous_member_epoch) == current
    return current if same else next_assignment


def _revoke_unsubscribed(
    current: CurrentAssignment, target: TargetAssignment, report: _OwnershipReport | None
) -> CurrentAssignment:
    """Revoke partitions of topics without subscription, before the next target is computed."""
    if all(topic in target.subscribed for topic in current.assigned):
        return current
    kept, pending, before = _PartialAssignment(), _PartialAssignment(), _PartialAssignment()
    for topic, partitions in current.pending_revocation.items():
        for partition, epoch in partitions.items():
            slots = _get_slots(current.pending_revocation, current.pending_slices, topic, partition)
            for side in (pending, before):
                side.add(topic, partition, epoch, slots)
    for topic, partitions in current.assigned.items():
        for partition, epoch in partitions.items():
            slots = _get_slots(current.assigned, current.slices, topic, partition)
            if topic in target.subscribed:
                kept.add(topic, partition, epoch, slots)
            else:
                pending.add(topic, partition, epoch, slots | pending.get_slots(topic, partition))
    epoch = current.member_epoch
    if _may_own_any(report, pending.owned, pending.slices):
        return current.advance(epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending)
    return current.advance(epoch, current.state, kept, before)


def _list_target_partitions(target: TargetAssignment) -> list[TopicIdPartition]:
    """The partitions of the target, also those of which the member is to own a part."""
    whole_partitions = [(t, p) for t in target.assignment for p in target.assignment[t]]
    return sorted((t, p) for t, p in [*whole_partitions, *target.slices] if t in target.subscribed)


def _get_slots(owned: Owned, slices: Slices, topic: UUID, partition: int) -> int:
    if partition not in owned.get(topic, ()):
        return 0
    return slices.get((topic, partition), ALL) if slices else ALL


def _may_own_any(report: _OwnershipReport | None, revoked: Owned, slices: Slices) -> bool:
    if report is None:
        return True
    return any(
        p in revoked.get(t, ()) for t, partitions in report.owned.items() for p in partitions
    ) or any(slots & _get_slots(revoked, slices, t, p) for (t, p), slots in report.slices.items())


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
    has_all_whole = all(
        _get_slots(assigned, slices, t, p) == ALL
        for t, partitions in owned.items()
        for p in partitions
    )
    parts = owned_slices.items()
    return has_all_whole and not any(
        slots & ~_get_slots(assigned, slices, t, p) for (t, p), slots in parts
    )


def encode_slices(owned: Owned, slices: Slices) -> list[dict[str, Any]]:
    """The partitions of the current-assignment record of which the member owns a part."""
    return [
        {
            "topic_id": topic,
            "partition": partition,
            "assignment_epoch": owned[topic][partition],
            "ranges": [
                {"first_hash": first, "last_hash": last}
                for first, last in to_ranges(slices[topic, partition])
            ],
        }
        for topic, partition in sorted(slices)
    ]


def add_slices(owned: Owned, stored: list[dict[str, Any]]) -> tuple[Owned, Slices]:
    """Read what `encode_slices` wrote, and add it to the partitions that are owned as a whole."""
    if not stored:
        return owned, {}
    all_owned = {topic: dict(partitions) for topic, partitions in owned.items()}
    slices: Slices = {}
    for entry in stored:
        topic, partition = entry["topic_id"], entry["partition"]
        slots = from_ranges((r["first_hash"], r["last_hash"]) for r in entry["ranges"])
        all_owned.setdefault(topic, {})[partition] = entry["assignment_epoch"]
        slices[topic, partition] = slots
    return all_owned, slices


def encode_owned(owned: Owned, slices: Slices = NO_SLICES) -> list[dict[str, Any]]:
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


def decode_owned(topics: list[dict[str, Any]], member_epoch: int) -> Owned:
    """Read what `encode_owned` wrote. Older records have no epochs: the member epoch is used."""
    owned: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        partitions = topic["partitions"]
        epochs = topic.get("assignment_epochs") or [member_epoch] * len(partitions)
        if partitions:
            owned[topic["topic_id"]] = dict(zip(partitions, epochs, strict=True))
    return owned
