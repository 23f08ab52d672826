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

from shoal.coordinator.group import key_range_balance
from shoal.coordinator.group.assignment import (
    Assignment,
    GroupSpec,
    flat,
    grouped,
    subscribed,
)
from shoal.coordinator.group.key_slots import ALL, SLOTS, Slices, lowest

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
        topic: _reserved(spec, topic) for topic in sorted(spec.splittable) if _is_split(spec, topic)
    }
    whole = assignor(_of_whole_partitions(spec, reserved))
    slices: dict[str, Slices] = {}
    for topic in reserved:
        members = [m for m in subscribed(spec, topic) if spec.members[m].shares]
        rest = [p for p in spec.partitions[topic] if p not in reserved[topic]]
        held = {m: _held(spec.members[m], topic, rest) for m in members}
        loads = {p: spec.loads[topic, p] for p in rest if (topic, p) in spec.loads}
        due = frozenset(p for p in rest if (topic, p) in spec.due)
        for member, (partition, slots) in divided(rest, held, loads, due).items():
            if slots == ALL:
                whole[member] = grouped([*flat(whole[member]), (topic, partition)])
            else:
                slices.setdefault(member, {})[topic, partition] = slots
    return whole, slices


def _is_split(spec: GroupSpec, topic: UUID) -> bool:
    members = list(subscribed(spec, topic))
    partitions = spec.partitions.get(topic, ())
    shares = any(spec.members[m].shares for m in members)
    return shares and 0 < len(partitions) < len(members)


def _reserved(spec: GroupSpec, topic: UUID) -> frozenset[int]:
    """The partitions of a split topic for plain members, those that they have first."""
    plain = [m for m in subscribed(spec, topic) if not spec.members[m].shares]
    partitions = spec.partitions[topic]
    theirs = {p for m in plain for p in spec.members[m].assigned.get(topic, ())}
    count = min(len(plain), len(partitions) - 1)
    return frozenset(sorted(partitions, key=lambda p: (p not in theirs, p))[:count])


def _of_whole_partitions(spec: GroupSpec, reserved: Mapping[UUID, frozenset[int]]) -> GroupSpec:
    """The spec for the assignor: without sharing members in split topics.

    A member that has most of a partition of another topic seems to have all of it, so that it keeps
    the partition once that is whole again.
    """
    members = {}
    for member_id, member in spec.members.items():
        kept = [(t, p) for t, p in flat(member.assigned) if t not in reserved or not member.shares]
        kept += [
            where
            for where, slots in member.slices.items()
            if where[0] not in reserved and slots.bit_count() * 2 > SLOTS
        ]
        topics = member.topics.difference(reserved) if member.shares else member.topics
        members[member_id] = replace(member, topics=topics, assigned=grouped(kept))
    partitions = {t: sorted(reserved.get(t, spec.partitions[t])) for t in spec.partitions}
    return replace(spec, members=members, partitions=partitions)


def _held(member: MemberSpec, topic: UUID, partitions: Iterable[int]) -> dict[int, int]:
    """The slots that a member has of partitions of a topic, by its last target."""
    whole = member.assigned.get(topic, frozenset())
    held = {p: ALL if p in whole else member.slices.get((topic, p), 0) for p in partitions}
    return {p: slots for p, slots in held.items() if slots}


def divided(
    partitions: Sequence[int],
    held: Mapping[str, Mapping[int, int]],
    loads: Mapping[int, Sequence[int]],
    due: frozenset[int],
) -> dict[str, tuple[int, int]]:
    """Return the partition and the slots of every member that gets some.

    `held` has the members, at least as many as partitions, and the slots that each had before.
    `loads` has the measured loads of partitions, and those in `due` are divided again by them.
    """
    owners: dict[int, list[str]] = {p: [] for p in partitions}
    for member, partition in _homes(partitions, held).items():
        owners[partition].append(member)
    found = {}
    for partition, members in owners.items():
        before = {m: held[m].get(partition, 0) for m in members}
        for member, slots in _parts(before, loads.get(partition), partition in due).items():
            if slots:
                found[member] = partition, slots
    return found


def _homes(partitions: Sequence[int], held: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """The partition of each member: if there is room, the one of which it has most slots."""
    smaller, extra = divmod(len(held), len(partitions))
    count = dict.fromkeys(partitions, 0)
    homes: dict[str, int] = {}
    larger = 0

    def has_room(partition: int) -> bool:
        return count[partition] < smaller or (count[partition] == smaller and larger < extra)

    claims = sorted((-slots.bit_count(), m, p) for m in held for p, slots in held[m].items())
    unclaimed = ((0, m, -1) for m in sorted(held))
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


def _parts(before: Mapping[str, int], loads: Sequence[int] | None, due: bool) -> Mapping[str, int]:
    """Divide the slots of one partition. Members keep what they had, as far as it is theirs."""
    if not due and all(before.values()) and _union(before.values()) == ALL:
        return before
    return _equal_parts(before) if loads is None else key_range_balance.balanced(before, loads)


def _union(some: Iterable[int]) -> int:
    return reduce(or_, some, 0)


def _equal_parts(before: Mapping[str, int]) -> dict[str, int]:
    quota, longer = divmod(SLOTS, len(before))
    order = sorted(before, key=lambda m: (-before[m].bit_count(), m))
    quotas = {m: quota + (index < longer) for index, m in enumerate(order)}
    free = ALL
    parts = {}
    for member in order:
        parts[member] = lowest(before[member] & free, quotas[member])
        free &= ~parts[member]
    for member in sorted(before):
        added = lowest(free, quotas[member] - parts[member].bit_count())
        parts[member] |= added
        free &= ~added
    return parts
