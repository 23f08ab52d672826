"""ARCHITECTURE.md names files and functions that exist, and the layers that are checked."""

from __future__ import annotations

import ast
import re
import tomllib
from typing import TYPE_CHECKING, NamedTuple

import pytest
from unit.test_tidy import ROOT, name, tracked

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "ARCHITECTURE.md"
_ROW = re.compile(r"^\| ([^|]+) \| `([^`]+\.py)` \| `([^`]+)` \|$", re.MULTILINE)
_FILE = re.compile(r"`([\w/]+\.(?:py|md|c))`")


class Row(NamedTuple):
    """A row of "Where to look": an event, its file, and a function or class in that file."""

    event: str
    file: str
    definition: str


ROWS = [Row(*found) for found in _ROW.findall(PAGE.read_text())]
#: Events that newcomers look for.
EXPECTED = {
    "a lock runs out",
    "the ISR shrinks",
    "a dead letter is written",
    "an executor is asked for",
}


def definitions(path: Path) -> set[str]:
    """Return the functions, the classes and the methods (`Class.method`) of a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{method.name}"
                for method in node.body
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_the_table_has_the_events_that_newcomers_look_for() -> None:
    assert {row.event for row in ROWS} >= EXPECTED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.event)
def test_the_table_names_what_exists(row: Row) -> None:
    assert (ROOT / row.file).is_file(), f"{PAGE.name} names {row.file}, which does not exist"
    assert row.definition in definitions(ROOT / row.file)


def test_all_files_that_the_page_names_exist() -> None:
    files = [f"/{name(path)}" for path in tracked()]
    missing = [
        file
        for file in _FILE.findall(PAGE.read_text())
        if not any(known.endswith(f"/{file}") for known in files)
    ]
    assert not missing, f"{PAGE.name} names files that do not exist: {missing}"


def layers_of(contract: str) -> list[set[str]]:
    """Return the layers of a contract of import-linter, each as the set of its modules."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if c["name"] == contract]
    return [{module.strip() for module in layer.split("|")} for layer in layers]


@pytest.mark.parametrize(
    ("contract", "document", "block"),
    [
        ("packages: arrows point down", "ARCHITECTURE.md", r"```\n(cli >[^`]+)```"),
        ("server: arrows point down", "ARCHITECTURE.md", r"```\n(process,[^`]+)```"),
        ("packages: arrows point down", "CONTRIBUTING.md", r"(cli > [^.]+)\."),
    ],
)
def test_the_layers_are_those_that_are_checked(contract: str, document: str, block: str) -> None:
    match = re.search(block, (ROOT / document).read_text())
    assert match is not None
    named = [{module.strip() for module in layer.split(",")} for layer in match[1].split(">")]
    assert named == layers_of(contract)
