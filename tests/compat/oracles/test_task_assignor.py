"""Shoal's sticky task assignor and Kafka's assign the same tasks, in random groups that change."""

from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from shoal.coordinator.group.streams.sticky_assignor import assign
from shoal.coordinator.group.streams.tasks import TaskSets, flatten
from support.kafka.java_classes import SOURCES, java
from support.streams.streams_topologies import StreamsMaterial

if TYPE_CHECKING:
    from shoal.coordinator.group.streams.tasks import Tasks

pytestmark = pytest.mark.java

SOURCE = SOURCES / "TaskAssignorOracle.java"
GROUPS, CHANGES, LARGE_EVERY = 700, 8, 50


def _text(tasks: Tasks) -> str:
    return ",".join(sorted(f"{s}_{p}" for s, p in flatten(tasks))) or "-"


def _question(material: StreamsMaterial) -> list[str]:
    return [
        f"group {material.standby_replicas}",
        *(
            f"subtopology {s} {spec.tasks} {str(spec.is_stateful).lower()}"
            for s, spec in material.subtopologies.items()
        ),
        *(
            f"member {m} {spec.process_id} {_text(spec.assigned.active)} "
            f"{_text(spec.assigned.standby)}"
            for m, spec in material.members.items()
        ),
        "assign",
    ]


def _answer(targets: dict[str, TaskSets]) -> list[str]:
    rows = (f"{m} {_text(targets[m].active)} {_text(targets[m].standby)}" for m in sorted(targets))
    return [*rows, "done"]


@pytest.mark.nightly
def test_both_assign_the_same_tasks(seed: int) -> None:
    rng = random.Random(seed)
    questions: list[str] = []
    expected: list[str] = []
    for number in range(GROUPS):
        large = number % LARGE_EVERY == 0
        material = StreamsMaterial(rng, members_max=60 if large else 12)
        for _ in range(CHANGES):
            targets = assign(material.members, material.subtopologies, material.standby_replicas)
            questions += _question(material)
            expected += _answer(targets)
            material.assigned(targets)
            material.change()
    done = subprocess.run(
        java(str(SOURCE), heap="384m"),
        input="\n".join(questions) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(expected)
    differing = sum(a != e for a, e in zip(answers, expected, strict=True))
    assert answers == expected, f"{differing} of {len(expected)} members differ"
