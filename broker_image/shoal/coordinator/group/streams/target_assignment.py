"""When the target assignment of a streams group is computed, and the topology that it is for.

The target is computed when the group epoch is beyond it, and at most once in each assignment
interval (KIP-1263). A group whose first member joins waits for more members first. Both set a
deadline. A group that is not ready has an empty target.

The target of a small group is computed in the decision that finds it due. That of a large group is
computed and written in slices, one for each decision of a deadline. The last one writes the epoch
of the assignment, which is the group epoch of its start: if members have joined or left since then,
another assignment follows (docs/adr/0086).

The topology is compared with the topics of the cluster when the metadata has changed. The result is
soft state.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.group.groups import GroupType, ResultDraft, ShardContext
from shoal.coordinator.group.modern.target_assignment import ModernTargetAssignments
from shoal.coordinator.group.streams import sticky_assignor
from shoal.coordinator.group.streams.internal_topics import (
    ConfiguredTopology,
    StatusCode,
    StreamsGroupStatus,
    configure,
)
from shoal.coordinator.group.streams.sticky_assignor import StreamsMemberSpec, SubtopologySpec
from shoal.coordinator.group.streams.tasks import NO_TASKS, TaskSets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.contract import CoordinatorRecord
    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.modern.modern_group import ModernGroup
    from shoal.coordinator.group.streams.streams_group import StreamsGroup, StreamsGroupMember
    from shoal.coordinator.group.streams.topology import Topology

#: The only config of an assignment.
NUM_STANDBY_REPLICAS = "num.standby.replicas"
#: In the key of the deadline until which a new group waits for more members.
INITIAL = "initial"
#: The most steps of an assignment that is computed at once, in about 10 ms.
STEPS_AT_ONCE = 1_000
#: The delay between two slices in ms. Requests are served in between.
SLICE_DELAY_MS = 1
#: Targets that one slice writes and replays, in about 5 ms.
RECORDS_A_SLICE = 100


class TaskTarget(NamedTuple):
    """The target of a member, its epoch, and why there is no newer one."""

    epoch: int
    tasks: TaskSets
    delay: StreamsGroupStatus | None = None


#: A target assignment that is being computed: yields records to write, and returns the targets.
Work = Generator["Sequence[CoordinatorRecord] | None", None, "Mapping[str, TaskSets]"]


class StreamsTargetAssignments(ModernTargetAssignments):
    """The target assignments of the streams groups of one shard."""

    def __init__(self, context: ShardContext) -> None:
        super().__init__(context, GroupType.STREAMS)
        self._configured: dict[str, ConfiguredTopology] = {}
        #: Assignments that are being computed, with the group epochs of their starts. Soft state.
        self._under_way: dict[str, tuple[int, Work]] = {}

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self._under_way.pop(group_id, None)
        self._configured.pop(group_id, None)
        self._context.deadlines.cancel(self._make_initial_key_by_id(group_id))

    def compare(self, group: StreamsGroup, topology: Topology) -> tuple[int, ConfiguredTopology]:
        """Return the hash of the topics that the topology needs, and the topology compared with
        them. Raises STREAMS_INVALID_TOPOLOGY."""
        configured = self._configured.get(group.group_id)
        if configured is not None and self.is_fresh(group) and group.topology is not None:
            return group.metadata_hash, configured
        metadata_hash = self.catalog.compute_hash(topology.required_topics)
        if configured is None or metadata_hash != group.metadata_hash or group.topology is None:
            configured = configure(topology, self.catalog)
        return metadata_hash, configured

    def save_comparison(self, group: StreamsGroup, configured: ConfiguredTopology) -> None:
        """The decision that called `compare` was not refused."""
        self._configured[group.group_id] = configured
        self._fresh.add(group.group_id)

    def restart(self, group: StreamsGroup) -> None:
        """Begin an assignment again that is being computed, as a member has another id now."""
        self._under_way.pop(group.group_id, None)

    def await_members(self, group: StreamsGroup, now_ms: int) -> None:
        """Put off the first assignment of an empty group, unless it is already."""
        self._under_way.pop(group.group_id, None)
        delay_ms = self._get_config(group, "streams.initial.rebalance.delay.ms")
        key = self._make_initial_key(group)
        if delay_ms > 0 and key not in self._context.deadlines:
            self._context.deadlines.set(key, now_ms + delay_ms)

    def get_member_target(
        self,
        group: StreamsGroup,
        member: StreamsGroupMember,
        epoch: int,
        configured: ConfiguredTopology,
        draft: ResultDraft,
        now_ms: int,
    ) -> TaskTarget:
        """The target of a member, from a new target assignment if one is due."""
        if self._make_initial_key(group) in self._context.deadlines:
            return TaskTarget(
                group.assignment_epoch,
                NO_TASKS,
                _make_delayed_status(
                    "Assignment delayed due to the configured initial rebalance delay."
                ),
            )
        delay = None
        if epoch > group.assignment_epoch:
            members = group.with_member(member)
            due_ms = self._compute_due_ms(group)
            if now_ms < due_ms:
                self._context.deadlines.set(self._make_key(group), due_ms)
                delay = _make_delayed_status(
                    "Assignment delayed due to the configured assignment interval."
                )
            elif self._is_large(group, members, configured):
                if self._make_key(group) not in self._context.deadlines:
                    self._context.deadlines.set(self._make_key(group), now_ms)
                delay = _make_delayed_status("Assignment delayed because it is being computed.")
            else:
                targets = self.assign(group, members, epoch, configured, draft, now_ms)
                return TaskTarget(epoch, targets[member.member_id])
        return TaskTarget(group.assignment_epoch, group.get_target(member), delay)

    def assign_due(self, group: StreamsGroup, draft: ResultDraft, now_ms: int) -> None:
        """Compute the target assignment that had to wait, or one slice of a large one."""
        if group.topology is None:
            return
        if group.group_id not in self._under_way:
            configured = self._configured.get(group.group_id)
            if configured is None:
                configured = configure(group.topology, self.catalog)
            if not self._is_large(group, group.members, configured):
                self.assign(group, group.members, group.epoch, configured, draft, now_ms)
                return
            work = self._compute(group, dict(group.members), group.members, configured)
            self._under_way[group.group_id] = group.epoch, work
        epoch, work = self._under_way[group.group_id]
        try:
            records = next(work)
        except StopIteration:
            self._complete_assignment(group, epoch, draft, now_ms)
        else:
            draft.records += records or ()
            self._context.deadlines.set(self._make_key(group), now_ms + SLICE_DELAY_MS)

    def assign(
        self,
        group: StreamsGroup,
        members: Mapping[str, StreamsGroupMember],
        epoch: int,
        configured: ConfiguredTopology,
        draft: ResultDraft,
        now_ms: int,
    ) -> Mapping[str, TaskSets]:
        """Compute a target assignment at once, and write records of the targets that change."""
        work = self._compute(group, members, members, configured)
        while True:
            try:
                records = next(work)
            except StopIteration as end:
                self._complete_assignment(group, epoch, draft, now_ms)
                targets: Mapping[str, TaskSets] = end.value
                return targets
            draft.records += records or ()

    def _is_large(
        self,
        group: StreamsGroup,
        members: Mapping[str, StreamsGroupMember],
        configured: ConfiguredTopology,
    ) -> bool:
        if not configured.is_ready:
            return False
        replicas = self._get_config(group, "streams.num.standby.replicas")
        return (
            sticky_assignor.estimate_steps(len(members), _build_specs(configured), replicas)
            > STEPS_AT_ONCE
        )

    def _compute(
        self,
        group: StreamsGroup,
        members: Mapping[str, StreamsGroupMember],
        remaining: Mapping[str, StreamsGroupMember],
        configured: ConfiguredTopology,
    ) -> Work:
        """Compute a target assignment in slices. `members` must not change until the end.
        Members that are not in `remaining` have left since then, and get no records."""
        targets: Mapping[str, TaskSets] = dict.fromkeys(members, NO_TASKS)
        if configured.is_ready:
            targets = yield from sticky_assignor.assign_in_slices(
                {
                    m: StreamsMemberSpec(member.process_id, group.get_target(member))
                    for m, member in members.items()
                },
                _build_specs(configured),
                self._get_config(group, "streams.num.standby.replicas"),
            )
        for member_ids in sticky_assignor.slice_items(list(targets), RECORDS_A_SLICE):
            yield [
                group.build_target_record(m, targets[m])
                for m in member_ids
                if m in remaining
                and group.target.get(group.resolve_member_id(members[m])) != targets[m]
            ]
        return targets

    def _complete_assignment(
        self, group: StreamsGroup, epoch: int, draft: ResultDraft, now_ms: int
    ) -> None:
        """Complete an assignment whose targets are written."""
        draft.records.append(group.build_target_metadata_record(epoch, now_ms))
        self._context.deadlines.cancel(self._make_key(group))
        self._under_way.pop(group.group_id, None)
        self.assignment_count += 1

    def is_postponed(self, group: ModernGroup[Any, Any]) -> bool:
        """Whether an assignment is put off."""
        return (
            super().is_postponed(group) or self._make_initial_key(group) in self._context.deadlines
        )

    def get_configs(self, group: StreamsGroup) -> Mapping[str, str]:
        """The configs that an assignment depends on, as in the group's record."""
        return {NUM_STANDBY_REPLICAS: str(self._get_config(group, "streams.num.standby.replicas"))}

    def _get_config(self, group: StreamsGroup, name: str) -> int:
        value: int = self._context.image.resolve_group_config(group.group_id)[name]
        return value

    def _make_initial_key(self, group: ModernGroup[Any, Any]) -> Key:
        return self._make_initial_key_by_id(group.group_id)

    def _make_initial_key_by_id(self, group_id: str) -> Key:
        return (self._name, INITIAL, group_id)


def _build_specs(configured: ConfiguredTopology) -> dict[str, SubtopologySpec]:
    return {
        s: SubtopologySpec(subtopology.tasks, subtopology.subtopology.is_stateful)
        for s, subtopology in configured.subtopologies.items()
    }


def _make_delayed_status(detail: str) -> StreamsGroupStatus:
    return StreamsGroupStatus(StatusCode.ASSIGNMENT_DELAYED, detail)
