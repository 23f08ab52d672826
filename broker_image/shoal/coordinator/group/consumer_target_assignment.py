"""The target assignment of consumer groups: what it depends on, and when it is made (KIP-848).

It is made anew when the group's epoch is beyond it, not more often than the assignment interval
allows (KIP-1263): a deadline, of the group's kind, says when one that had to wait is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.coordinator.deadlines import Key
from shoal.coordinator.group import patterns, range_assignor, uniform_assignor
from shoal.coordinator.group.assignment import EMPTY, Assignment, GroupSpec, MemberSpec
from shoal.coordinator.group.consumer_group import (
    ConsumerGroup,
    Member,
    Regex,
    regex_tombstone,
    subscription,
)
from shoal.coordinator.group.groups import Context, Draft
from shoal.coordinator.group.reconciliation import TargetAssignment
from shoal.coordinator.group.topics import Catalog

ASSIGNORS: Mapping[str, Callable[[GroupSpec], dict[str, Assignment]]] = {
    uniform_assignor.NAME: uniform_assignor.assign,
    range_assignor.NAME: range_assignor.assign,
}


class TargetAssignments:
    """Those of one shard."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: Assignments made since the shard was loaded, for metrics.
        self.made = 0

    @property
    def catalog(self) -> Catalog:
        return Catalog(self._context.image)

    def waits(self, group: ConsumerGroup) -> bool:
        """Whether an assignment is put off until the interval is over."""
        return _key(group) in self._context.deadlines

    def regexes(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        draft: Draft,
        now_ms: int,
    ) -> Mapping[str, Regex]:
        """The group's expressions and what they match, looked up anew where that is due."""
        wanted = sorted({m.subscribed_topic_regex for m in members.values()} - {""})
        found: dict[str, Regex] = {}
        if not wanted and not group.regexes:
            return found
        interval_ms = self._context.settings.group_consumer_regex_refresh_interval_ms
        if now_ms - group.regexes_checked_ms >= interval_ms:
            group.is_fresh = False
        if not group.is_fresh:
            group.regexes_checked_ms = now_ms
        names = None
        for regex in wanted:
            old = group.regexes.get(regex)
            if old is None or not group.is_fresh:
                names = self.catalog.names() if names is None else names
                topics = patterns.matching(regex, names)
                if old is None or topics != old.topics:
                    old = Regex(topics, self.catalog.version, now_ms)
                    draft.records.append(group.regex_record(regex, old))
            found[regex] = old
        for regex in sorted(set(group.regexes) - set(wanted)):
            draft.records.append(regex_tombstone(group.group_id, regex))
        return found

    def epoch(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        regexes: Mapping[str, Regex],
        draft: Draft,
        *,
        bump: bool,
    ) -> int:
        """The group's epoch, bumped if anything that an assignment depends on has changed."""
        if not bump and group.is_fresh and regexes == group.regexes:
            return group.epoch
        names = group.subscribed_topic_names(members, regexes)
        metadata_hash = self.catalog.hash_of(names)
        group.is_fresh = True
        if not bump and metadata_hash == group.metadata_hash and regexes == group.regexes:
            return group.epoch
        draft.records.append(group.epoch_record(group.epoch + 1, metadata_hash))
        return group.epoch + 1

    def of_member(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        regexes: Mapping[str, Regex],
        member: Member,
        epoch: int,
        draft: Draft,
        now_ms: int,
    ) -> TargetAssignment:
        """What a member is to have: by a new assignment if one is due, else by that there is."""
        subscribed = self.catalog.ids_of(subscription(member, regexes))
        if epoch > group.assignment_epoch:
            due_ms = self._assignment_due_ms(group)
            if now_ms >= due_ms:
                assigned = self.assign(group, members, regexes, epoch, draft, now_ms)
                return TargetAssignment(epoch, assigned.get(member.member_id, EMPTY), subscribed)
            self._context.deadlines.set(_key(group), due_ms)
        return TargetAssignment(group.assignment_epoch, group.target_of(member), subscribed)

    def assign(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        regexes: Mapping[str, Regex],
        epoch: int,
        draft: Draft,
        now_ms: int,
    ) -> Mapping[str, Assignment]:
        """Compute a target assignment and record what of it is new."""
        default = self._context.settings.group_consumer_assignors[0]
        name = group.assignor_name(members.values(), default)
        specs = {
            m.member_id: MemberSpec(
                self.catalog.ids_of(subscription(m, regexes)), group.target_of(m), m.instance_id
            )
            for m in members.values()
        }
        topics = sorted({t for spec in specs.values() for t in spec.topics})
        partitions = {t: self.catalog.partitions_of(t) for t in topics}
        assigned = ASSIGNORS.get(name, uniform_assignor.assign)(GroupSpec(specs, partitions))
        for member_id in sorted(assigned):
            if assigned[member_id] != group.target.get(member_id):
                draft.records.append(group.target_record(member_id, assigned[member_id]))
        draft.records.append(group.target_metadata_record(epoch, now_ms))
        self.made += 1
        self._context.deadlines.cancel(_key(group))
        return assigned

    def _assignment_due_ms(self, group: ConsumerGroup) -> int:
        if group.assignment_timestamp_ms == 0:
            return 0
        config = self._context.image.group_config(group.group_id)
        interval_ms: int = config["consumer.assignment.interval.ms"]
        return group.assignment_timestamp_ms + interval_ms


def _key(group: ConsumerGroup) -> Key:
    return ("consumer", "assignment", group.group_id)
