"""Tasks of a streams group, by role, and their arrays in requests, responses and records.

A task is a subtopology and a partition number. It reads that partition of every source topic of the
subtopology. An active task processes records. A standby task keeps a copy of the state of an active
one. A warm-up task builds such a copy before the active task moves; assignments of Kafka 4.3.1 have
none, but members and records may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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


def grouped(tasks: Iterable[TaskId]) -> Tasks:
    """The tasks by subtopology."""
    found: dict[str, set[int]] = {}
    for subtopology_id, partition in tasks:
        found.setdefault(subtopology_id, set()).add(partition)
    return {s: frozenset(found[s]) for s in sorted(found)}


def flat(tasks: Mapping[str, Iterable[int]]) -> list[TaskId]:
    """The tasks in order of subtopology id and partition."""
    return [(s, p) for s in sorted(tasks) for p in sorted(tasks[s])]


def on_wire(tasks: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
    """The `TaskIds` array of responses and records."""
    return [{"subtopology_id": s, "partitions": sorted(tasks[s])} for s in sorted(tasks)]


def from_wire(tasks: Iterable[Mapping[str, Any]]) -> Tasks:
    """Read the `TaskIds` array of a record."""
    listed = [(t["subtopology_id"], t["partitions"]) for t in tasks if t["partitions"]]
    found = {s: frozenset(partitions) for s, partitions in sorted(listed)}
    if len(found) == len(listed):
        return found
    return grouped((s, p) for s, partitions in listed for p in partitions)


def sets_on_wire(sets: TaskSets | OwnedTasks) -> dict[str, Any]:
    """The three `TaskIds` arrays of a response or of the record of a target assignment."""
    return {
        "active_tasks": on_wire(sets.active),
        "standby_tasks": on_wire(sets.standby),
        "warmup_tasks": on_wire(sets.warmup),
    }


def sets_from_wire(value: Mapping[str, Any]) -> TaskSets:
    """Read what `sets_on_wire` wrote to a record."""
    return TaskSets(
        from_wire(value["active_tasks"]),
        from_wire(value["standby_tasks"]),
        from_wire(value["warmup_tasks"]),
    )


def owned_on_wire(owned: OwnedTasks, suffix: str = "") -> dict[str, Any]:
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
        f"standby_tasks{suffix}": on_wire(owned.standby),
        f"warmup_tasks{suffix}": on_wire(owned.warmup),
    }


def owned_from_wire(value: Mapping[str, Any], member_epoch: int, suffix: str = "") -> OwnedTasks:
    """Read what `owned_on_wire` wrote. Without epochs, the member epoch is used."""
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
