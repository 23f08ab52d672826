"""The part of an assignment that splits partitions by key ranges, for every assignor.

A topic is split if it allows that, a *sharing* member subscribes to it, and it has more subscribers
than partitions. Plain members then get one whole partition each, as long as one partition is left.
The sharing members are dealt over the other partitions, so that the numbers of owners differ by at
most one, and the owners of a partition get equal numbers of slots, or slots of equal load if that
was measured (`key_range_balance`). All other topics are assigned whole.

Members stay with the partition of which they have most slots, and keep as many of these as their
share allows. So a member that joins gets slots of the owners of one partition, and the slots of one
that leaves go to the others. If the owners of a partition stay the same, their slots do, until a
division by load is due.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from shoal.coordinator.group.assignment import (
    Assignment,
    GroupSpec,
    find_subscribers,
    flatten,
    group_by_topic,
)
from shoal.coordinator.group.key_ranges import key_range_balance
from shoal.coordinator.group.key_ranges.key_slots import ALL, SLOTS, Slices, take_lowest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.group.assignment import MemberSpec


def assign(
    spec: GroupSpec, assignor: Callable[[GroupSpec], dict[str, Assignment]]
) -> tuple[dict[str, Assignment], dict[str, Slices]]:
    """Return the whole partitions of every member, and the slices of those that have some."""
    if not any(member.shares for member in spec.members.values()):
        return assignor(spec), {}
    reserved = {
        topic: _reserve_partitions(spec, topic)
        for topic in sorted(spec.splittable)
        if _is_split(spec, topic)
    }
    assignments = assignor(_build_whole_spec(spec, reserved))
    slices: dict[str, Slices] = {}
    for topic in reserved:
        members = [m for m in find_subscribers(spec, topic) if spec.members[m].shares]
        shared_partitions = [p for p in spec.partitions[topic] if p not in reserved[topic]]
        previous_slots = {
            m: _get_previous_slots(spec.members[m], topic, shared_partitions) for m in members
        }
        loads = {p: spec.loads[topic, p] for p in shared_partitions if (topic, p) in spec.loads}
        due = frozenset(p for p in shared_partitions if (topic, p) in spec.due)
        for member, (partition, slots) in divide_partitions(
            shared_partitions, previous_slots, loads, due
        ).items():
            if slots == ALL:
                assignments[member] = group_by_topic(
                    [*flatten(assignments[member]), (topic, partition)]
                )
            else:
                slices.setdefault(member, {})[topic, partition] = slots
    return assignments, slices


def _is_split(spec: GroupSpec, topic: UUID) -> bool:
    members = list(find_subscribers(spec, topic))
    partitions = spec.partitions.get(topic, ())
    shares = any(spec.members[m].shares for m in members)
    return shares and 0 < len(partitions) < len(members)


def _reserve_partitions(spec: GroupSpec, topic: UUID) -> frozenset[int]:
    """The partitions of a split topic for plain members, those that they have first."""
    plain = [m for m in find_subscribers(spec, topic) if not spec.members[m].shares]
    partitions = spec.partitions[topic]
    theirs = {p for m in plain for p in spec.members[m].assigned.get(topic, ())}
    count = min(len(plain), len(partitions) - 1)
    return frozenset(sorted(partitions, key=lambda p: (p not in theirs, p))[:count])


def _build_whole_spec(spec: GroupSpec, reserved: Mapping[UUID, frozenset[int]]) -> GroupSpec:
    """The spec for the assignor: without sharing members in split topics.

    A member that has most of a partition of another topic seems to have all of it, so that it keeps
    the partition once that is whole again.
    """
    members = {}
    for member_id, member in spec.members.items():
        kept_partitions = [
            (t, p) for t, p in flatten(member.assigned) if t not in reserved or not member.shares
        ]
        kept_partitions += [
            topic_partition
            for topic_partition, slots in member.slices.items()
            if topic_partition[0] not in reserved and slots.bit_count() * 2 > SLOTS
        ]
        topics = member.topics.difference(reserved) if member.shares else member.topics
        members[member_id] = replace(
            member, topics=topics, assigned=group_by_topic(kept_partitions)
        )
    partitions = {t: sorted(reserved.get(t, spec.partitions[t])) for t in spec.partitions}
    return replace(spec, members=members, partitions=partitions)


def _get_previous_slots(
    member: MemberSpec, topic: UUID, partitions: Iterable[int]
) -> dict[int, int]:
    """The slots that a member has of partitions of a topic, by its last target."""
    whole_partitions = member.assigned.get(topic, frozenset())
    slots_by_partition = {
        p: ALL if p in whole_partitions else member.slices.get((topic, p), 0) for p in partitions
    }
    return {p: slots for p, slots in slots_by_partition.items() if slots}


def divide_partitions(
    partitions: Sequence[int],
    previous_slots: Mapping[str, Mapping[int, int]],
    loads: Mapping[int, Sequence[int]],
    due: frozenset[int],
) -> dict[str, tuple[int, int]]:
    """Return the partition and the slots of every member that gets some.

    `previous_slots` has the members, at least as many as partitions, and the slots that each had
    before. `loads` has the measured loads of partitions, and those in `due` are divided again by
    them.
    """
    owners: dict[int, list[str]] = {p: [] for p in partitions}
    for member, partition in _choose_homes(partitions, previous_slots).items():
        owners[partition].append(member)
    parts = {}
    for partition, members in owners.items():
        before = {m: previous_slots[m].get(partition, 0) for m in members}
        for member, slots in _divide_slots(before, loads.get(partition), partition in due).items():
            if slots:
                parts[member] = partition, slots
    return parts


def _choose_homes(
    partitions: Sequence[int], previous_slots: Mapping[str, Mapping[int, int]]
) -> dict[str, int]:
    """The partition of each member: if there is room, the one of which it has most slots."""
    smaller, extra = divmod(len(previous_slots), len(partitions))
    count = dict.fromkeys(partitions, 0)
    homes: dict[str, int] = {}
    larger = 0

    def has_room(partition: int) -> bool:
        return count[partition] < smaller or (count[partition] == smaller and larger < extra)

    claims = sorted(
        (-slots.bit_count(), m, p) for m in previous_slots for p, slots in previous_slots[m].items()
    )
    unclaimed = ((0, m, -1) for m in sorted(previous_slots))
    for _, member, claimed in [*claims, *unclaimed]:
        if member in homes or (claimed >= 0 and not has_room(claimed)):
            continue
        partition = claimed
        if claimed < 0:
            partition = min(filter(has_room, partitions), key=lambda p: (count[p], p))
        larger += count[partition] == smaller
        count[partition] += 1
        homes[member] = partition
    return homes


def _divide_slots(
    before: Mapping[str, int], loads: Sequence[int] | None, due: bool
) -> Mapping[str, int]:
    """Divide the slots of one partition. Members keep what they had, as far as it is theirs."""
    if not due and all(before.values()) and _merge_slots(before.values()) == ALL:
        return before
    return _divide_equally(before) if loads is None else key_range_balance.balance(before, loads)


def _merge_slots(slot_sets: Iterable[int]) -> int:
    return reduce(or_, slot_sets, 0)


def _divide_equally(before: Mapping[str, int]) -> dict[str, int]:
    quota, longer = divmod(SLOTS, len(before))
    order = sorted(before, key=lambda m: (-before[m].bit_count(), m))
    quotas = {m: quota + (index < longer) for index, m in enumerate(order)}
    free = ALL
    parts = {}
    for member in order:
        parts[member] = take_lowest(before[member] & free, quotas[member])
        free &= ~parts[member]
    for member in sorted(before):
        added = take_lowest(free, quotas[member] - parts[member].bit_count())
        parts[member] |= added
        free &= ~added
    return parts
