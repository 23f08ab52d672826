"""The target assignment of consumer groups, and what it depends on (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group import (
    key_range_assignor,
    range_assignor,
    uniform_assignor,
)
from shoal.coordinator.group.assignment import (
    EMPTY,
    Assignment,
    GroupSpec,
    MemberSpec,
    TopicIdPartition,
)
from shoal.coordinator.group.consumer_group import (
    ConsumerGroup,
    Member,
    Regex,
    State,
    regex_tombstone,
    subscription,
)
from shoal.coordinator.group.groups import Context, Draft, GroupType
from shoal.coordinator.group.key_range_loads import KeyRangeLoads, Report
from shoal.coordinator.group.key_slots import NO_SLICES, Slices
from shoal.coordinator.group.modern_target_assignment import ModernTargetAssignments
from shoal.coordinator.group.reconciliation import TargetAssignment
from shoal.metadata import patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from shoal.coordinator.group.consumer_heartbeat import Describes

ASSIGNORS: Mapping[str, Callable[[GroupSpec], dict[str, Assignment]]] = {
    uniform_assignor.NAME: uniform_assignor.assign,
    range_assignor.NAME: range_assignor.assign,
}

_NO_LOADS = KeyRangeLoads()


def _described(topics: frozenset[str], describes: Describes | None) -> frozenset[str]:
    return topics if describes is None else frozenset(filter(describes, topics))


class TargetAssignments(ModernTargetAssignments):
    """The target assignments of the consumer groups of one shard."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, GroupType.CONSUMER)
        #: By group. Soft state.
        self._loads: dict[str, KeyRangeLoads] = {}

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self._loads.pop(group_id, None)

    def measure(self, group: ConsumerGroup, member: Member, report: Report, now_ms: int) -> bool:
        """Add a member's report of its load. Return whether the boundaries of key ranges are to
        follow the load."""
        interval_ms = self._context.settings.shoal_group_consumer_key_ranges_balance_interval_ms
        if not interval_ms or not member.shares or not (report or group.group_id in self._loads):
            return False
        loads = self._loads.setdefault(group.group_id, KeyRangeLoads())
        loads.add(report, member.current.slices)
        if loads.is_time_to_look(now_ms, interval_ms):
            targets: dict[TopicIdPartition, dict[str, int]] = {}
            for member_id, slices in group.target_slices.items():
                for where, slots in slices.items():
                    targets.setdefault(where, {})[member_id] = slots
            loads.look(targets, now_ms, interval_ms)
        return bool(loads.due) and group.state is State.STABLE

    def regexes(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        draft: Draft,
        now_ms: int,
        *,
        by: Member,
        describes: Describes | None,
    ) -> Mapping[str, Regex]:
        """The topics of the group's regular expressions, which are evaluated again if that is due.

        `describes` decides which topics the member `by` may describe; None for all. It then
        evaluates its own regular expression only. As in Kafka, members share the result of an
        expression.
        """
        wanted = sorted({m.subscribed_topic_regex for m in members.values()} - {""})
        found: dict[str, Regex] = {}
        if not wanted and not group.regexes:
            return found
        interval_ms = self._context.settings.group_consumer_regex_refresh_interval_ms
        if now_ms - group.regexes_checked_ms >= interval_ms:
            self.mark_stale(group.group_id)
        if not self.is_fresh(group):
            group.regexes_checked_ms = now_ms
            group.regexes_due = set(wanted)
        names = None
        for regex in wanted:
            old = group.regexes.get(regex)
            is_due = old is None or regex in group.regexes_due
            if is_due and (describes is None or regex == by.subscribed_topic_regex):
                group.regexes_due.discard(regex)
                names = self.catalog.names() if names is None else names
                topics = _described(patterns.matching(regex, names), describes)
                if old is None or topics != old.topics:
                    old = Regex(topics, self.catalog.version, now_ms)
                    draft.records.append(group.regex_record(regex, old))
            if old is not None:
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
        epoch, metadata_hash = self.bumped_epoch(
            group,
            lambda: self.metadata_hash(
                members.values(), group.subscribed_topic_names(members, regexes)
            ),
            bump=bump or regexes != group.regexes,
        )
        if epoch != group.epoch:
            draft.records.append(group.epoch_record(epoch, metadata_hash))
        return epoch

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
        """The target of a member, from a new target assignment if one is due."""
        subscribed = self.catalog.ids_of(subscription(member, regexes))
        if epoch > group.assignment_epoch:
            due_ms = self._due_ms(group)
            if now_ms >= due_ms:
                assigned, slices = self.assign(group, members, regexes, epoch, draft, now_ms)
                return TargetAssignment(
                    epoch,
                    assigned.get(member.member_id, EMPTY),
                    subscribed,
                    slices.get(member.member_id, NO_SLICES),
                    member.shares,
                )
            self._context.deadlines.set(self._key(group), due_ms)
        return TargetAssignment(
            group.assignment_epoch,
            group.target_of(member),
            subscribed,
            group.slices_of(member),
            member.shares,
        )

    def metadata_hash(self, members: Iterable[Member], names: Iterable[str]) -> int:
        """The hash of the metadata of the subscribed topics of a group with these members."""
        return self.catalog.hash_of(names, shared=self._splits(members))

    def _splits(self, members: Iterable[Member]) -> bool:
        """Whether partitions may be split among the members."""
        enabled = self._context.settings.shoal_group_consumer_key_ranges_enable
        return enabled and any(member.shares for member in members)

    def assign(
        self,
        group: ConsumerGroup,
        members: Mapping[str, Member],
        regexes: Mapping[str, Regex],
        epoch: int,
        draft: Draft,
        now_ms: int,
    ) -> tuple[Mapping[str, Assignment], Mapping[str, Slices]]:
        """Compute a target assignment, and write records of the targets that change.

        Returns the whole partitions of the members, and the slices of those that share some."""
        default = self._context.settings.group_consumer_assignors[0]
        name = group.assignor_name(members.values(), default)
        specs = {
            m.member_id: MemberSpec(
                self.catalog.ids_of(subscription(m, regexes)),
                group.target_of(m),
                m.instance_id,
                m.shares,
                group.slices_of(m),
            )
            for m in members.values()
        }
        topics = sorted({t for spec in specs.values() for t in spec.topics})
        partitions = {t: self.catalog.partitions_of(t) for t in topics}
        splittable: frozenset[UUID] = frozenset()
        if self._splits(members.values()):
            splittable = frozenset(filter(self.catalog.allows_key_ranges, topics))
        loads = self._loads.get(group.group_id, _NO_LOADS)
        assigned, slices = key_range_assignor.assign(
            GroupSpec(specs, partitions, splittable, loads.known, frozenset(loads.due)),
            ASSIGNORS.get(name, uniform_assignor.assign),
        )
        loads.due.clear()
        for member_id in sorted(assigned):
            shared = slices.get(member_id, NO_SLICES)
            same = shared == group.target_slices.get(member_id, NO_SLICES)
            if not same or assigned[member_id] != group.target.get(member_id):
                target = group.target_record(member_id, assigned[member_id], shared)
                draft.records.append(target)
        draft.records.append(group.target_metadata_record(epoch, now_ms))
        self.made += 1
        self._context.deadlines.cancel(self._key(group))
        return assigned, slices
