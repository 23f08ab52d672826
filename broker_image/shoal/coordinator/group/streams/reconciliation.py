"""Reconciliation of one member of a streams group with its target assignment (KIP-1071).

A member owns the tasks that it is assigned and those that it has to revoke. An active task has one
owner. A process has one copy of a task at most, active or not. A member is in one of three states:

* STABLE: it owns its target, at the epoch of the target;
* UNREVOKED_TASKS: it has to revoke tasks. It stays in its epoch until a heartbeat shows that it
  owns none of them, and is fenced when its rebalance timeout passes;
* UNRELEASED_TASKS: it is at the epoch of its target, but other members have not released all tasks
  of the target.

Each active task has the member epoch at which it was assigned: an offset commit with an earlier
epoch is fenced (KIP-1251). `reconcile` is pure, and is called for each heartbeat of a member.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from shoal.coordinator.group.modern.static_members import LEFT_STATIC_MEMBER_EPOCH
from shoal.coordinator.group.streams.tasks import (
    NONE_OWNED,
    ActiveTasks,
    OwnedTasks,
    TaskId,
    Tasks,
    TaskSets,
    flatten,
    group_by_subtopology,
)
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class StreamsMemberState(IntEnum):
    """The states, with the numbers in records. Any state may follow any other."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    #: A state that only a newer broker has.
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, _value: object) -> StreamsMemberState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class CurrentTaskAssignment:
    """The tasks that a member owns, and its epoch."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: OwnedTasks = NONE_OWNED
    pending_revocation: OwnedTasks = NONE_OWNED

    def get_assignment_epoch(self, task: TaskId) -> int | None:
        """The epoch at which an active task was assigned; None if the member does not own it."""
        subtopology_id, partition = task
        epoch = self.assigned.active.get(subtopology_id, {}).get(partition)
        if epoch is None:
            epoch = self.pending_revocation.active.get(subtopology_id, {}).get(partition)
        return epoch

    def without_epochs(self) -> CurrentTaskAssignment:
        """The assignment of a static member that has left, and may rejoin in any epoch."""
        active = {s: dict.fromkeys(self.assigned.active[s], 0) for s in self.assigned.active}
        return replace(
            self,
            member_epoch=LEFT_STATIC_MEMBER_EPOCH,
            assigned=replace(self.assigned, active=active),
            pending_revocation=NONE_OWNED,
        )

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is StreamsMemberState.STABLE and self.member_epoch == epoch


@dataclass(slots=True)
class TaskOwners:
    """The processes that own each task. The group updates it with its members."""

    active: dict[TaskId, str] = field(default_factory=dict)
    standby: dict[TaskId, Counter[str]] = field(default_factory=dict)
    warmup: dict[TaskId, Counter[str]] = field(default_factory=dict)

    def add(self, process_id: str, owned: OwnedTasks) -> None:
        for task in flatten(owned.active):
            self.active[task] = process_id
        for side, tasks in ((self.standby, owned.standby), (self.warmup, owned.warmup)):
            for task in flatten(tasks):
                side.setdefault(task, Counter())[process_id] += 1

    def remove(self, process_id: str, owned: OwnedTasks) -> None:
        for task in flatten(owned.active):
            if self.active.get(task) == process_id:
                del self.active[task]
        for side, tasks in ((self.standby, owned.standby), (self.warmup, owned.warmup)):
            for task in flatten(tasks):
                side[task] -= Counter({process_id: 1})
                if not side[task]:
                    del side[task]

    def has_copy(self, task: TaskId, process_id: str) -> bool:
        """Whether the process has a standby or warm-up copy of a task."""
        return process_id in self.standby.get(task, ()) or process_id in self.warmup.get(task, ())


def reconcile(
    current: CurrentTaskAssignment,
    process_id: str,
    epoch: int,
    target: TaskSets,
    owners: TaskOwners,
    owned: TaskSets | None,
) -> CurrentTaskAssignment:
    """Return the member's next step towards `target`, the target of assignment epoch `epoch`;
    `current` if there is none.

    `owned` has the tasks that the heartbeat lists as owned, or None. Raises FENCED_MEMBER_EPOCH for
    a member in a state of a newer broker that still owns tasks.
    """
    step = _ReconciliationStep(process_id, epoch, target, owners, owned)
    if current.state is StreamsMemberState.STABLE:
        if current.member_epoch == epoch:
            return current
        return step.advance(current, current.member_epoch)
    if current.state is StreamsMemberState.UNREVOKED_TASKS:
        if may_own_any(owned, current.pending_revocation):
            return current
        return step.advance(current, current.member_epoch + 1)
    if current.state is StreamsMemberState.UNRELEASED_TASKS:
        return step.advance(current, current.member_epoch)
    if owned is None or owned:
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            "The streams group member is in a unknown state. The member must abandon all its "
            "tasks and rejoin.",
        )
    return step.advance(current, epoch)


@dataclass(frozen=True, slots=True)
class _ReconciliationStep:
    process_id: str
    epoch: int
    target: TaskSets
    owners: TaskOwners
    owned: TaskSets | None

    def advance(self, current: CurrentTaskAssignment, revoking_epoch: int) -> CurrentTaskAssignment:
        """Keep what is in the target, and revoke the rest. Only then assign what is free."""
        had, target = current.assigned, self.target
        kept_active, revoked_active = _split(had.active, target.active)
        kept = OwnedTasks(
            kept_active,
            _intersect(had.standby, target.standby),
            _intersect(had.warmup, target.warmup),
        )
        revoked = OwnedTasks(
            revoked_active,
            _subtract(had.standby, target.standby),
            _subtract(had.warmup, target.warmup),
        )
        if revoked and may_own_any(self.owned, revoked):
            state = StreamsMemberState.UNREVOKED_TASKS
            return CurrentTaskAssignment(revoking_epoch, current.member_epoch, state, kept, revoked)
        active = _subtract(target.active, kept.active)
        standby = _subtract(target.standby, kept.standby)
        warmup = _subtract(target.warmup, kept.warmup)
        free_active = [t for t in flatten(active) if self._is_free(t)]
        free_standby = [t for t in flatten(standby) if self._may_copy(t)]
        free_warmup = [t for t in flatten(warmup) if self._may_copy(t)]
        missing_count = sum(len(flatten(side)) for side in (active, standby, warmup))
        released = missing_count == len(free_active) + len(free_standby) + len(free_warmup)
        return CurrentTaskAssignment(
            self.epoch,
            current.member_epoch,
            StreamsMemberState.STABLE if released else StreamsMemberState.UNRELEASED_TASKS,
            OwnedTasks(
                _with_epoch(kept.active, free_active, self.epoch),
                group_by_subtopology([*flatten(kept.standby), *free_standby]),
                group_by_subtopology([*flatten(kept.warmup), *free_warmup]),
            ),
        )

    def _is_free(self, task: TaskId) -> bool:
        """Whether no member owns the active task, and this process has no copy of it."""
        return task not in self.owners.active and not self.owners.has_copy(task, self.process_id)

    def _may_copy(self, task: TaskId) -> bool:
        """Whether this process does not have the task yet."""
        is_active_here = self.owners.active.get(task) == self.process_id
        return not (is_active_here or self.owners.has_copy(task, self.process_id))


def may_own_any(owned: TaskSets | None, tasks: OwnedTasks) -> bool:
    """Whether a member may still own any of `tasks`. Without a list it may own all of them."""
    if owned is None:
        return True
    return any(
        p in theirs.get(s, ())
        for ours, theirs in (
            (owned.active, tasks.active),
            (owned.standby, tasks.standby),
            (owned.warmup, tasks.warmup),
        )
        for s, p in flatten(ours)
    )


def is_subset(owned: TaskSets | None, assigned: OwnedTasks) -> bool:
    """Whether a member owns only tasks that it is assigned. Only then may its epoch be behind."""
    return owned is not None and all(
        p in theirs.get(s, ())
        for ours, theirs in (
            (owned.active, assigned.active),
            (owned.standby, assigned.standby),
            (owned.warmup, assigned.warmup),
        )
        for s, p in flatten(ours)
    )


def _intersect(had: Tasks, target: Tasks) -> Tasks:
    return group_by_subtopology((s, p) for s, p in flatten(had) if p in target.get(s, ()))


def _subtract(tasks: Tasks, excluded: Mapping[str, Iterable[int]]) -> Tasks:
    return group_by_subtopology((s, p) for s, p in flatten(tasks) if p not in excluded.get(s, ()))


def _split(
    had: ActiveTasks, target: Tasks
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """The active tasks that are in the target, and the others."""
    kept: dict[str, dict[int, int]] = {}
    revoked: dict[str, dict[int, int]] = {}
    for s, p in flatten(had):
        side = kept if p in target.get(s, ()) else revoked
        side.setdefault(s, {})[p] = had[s][p]
    return kept, revoked


def _with_epoch(
    kept: ActiveTasks, added: Iterable[TaskId], epoch: int
) -> dict[str, dict[int, int]]:
    active = {s: dict(partitions) for s, partitions in kept.items()}
    for s, p in added:
        active.setdefault(s, {})[p] = epoch
    return {s: dict(sorted(active[s].items())) for s in sorted(active)}
