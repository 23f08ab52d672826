"""The target assignment of share groups: in full, or what is missing of it (KIP-932).

Between two full assignments lies the assignment interval (KIP-1263). Within it a member without
work is given some and a partition without reader is given one (`simple.patch`), and nothing moves.
A deadline, of the group's kind, says when a full one that had to wait is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shoal.coordinator.deadlines import Key
from shoal.coordinator.group import simple
from shoal.coordinator.group.assignment import EMPTY, Assignment, GroupSpec, MemberSpec
from shoal.coordinator.group.groups import Context, Draft
from shoal.coordinator.group.share_group import Initialization, Member, ShareGroup
from shoal.coordinator.group.topics import Catalog


class Plan(NamedTuple):
    """The group's epoch, and the target assignment with the epoch it stands for."""

    epoch: int
    assignment_epoch: int
    target: Mapping[str, Assignment]


class TargetAssignments:
    """Those of one shard."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: Assignments made since the shard was loaded, for metrics.
        self.made = 0

    @property
    def catalog(self) -> Catalog:
        return Catalog(self._context.image)

    def waits(self, group: ShareGroup) -> bool:
        """Whether a full assignment is put off until the interval is over."""
        return _key(group) in self._context.deadlines

    def assign(
        self,
        group: ShareGroup,
        members: Mapping[str, Member],
        initialization: Initialization,
        epoch: int,
        draft: Draft,
        now_ms: int,
    ) -> Plan:
        """Assign for `epoch`: in full, or within the assignment interval only what is missing.

        An epoch beyond that of the target tells that the full assignment is still due.
        """
        spec = self._spec(group, members, initialization)
        due_ms = self._assignment_due_ms(group)
        full = now_ms >= due_ms
        assigned = simple.assign(spec) if full else simple.patch(spec)
        changed = [m for m in sorted(assigned) if assigned[m] != group.target.get(m, EMPTY)]
        if full:
            self._context.deadlines.cancel(_key(group))
        else:
            self._context.deadlines.set(_key(group), due_ms)
            if not changed:
                return Plan(epoch, group.assignment_epoch, group.target)
        for member_id in changed:
            draft.records.append(group.target_record(member_id, assigned[member_id]))
        timestamp_ms = now_ms if full else group.assignment_timestamp_ms
        draft.records.append(group.target_metadata_record(epoch, timestamp_ms))
        self.made += 1
        return Plan(epoch if full else epoch + 1, epoch, assigned)

    def _spec(
        self, group: ShareGroup, members: Mapping[str, Member], initialization: Initialization
    ) -> GroupSpec:
        specs = {
            m.member_id: MemberSpec(
                self.catalog.ids_of(m.subscribed_topic_names),
                group.target.get(m.member_id, EMPTY),
            )
            for m in members.values()
        }
        topics = sorted({t for spec in specs.values() for t in spec.topics})
        partitions = {
            t: [p for p in self.catalog.partitions_of(t) if p in initialization.of(t)]
            for t in topics
        }
        return GroupSpec(specs, partitions)

    def _assignment_due_ms(self, group: ShareGroup) -> int:
        if group.assignment_timestamp_ms == 0:
            return 0
        config = self._context.image.group_config(group.group_id)
        interval_ms: int = config["share.assignment.interval.ms"]
        return group.assignment_timestamp_ms + interval_ms


def _key(group: ShareGroup) -> Key:
    return ("share", "assignment", group.group_id)
