"""The types of custom resources are those of their definitions (`tools/resource_types.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import resource_types

if TYPE_CHECKING:
    from pathlib import Path


def test_the_modules_are_those_of_the_definitions() -> None:
    files = {path.name: path.read_text() for path in resource_types.FOLDER.glob("*.py")}
    del files["__init__.py"]
    assert files == resource_types.format_modules(), "make docs"


def test_a_field_may_be_absent_unless_it_is_required_or_has_a_default() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "required": ["cluster"],
        "properties": {
            "cluster": {"type": "string"},
            "paused": {"type": "boolean", "default": False},
            "keys": {"type": "array", "items": {"type": "string"}},
            "limit": {"x-kubernetes-int-or-string": True},
            "letters": {"type": "array", "items": {"properties": {"since": {"type": "string"}}}},
            "moves": {"type": "object", "properties": {"from": {"type": "integer"}}},
        },
    }
    schema["properties"]["letters"]["items"]["type"] = "object"
    letters, moves, spec = resource_types.format_classes("Spec", schema)
    assert letters == "class SpecLetters(TypedDict):\n    since: NotRequired[str]"
    # `from` is a word of Python.
    assert moves.startswith("SpecMoves = TypedDict(")
    assert '"from": NotRequired[int]' in moves
    assert spec.splitlines()[1:] == [
        "    cluster: str",
        "    paused: bool",
        "    keys: NotRequired[list[str]]",
        "    limit: NotRequired[int | str]",
        "    letters: NotRequired[list[SpecLetters]]",
        "    moves: NotRequired[SpecMoves]",
    ]


@pytest.mark.nightly
def test_mypy_knows_the_keys_of_get(tmp_path: Path) -> None:
    """It takes over a second, because mypy runs, as in `make types`."""
    file = tmp_path / "reader.py"
    file.write_text(
        "from shoal_operator.model.resources.queue_rebalance import QueueRebalanceSpec\n\n\n"
        "def is_paused(spec: QueueRebalanceSpec) -> bool:\n"
        '    return bool(spec.get("pausd")) or bool(spec.get("paused"))\n'
    )
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, str(file)]
    done = subprocess.run(
        command, cwd=resource_types.ROOT, capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done
    assert 'TypedDict "QueueRebalanceSpec" has no key "pausd"' in errors[0]


def test_a_change_of_a_status_sets_some_fields_and_removes_others_by_none() -> None:
    moves = {"type": "object", "properties": {"done": {"type": "integer"}}}
    fields = {"observedGeneration": {"type": "integer"}, "lag": {"type": "integer"}, "moves": moves}
    schema = {"properties": fields, "required": ["lag"]}
    assert resource_types.format_patch("TopicStatus", schema).splitlines() == [
        "class TopicStatusPatch(TypedDict, total=False):",
        "    lag: int | None",
        "    moves: TopicStatusMoves | None",
    ]
