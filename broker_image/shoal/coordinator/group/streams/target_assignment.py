"""When the target assignment of a streams group is computed, and the topology that it is for.

The target is computed when the group epoch is beyond it, and at most once in each assignment
interval (KIP-1263). A group whose first member joins waits for more members first. Both set a
deadline. A group that is not ready has an empty target.

The topology is compared with the topics of the cluster when the metadata has changed. The result is
soft state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.group.groups import Context, Draft, GroupType
from shoal.coordinator.group.modern_target_assignment import ModernTargetAssignments
from shoal.coordinator.group.streams import sticky_assignor
from shoal.coordinator.group.streams.internal_topics import (
    ConfiguredTopology,
    Status,
    StatusCode,
    configure,
)
from shoal.coordinator.group.streams.sticky_assignor import MemberSpec, SubtopologySpec
from shoal.coordinator.group.streams.tasks import NO_TASKS, TaskSets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.modern_group import ModernGroup
    from shoal.coordinator.group.streams.streams_group import Member, StreamsGroup
    from shoal.coordinator.group.streams.topology import Topology

#: The only config of an assignment.
NUM_STANDBY_REPLICAS = "num.standby.replicas"
#: In the key of the deadline until which a new group waits for more members.
INITIAL = "initial"


class Target(NamedTuple):
    """The target of a member, its epoch, and why there is no newer one."""

    epoch: int
    tasks: TaskSets
    delay: Status | None = None


class TargetAssignments(ModernTargetAssignments):
    """The target assignments of the streams groups of one shard."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, GroupType.STREAMS)
        self._configured: dict[str, ConfiguredTopology] = {}

    def forget(self, group_id: str) -> None:
        super().forget(group_id)
        self._configured.pop(group_id, None)
        self._context.deadlines.cancel(self._initial_key_of(group_id))

    def compare(self, group: StreamsGroup, topology: Topology) -> tuple[int, ConfiguredTopology]:
        """Return the hash of the topics that the topology needs, and the topology compared with
        them. Raises STREAMS_INVALID_TOPOLOGY."""
        configured = self._configured.get(group.group_id)
        if configured is not None and self.is_fresh(group) and group.topology is not None:
            return group.metadata_hash, configured
        metadata_hash = self.catalog.hash_of(topology.required_topics)
        if configured is None or metadata_hash != group.metadata_hash or group.topology is None:
            configured = configure(topology, self.catalog)
        return metadata_hash, configured

    def compared(self, group: StreamsGroup, configured: ConfiguredTopology) -> None:
        """The decision that called `compare` was not refused."""
        self._configured[group.group_id] = configured
        self._fresh.add(group.group_id)

    def await_members(self, group: StreamsGroup, now_ms: int) -> None:
        """Put off the first assignment of an empty group, unless it is already."""
        delay_ms = self._config(group, "streams.initial.rebalance.delay.ms")
        key = self._initial_key(group)
        if delay_ms > 0 and key not in self._context.deadlines:
            self._context.deadlines.set(key, now_ms + delay_ms)

    def of_member(
        self,
        group: StreamsGroup,
        member: Member,
        epoch: int,
        configured: ConfiguredTopology,
        draft: Draft,
        now_ms: int,
    ) -> Target:
        """The target of a member, from a new target assignment if one is due."""
        if self._initial_key(group) in self._context.deadlines:
            return Target(
                group.assignment_epoch,
                NO_TASKS,
                _delayed("Assignment delayed due to the configured initial rebalance delay."),
            )
        delay = None
        if epoch > group.assignment_epoch:
            due_ms = self._due_ms(group)
            if now_ms >= due_ms:
                members = {**group.members, member.member_id: member}
                targets = self.assign(group, members, epoch, configured, draft, now_ms)
                return Target(epoch, targets[member.member_id])
            self._context.deadlines.set(self._key(group), due_ms)
            delay = _delayed("Assignment delayed due to the configured assignment interval.")
        target = group.target.get(member.member_id, NO_TASKS)
        return Target(group.assignment_epoch, target, delay)

    def assign_due(self, group: StreamsGroup, draft: Draft, now_ms: int) -> None:
        """Compute the target assignment that had to wait."""
        if group.topology is None:
            return
        configured = self._configured.get(group.group_id)
        if configured is None:
            configured = configure(group.topology, self.catalog)
        self.assign(group, group.members, group.epoch, configured, draft, now_ms)

    def assign(
        self,
        group: StreamsGroup,
        members: Mapping[str, Member],
        epoch: int,
        configured: ConfiguredTopology,
        draft: Draft,
        now_ms: int,
    ) -> Mapping[str, TaskSets]:
        """Compute a target assignment, and write records of the targets that change."""
        targets: Mapping[str, TaskSets] = dict.fromkeys(members, NO_TASKS)
        if configured.is_ready:
            targets = sticky_assignor.assign(
                {
                    m: MemberSpec(one.process_id, group.target.get(m, NO_TASKS))
                    for m, one in members.items()
                },
                {
                    s: SubtopologySpec(one.tasks, one.subtopology.is_stateful)
                    for s, one in configured.subtopologies.items()
                },
                self._config(group, "streams.num.standby.replicas"),
            )
        for member_id, tasks in targets.items():
            if group.target.get(member_id) != tasks:
                draft.records.append(group.target_record(member_id, tasks))
        draft.records.append(group.target_metadata_record(epoch, now_ms))
        self._context.deadlines.cancel(self._key(group))
        self.made += 1
        return targets

    def waits(self, group: ModernGroup[Any, Any]) -> bool:
        """Whether an assignment is put off."""
        return super().waits(group) or self._initial_key(group) in self._context.deadlines

    def configs(self, group: StreamsGroup) -> Mapping[str, str]:
        """The configs that an assignment depends on, as in the group's record."""
        return {NUM_STANDBY_REPLICAS: str(self._config(group, "streams.num.standby.replicas"))}

    def _config(self, group: StreamsGroup, name: str) -> int:
        value: int = self._context.image.group_config(group.group_id)[name]
        return value

    def _initial_key(self, group: ModernGroup[Any, Any]) -> Key:
        return self._initial_key_of(group.group_id)

    def _initial_key_of(self, group_id: str) -> Key:
        return (self._name, INITIAL, group_id)


def _delayed(detail: str) -> Status:
    return Status(StatusCode.ASSIGNMENT_DELAYED, detail)
