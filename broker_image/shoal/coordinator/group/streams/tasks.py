"""Tasks of a streams group, by role, and their arrays in requests, responses and records.

A task is a subtopology and a partition number. It reads that partition of every source topic of the
subtopology. An active task processes records. A standby task keeps a copy of the state of an active
one. A warm-up task builds such a copy before the active task moves; Shoal's assignments have
none, but members and records may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses

#: A subtopology id and a partition number.
TaskId = tuple[str, int]
#: Partition numbers by subtopology id; no subtopology maps to an empty set.
Tasks = Mapping[str, frozenset[int]]
#: Active tasks with the member epoch at which each was assigned.
ActiveTasks = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class TaskSets:
    """The tasks of a target assignment, or those that a heartbeat lists as owned."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)


@dataclass(frozen=True, slots=True)
class OwnedTasks:
    """The tasks that a member is assigned, or those that it has to revoke."""

    active: ActiveTasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)


NO_TASKS = TaskSets()
NONE_OWNED = OwnedTasks()


def group_by_subtopology(tasks: Iterable[TaskId]) -> Tasks:
    """The tasks by subtopology."""
    by_subtopology: dict[str, set[int]] = {}
    for subtopology_id, partition in tasks:
        by_subtopology.setdefault(subtopology_id, set()).add(partition)
    return {s: frozenset(by_subtopology[s]) for s in sorted(by_subtopology)}


def flatten(tasks: Mapping[str, Iterable[int]]) -> list[TaskId]:
    """The tasks in order of subtopology id and partition."""
    return [(s, p) for s in sorted(tasks) for p in sorted(tasks[s])]


def to_wire(tasks: Mapping[str, Iterable[int]]) -> list[responses.StreamsGroupDescribeTaskIds]:
    """The `TaskIds` array of responses and records."""
    return [{"subtopology_id": s, "partitions": sorted(tasks[s])} for s in sorted(tasks)]


def from_wire(tasks: Iterable[Mapping[str, Any]]) -> Tasks:
    """Read the `TaskIds` array of a record."""
    listed = [(t["subtopology_id"], t["partitions"]) for t in tasks if t["partitions"]]
    by_subtopology = {s: frozenset(partitions) for s, partitions in sorted(listed)}
    if len(by_subtopology) == len(listed):
        return by_subtopology
    return group_by_subtopology((s, p) for s, partitions in listed for p in partitions)


def encode_task_sets(sets: TaskSets | OwnedTasks) -> responses.StreamsGroupDescribeAssignment:
    """The three `TaskIds` arrays of a response or of the record of a target assignment."""
    return {
        "active_tasks": to_wire(sets.active),
        "standby_tasks": to_wire(sets.standby),
        "warmup_tasks": to_wire(sets.warmup),
    }


def decode_task_sets(value: Mapping[str, Any]) -> TaskSets:
    """Read what `encode_task_sets` wrote to a record."""
    return TaskSets(
        from_wire(value["active_tasks"]),
        from_wire(value["standby_tasks"]),
        from_wire(value["warmup_tasks"]),
    )


def encode_owned_tasks(owned: OwnedTasks, suffix: str = "") -> dict[str, Any]:
    """The three `TaskIds` arrays of the record of a current assignment. `suffix` ends their names.

    Active tasks have the epochs of their assignment.
    """
    return {
        f"active_tasks{suffix}": [
            {
                "subtopology_id": s,
                "partitions": sorted(owned.active[s]),
                "assignment_epochs": [owned.active[s][p] for p in sorted(owned.active[s])],
            }
            for s in sorted(owned.active)
        ],
        f"standby_tasks{suffix}": to_wire(owned.standby),
        f"warmup_tasks{suffix}": to_wire(owned.warmup),
    }


def decode_owned_tasks(value: Mapping[str, Any], member_epoch: int, suffix: str = "") -> OwnedTasks:
    """Read what `encode_owned_tasks` wrote. Without epochs, the member epoch is used."""
    active: dict[str, dict[int, int]] = {}
    for task in value[f"active_tasks{suffix}"]:
        partitions, epochs = task["partitions"], task.get("assignment_epochs") or ()
        if len(epochs) != len(partitions):
            epochs = [member_epoch] * len(partitions)
        if partitions:
            active[task["subtopology_id"]] = dict(zip(partitions, epochs, strict=True))
    return OwnedTasks(
        active,
        from_wire(value[f"standby_tasks{suffix}"]),
        from_wire(value[f"warmup_tasks{suffix}"]),
    )
