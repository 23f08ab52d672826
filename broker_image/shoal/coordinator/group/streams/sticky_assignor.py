"""The `sticky` task assignor of streams groups (KIP-1071): exactly the tasks of Kafka 4.4.0.

Kafka also ranks members by the offsets that they report of their tasks, which Shoal does not take.

Active tasks are assigned in three passes, and standby tasks after them:

1. A task stays with the member that had it, while the member is below its quota.
2. A remaining task goes to a member that had it as a standby, while that is below its quota.
3. Any other task goes to the least loaded process, and there to the least loaded member. The load
   of a process is its number of tasks divided by its number of members.

A quota is the number of tasks divided by the number of members, rounded up. Whenever a member
reaches it, the quota of the others is computed again from what is left. A process never has two
copies of one task.

Ties are broken as Kafka breaks them, by the orders in `java_order` (docs/adr/0080). The result
depends on the order of `members` only where ids share a bucket.

`assign_in_slices` stops after every `SLICE_STEPS` steps, so that a large assignment does not block
the event loop (docs/adr/0086). `assign` does not stop. Both return the same tasks.
"""

from __future__ import annotations

import math
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shoal.coordinator.group.streams.tasks import (
    NO_TASKS,
    TaskId,
    TaskSets,
    flatten,
    group_by_subtopology,
)
from shoal.coordinator.java_order import (
    PriorityQueue,
    sort_by_hash,
    sort_computed_by_hash,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

T = TypeVar("T")

NAME = "sticky"
#: Steps between two stops. A step handles one task, and takes 1 to 5 us.
SLICE_STEPS = 1_000

_BY_LOAD = attrgetter("load")
_BY_COUNT = itemgetter(1)


class StreamsMemberSpec(NamedTuple):
    """A member: its process, and its last target assignment."""

    process_id: str
    assigned: TaskSets = NO_TASKS


class SubtopologySpec(NamedTuple):
    """The number of tasks of a subtopology, and whether they have state."""

    tasks: int
    is_stateful: bool


def estimate_steps(
    members: int, subtopologies: Mapping[str, SubtopologySpec], standby_replicas: int
) -> int:
    """About how many steps an assignment takes."""
    active = sum(spec.tasks for spec in subtopologies.values())
    stateful = sum(spec.tasks for spec in subtopologies.values() if spec.is_stateful)
    return members + active + stateful * standby_replicas


def assign(
    members: Mapping[str, StreamsMemberSpec],
    subtopologies: Mapping[str, SubtopologySpec],
    standby_replicas: int = 0,
) -> dict[str, TaskSets]:
    """Return the target assignment of every member. `standby_replicas` is the wanted number of
    standby tasks for each active task with state; there are fewer if there are too few
    processes."""
    return run_to_end(assign_in_slices(members, subtopologies, standby_replicas))


def assign_in_slices(
    members: Mapping[str, StreamsMemberSpec],
    subtopologies: Mapping[str, SubtopologySpec],
    standby_replicas: int = 0,
) -> Generator[None, None, dict[str, TaskSets]]:
    """Like `assign`, in slices. The arguments must not change until the end."""
    if not members:
        return {}
    assignment = _Assignment(members, subtopologies, standby_replicas)
    yield from assignment.load()
    yield from assignment.assign_active(_list_tasks(subtopologies))
    if standby_replicas > 0:
        stateful = {s: spec for s, spec in subtopologies.items() if spec.is_stateful}
        yield from assignment.assign_standby(_list_tasks(stateful))
    assigned = {}
    for member_ids in slice_items(list(members), SLICE_STEPS // 10):
        for m in member_ids:
            assigned[m] = TaskSets(
                group_by_subtopology(assignment.active[m]),
                group_by_subtopology(assignment.standby[m]),
            )
        yield
    return assigned


def run_to_end(work: Generator[None, None, T]) -> T:
    """Run all slices at once. Returns the result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def slice_items(items: Sequence[T], size: int = SLICE_STEPS) -> Iterator[Sequence[T]]:
    """Yield the items in slices of at most `size`."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _list_tasks(subtopologies: Mapping[str, SubtopologySpec]) -> list[TaskId]:
    return [(s, p) for s, spec in subtopologies.items() for p in range(spec.tasks)]


def _get_sort_key(task: TaskId) -> tuple[int, str]:
    return task[1], task[0]


class _Quota:
    """The number of tasks that each member may have while tasks are kept where they were."""

    __slots__ = ("_members", "_tasks", "each")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self._divide()

    def note_count(self, count: int) -> None:
        """A member has `count` tasks. At its quota, it takes part no longer."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self._divide()

    def _divide(self) -> None:
        self.each = -(-self._tasks // self._members) if self._members else 0


class _Process:
    """The members of a process, and the tasks that they have been assigned."""

    __slots__ = ("_queue", "_size", "counts", "load", "tasks")

    def __init__(self) -> None:
        #: The number of tasks of each member.
        self.counts: dict[str, int] = {}
        self.tasks: set[TaskId] = set()
        self.load = 0.0
        self._size = 0
        self._queue: PriorityQueue[tuple[str, int]] | None = None

    def add(self, member_id: str, task: TaskId) -> int:
        """Give a task to a member. Returns the number of its tasks."""
        self._queue = None
        return self._add(member_id, task)

    def add_to_least_loaded(self, task: TaskId) -> tuple[str, int]:
        """Give a task to the member with the fewest. Returns the member and its number of tasks."""
        if len(self.counts) == 1:
            (member_id,) = self.counts
            return member_id, self._add(member_id, task)
        if self._queue is None:
            ordered = sort_by_hash(self.counts)
            self._queue = PriorityQueue(((m, self.counts[m]) for m in ordered), _BY_COUNT)
        member_id, _ = self._queue.poll()
        count = self._add(member_id, task)
        self._queue.add((member_id, count))
        return member_id, count

    def _add(self, member_id: str, task: TaskId) -> int:
        self.tasks.add(task)
        count = self.counts[member_id] = self.counts[member_id] + 1
        self._size += 1
        self.load = self._size / len(self.counts)
        return count


class _Assignment:
    """One run of the assignor."""

    def __init__(
        self,
        members: Mapping[str, StreamsMemberSpec],
        subtopologies: Mapping[str, SubtopologySpec],
        standby_replicas: int,
    ) -> None:
        self._replicas = standby_replicas
        active = sum(spec.tasks for spec in subtopologies.values())
        stateful = sum(spec.tasks for spec in subtopologies.values() if spec.is_stateful)
        self._active_quota = _Quota(active, len(members))
        self._quota = _Quota(active + stateful * standby_replicas, len(members))
        self.active: dict[str, list[TaskId]] = {m: [] for m in members}
        self.standby: dict[str, list[TaskId]] = {m: [] for m in members}
        self._process_of: dict[str, _Process] = {}
        self._last_active: dict[TaskId, str] = {}
        self._last_standby: dict[TaskId, list[str]] = {}
        self._members = members
        self._processes: list[_Process] = []

    def load(self) -> Iterator[None]:
        """Read what the members had."""
        processes: dict[str, _Process] = {}
        asked: list[str] = []
        read = 0
        for member_id in sort_by_hash(self._members):
            spec = self._members[member_id]
            asked.append(spec.process_id)
            process = processes.setdefault(spec.process_id, _Process())
            process.counts[member_id] = 0
            self._process_of[member_id] = process
            active, standby = flatten(spec.assigned.active), flatten(spec.assigned.standby)
            for task in active:
                self._last_active[task] = member_id
            for task in standby:
                self._last_standby.setdefault(task, []).append(member_id)
            read += 1 + len(active) + len(standby)
            if read >= SLICE_STEPS:
                read = 0
                yield
        ordered = sort_computed_by_hash(asked, capacity=len(self._members))
        self._processes = [processes[p] for p in ordered]

    def assign_active(self, tasks: Sequence[TaskId]) -> Iterator[None]:
        unassigned = []
        for task_slice in slice_items(sorted(tasks, key=_get_sort_key)):
            for task in task_slice:
                last = self._last_active.get(task)
                if last is None or not self._keep_active(last, task):
                    unassigned.append(task)
            yield
        unkept = []
        for task_slice in slice_items(unassigned):
            for task in task_slice:
                chosen = self._find_least_loaded(self._last_standby.get(task, ()))
                if chosen is None or not self._keep_active(chosen, task):
                    unkept.append(task)
            yield
        queue = PriorityQueue(self._processes, _BY_LOAD)
        for task_slice in slice_items(sorted(unkept)):
            for task in task_slice:
                process = queue.poll()
                member_id, count = process.add_to_least_loaded(task)
                self.active[member_id].append(task)
                self._note_active(count)
                queue.add(process)
            yield

    def _keep_active(self, member_id: str, task: TaskId) -> bool:
        """Give a task to a member that is below its quota of active tasks."""
        process = self._process_of[member_id]
        if process.counts[member_id] >= self._active_quota.each:
            return False
        self.active[member_id].append(task)
        self._note_active(process.add(member_id, task))
        return True

    def _note_active(self, count: int) -> None:
        self._active_quota.note_count(count)
        self._quota.note_count(count)

    def assign_standby(self, tasks: Sequence[TaskId]) -> Iterator[None]:
        unplaced: list[tuple[TaskId, int]] = []
        for task_slice in slice_items(sorted(tasks, key=_get_sort_key, reverse=True)):
            for task in task_slice:
                for placed in range(self._replicas):
                    if not self._keep_standby(task):
                        unplaced.append((task, self._replicas - placed))
                        break
            yield
        queue = PriorityQueue(self._processes, _BY_LOAD)
        for missing in slice_items(sorted(unplaced, reverse=True)):
            for task, replicas in missing:
                for _ in range(replicas):
                    if not self._place_standby(queue, task):
                        break
            yield

    def _keep_standby(self, task: TaskId) -> bool:
        """Give a standby task to a member that had the task, active or standby."""
        last = self._last_active.get(task)
        if last is not None and self._add_standby(last, task):
            return True
        chosen = self._find_least_loaded(self._last_standby.get(task, ()), task)
        return chosen is not None and self._add_standby(chosen, task)

    def _add_standby(self, member_id: str, task: TaskId) -> bool:
        process = self._process_of[member_id]
        if task in process.tasks:
            return False
        if process.counts[member_id] >= self._quota.each:
            return False
        self.standby[member_id].append(task)
        self._quota.note_count(process.add(member_id, task))
        return True

    def _place_standby(self, queue: PriorityQueue[_Process], task: TaskId) -> bool:
        """Give a standby task to the least loaded process without the task."""
        passed = []
        is_placed = False
        while len(queue) and not is_placed:
            process = queue.poll()
            passed.append(process)
            if task not in process.tasks:
                member_id, count = process.add_to_least_loaded(task)
                self.standby[member_id].append(task)
                self._quota.note_count(count)
                is_placed = True
        for process in reversed(passed):
            queue.add(process)
        return is_placed

    def _find_least_loaded(
        self, candidates: Sequence[str], task: TaskId | None = None
    ) -> str | None:
        """The first candidate, or a later one that is less loaded and whose process is, too. With a
        `task`, candidates whose process has it do not count."""
        chosen, load, count = None, math.inf, math.inf
        for member_id in candidates:
            process = self._process_of[member_id]
            if task is not None and task in process.tasks:
                continue
            if chosen is None or (process.load < load and process.counts[member_id] < count):
                chosen, load, count = member_id, process.load, process.counts[member_id]
        return chosen
