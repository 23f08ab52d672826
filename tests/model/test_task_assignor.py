"""The sticky task assignor against its rules, over random topologies and members that change.

`compat/oracles/test_task_assignor.py` compares its results with Kafka's.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from shoal.coordinator.group.streams.sticky_assignor import (
    StreamsMemberSpec,
    SubtopologySpec,
    assign,
)
from shoal.coordinator.group.streams.tasks import flatten
from support.streams.streams_topologies import StreamsMaterial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.coordinator.group.streams.tasks import TaskSets

GROUPS, CHANGES = 500, 8


def _check(material: StreamsMaterial, targets: Mapping[str, TaskSets]) -> None:
    processes = {m: spec.process_id for m, spec in material.members.items()}
    assert targets.keys() == processes.keys()
    wanted = [(s, p) for s, spec in material.subtopologies.items() for p in range(spec.tasks)]
    active = [task for t in targets.values() for task in flatten(t.active)]
    assert sorted(active) == sorted(wanted), "each task has one active copy"
    standby = Counter(task for t in targets.values() for task in flatten(t.standby))
    replicas = min(material.standby_replicas, len(set(processes.values())) - 1)
    for task in wanted:
        stateful = material.subtopologies[task[0]].is_stateful
        assert standby.pop(task, 0) == (replicas if stateful else 0)
    assert not standby
    copies = Counter(
        (processes[m], task)
        for m, t in targets.items()
        for task in (*flatten(t.active), *flatten(t.standby))
    )
    assert set(copies.values()) <= {1}, "a process has one copy of a task"


def test_the_rules_hold_for_random_groups(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(GROUPS):
        material = StreamsMaterial(rng)
        for _ in range(CHANGES):
            targets = assign(material.members, material.subtopologies, material.standby_replicas)
            _check(material, targets)
            material.assigned(targets)
            material.change()


def test_a_second_assignment_moves_no_active_task_without_a_change(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(GROUPS):
        material = StreamsMaterial(rng)
        material.standby_replicas = 0
        first = assign(material.members, material.subtopologies)
        material.assigned(first)
        assert assign(material.members, material.subtopologies) == first


def test_a_new_group_is_balanced_over_members_of_equal_processes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(GROUPS):
        processes, threads, tasks = rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 60)
        members = {
            f"{p}-{t}": StreamsMemberSpec(f"process-{p}")
            for p in range(processes)
            for t in range(threads)
        }
        targets = assign(members, {"0": SubtopologySpec(tasks, False)})
        sizes = {len(flatten(target.active)) for target in targets.values()}
        assert max(sizes) - min(sizes) <= 1


def test_a_member_that_leaves_moves_only_its_own_tasks(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(GROUPS):
        tasks = rng.randint(1, 40)
        members = {f"m{n}": StreamsMemberSpec(f"p{n}") for n in range(rng.randint(2, 9))}
        subtopologies = {"0": SubtopologySpec(tasks, True)}
        before = assign(members, subtopologies)
        gone = rng.choice(sorted(members))
        left = {
            m: StreamsMemberSpec(s.process_id, before[m]) for m, s in members.items() if m != gone
        }
        after = assign(left, subtopologies)
        for m in left:
            assert set(flatten(before[m].active)) <= set(flatten(after[m].active))


def test_a_group_without_members_has_no_assignment() -> None:
    assert assign({}, {"0": SubtopologySpec(3, True)}, 1) == {}
