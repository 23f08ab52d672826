"""The target assignment of consumer groups, and what it depends on (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.assignment import (
    EMPTY,
    Assignment,
    GroupSpec,
    MemberSpec,
    TopicIdPartition,
)
from shoal.coordinator.group.consumer import range_assignor, uniform_assignor
from shoal.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupMember,
    ConsumerGroupState,
    ResolvedRegularExpression,
    build_regex_tombstone,
    find_subscribed_topics,
)
from shoal.coordinator.group.consumer.reconciliation import TargetAssignment
from shoal.coordinator.group.groups import GroupType, ResultDraft, ShardContext
from shoal.coordinator.group.key_ranges import key_range_assignor
from shoal.coordinator.group.key_ranges.key_range_loads import KeyRangeLoads, Report
from shoal.coordinator.group.key_ranges.key_slots import NO_SLICES, Slices
from shoal.coordinator.group.modern.target_assignment import ModernTargetAssignments
from shoal.metadata import patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from shoal.coordinator.group.consumer.heartbeat import Describes

ASSIGNORS: Mapping[str, Callable[[GroupSpec], dict[str, Assignment]]] = {
    uniform_assignor.NAME: uniform_assignor.assign,
    range_assignor.NAME: range_assignor.assign,
}

_NO_LOADS = KeyRangeLoads()


def _select_describable(topics: frozenset[str], describes: Describes | None) -> frozenset[str]:
    return topics if describes is None else frozenset(filter(describes, topics))


class ConsumerTargetAssignments(ModernTargetAssignments):
    """The target assignments of the consumer groups of one shard."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context, GroupType.CONSUMER)
        #: By group. Soft state.
        self._loads: dict[str, KeyRangeLoads] = {}

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self._loads.pop(group_id, None)

    def measure(
        self, group: ConsumerGroup, member: ConsumerGroupMember, report: Report, now_ms: int
    ) -> bool:
        """Add a member's report of its load. Return whether the boundaries of key ranges are to
        follow the load."""
        interval_ms = self._context.settings.shoal_group_consumer_key_ranges_balance_interval_ms
        if not interval_ms or not member.shares or not (report or group.group_id in self._loads):
            return False
        loads = self._loads.setdefault(group.group_id, KeyRangeLoads())
        loads.add(report, member.current.slices)
        if loads.is_time_to_close(now_ms, interval_ms):
            targets: dict[TopicIdPartition, dict[str, int]] = {}
            for member_id, slices in group.target_slices.items():
                for topic_partition, slots in slices.items():
                    targets.setdefault(topic_partition, {})[member_id] = slots
            loads.close_windows(targets, now_ms, interval_ms)
        return bool(loads.due_partitions) and group.state is ConsumerGroupState.STABLE

    def evaluate_regexes(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerGroupMember],
        draft: ResultDraft,
        now_ms: int,
        *,
        by: ConsumerGroupMember,
        describes: Describes | None,
    ) -> Mapping[str, ResolvedRegularExpression]:
        """The topics of the group's regular expressions, which are evaluated again if that is due.

        `describes` decides which topics the member `by` may describe; None for all. It then
        evaluates its own regular expression only. As in Kafka, members share the result of an
        expression.
        """
        used_regexes = sorted({m.subscribed_topic_regex for m in members.values()} - {""})
        resolved: dict[str, ResolvedRegularExpression] = {}
        if not used_regexes and not group.regexes:
            return resolved
        interval_ms = self._context.settings.group_consumer_regex_refresh_interval_ms
        if now_ms - group.regexes_checked_ms >= interval_ms:
            self.mark_stale(group.group_id)
        if not self.is_fresh(group):
            group.regexes_checked_ms = now_ms
            group.regexes_due = set(used_regexes)
        names = None
        for regex in used_regexes:
            old = group.regexes.get(regex)
            is_due = old is None or regex in group.regexes_due
            if is_due and (describes is None or regex == by.subscribed_topic_regex):
                group.regexes_due.discard(regex)
                names = self.catalog.list_names() if names is None else names
                topics = _select_describable(patterns.find_matching(regex, names), describes)
                if old is None or topics != old.topics:
                    old = ResolvedRegularExpression(topics, self.catalog.version, now_ms)
                    draft.records.append(group.build_regex_record(regex, old))
            if old is not None:
                resolved[regex] = old
        for regex in sorted(set(group.regexes) - set(used_regexes)):
            draft.records.append(build_regex_tombstone(group.group_id, regex))
        return resolved

    def update_epoch(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerGroupMember],
        regexes: Mapping[str, ResolvedRegularExpression],
        draft: ResultDraft,
        *,
        bump: bool,
    ) -> int:
        """The group's epoch, bumped if anything that an assignment depends on has changed."""
        epoch, metadata_hash = self.compute_epoch(
            group,
            lambda: self.compute_metadata_hash(
                members.values(), group.get_subscribed_topics(members, regexes)
            ),
            bump=bump or regexes != group.regexes,
        )
        if epoch != group.epoch:
            draft.records.append(group.build_epoch_record(epoch, metadata_hash))
        return epoch

    def get_member_target(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerGroupMember],
        regexes: Mapping[str, ResolvedRegularExpression],
        member: ConsumerGroupMember,
        epoch: int,
        draft: ResultDraft,
        now_ms: int,
    ) -> TargetAssignment:
        """The target of a member, from a new target assignment if one is due."""
        subscribed = self.catalog.get_ids(find_subscribed_topics(member, regexes))
        if epoch > group.assignment_epoch:
            due_ms = self._compute_due_ms(group)
            if now_ms >= due_ms:
                assigned, slices = self.assign(group, members, regexes, epoch, draft, now_ms)
                return TargetAssignment(
                    epoch,
                    assigned.get(member.member_id, EMPTY),
                    subscribed,
                    slices.get(member.member_id, NO_SLICES),
                    member.shares,
                )
            self._context.deadlines.set(self._make_key(group), due_ms)
        return TargetAssignment(
            group.assignment_epoch,
            group.get_target(member),
            subscribed,
            group.get_slices(member),
            member.shares,
        )

    def compute_metadata_hash(
        self, members: Iterable[ConsumerGroupMember], names: Iterable[str]
    ) -> int:
        """The hash of the metadata of the subscribed topics of a group with these members."""
        return self.catalog.compute_hash(names, shared=self._may_split(members))

    def _may_split(self, members: Iterable[ConsumerGroupMember]) -> bool:
        """Whether partitions may be split among the members."""
        enabled = self._context.settings.shoal_group_consumer_key_ranges_enable
        return enabled and any(member.shares for member in members)

    def assign(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerGroupMember],
        regexes: Mapping[str, ResolvedRegularExpression],
        epoch: int,
        draft: ResultDraft,
        now_ms: int,
    ) -> tuple[Mapping[str, Assignment], Mapping[str, Slices]]:
        """Compute a target assignment, and write records of the targets that change.

        Returns the whole partitions of the members, and the slices of those that share some."""
        default = self._context.settings.group_consumer_assignors[0]
        name = group.choose_assignor(members.values(), default)
        specs = {
            m.member_id: MemberSpec(
                self.catalog.get_ids(find_subscribed_topics(m, regexes)),
                group.get_target(m),
                m.instance_id,
                m.shares,
                group.get_slices(m),
            )
            for m in members.values()
        }
        topics = sorted({t for spec in specs.values() for t in spec.topics})
        partitions = {t: self.catalog.get_partitions(t) for t in topics}
        splittable: frozenset[UUID] = frozenset()
        if self._may_split(members.values()):
            splittable = frozenset(filter(self.catalog.may_use_key_ranges, topics))
        loads = self._loads.get(group.group_id, _NO_LOADS)
        assigned, slices = key_range_assignor.assign(
            GroupSpec(
                specs, partitions, splittable, loads.measured_loads, frozenset(loads.due_partitions)
            ),
            ASSIGNORS.get(name, uniform_assignor.assign),
        )
        loads.due_partitions.clear()
        for member_id in sorted(assigned):
            shared = slices.get(member_id, NO_SLICES)
            same = shared == group.target_slices.get(member_id, NO_SLICES)
            if not same or assigned[member_id] != group.target.get(member_id):
                target = group.build_target_record(member_id, assigned[member_id], shared)
                draft.records.append(target)
        draft.records.append(group.build_target_metadata_record(epoch, now_ms))
        self.assignment_count += 1
        self._context.deadlines.cancel(self._make_key(group))
        return assigned, slices
