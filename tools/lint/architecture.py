"""ARCHITECTURE.md names files and functions that exist, and the layers that are checked."""

from __future__ import annotations

import ast
import re
import tomllib
from typing import TYPE_CHECKING, NamedTuple

from lint.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lint.tree import File

PAGE = ROOT / "ARCHITECTURE.md"
_ROW = re.compile(r"^\| ([^|]+) \| `([^`]+\.py)` \| `([^`]+)` \|$", re.MULTILINE)
_FILE = re.compile(r"`([\w/]+\.(?:py|md|c))`")
_RECTANGLE = re.compile(r'\w\["([^"]+)"\]')
#: Events that newcomers look for.
EXPECTED = {
    "a lock runs out",
    "the ISR shrinks",
    "a dead letter is written",
    "an executor is asked for",
}
#: Where documents draw layers: the contract, the document, and the pattern of the drawing: a text
#: with `>` between layers, or a flowchart of Mermaid with a rectangle for each layer.
DRAWINGS = (
    ("packages: arrows point down", "ARCHITECTURE.md", r"```mermaid\n(flowchart TD\n[^`]+)```"),
    ("server: arrows point down", "ARCHITECTURE.md", r"```\n(process,[^`]+)```"),
    ("packages: arrows point down", "CONTRIBUTING.md", r"(testing > [^.]+)\."),
)


class Row(NamedTuple):
    """A row of "Where to look": an event, its file, and a function or class in that file."""

    event: str
    file: str
    definition: str


def find_definitions(path: Path) -> set[str]:
    """Return the functions, the classes and the methods (`Class.method`) of a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{method.name}"
                for method in node.body
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def read_layers(contract: str) -> list[set[str]]:
    """Return the layers of a contract of import-linter, each as the set of its modules."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    (layers,) = [c["layers"] for c in contracts if c["name"] == contract]
    return [{module.strip() for module in layer.split("|")} for layer in layers]


def check_tree(files: list[File]) -> Iterator[str]:
    """Yield what the page names and the tree lacks, and layers that are drawn otherwise."""
    text = PAGE.read_text()
    rows = [Row(*fields) for fields in _ROW.findall(text)]
    for event in sorted(EXPECTED - {row.event for row in rows}):
        yield f"{PAGE.name}: add the row of {event!r}, which newcomers look for"
    for row in rows:
        if not (ROOT / row.file).is_file():
            yield f"{PAGE.name}: {row.file} does not exist"
        elif row.definition not in find_definitions(ROOT / row.file):
            yield f"{PAGE.name}: {row.file} has no {row.definition}"
    for named in _FILE.findall(text):
        if not any(f"/{file.name}".endswith(f"/{named}") for file in files):
            yield f"{PAGE.name}: {named} does not exist"
    for contract, document, pattern in DRAWINGS:
        match = re.search(pattern, (ROOT / document).read_text())
        drawing = match[1] if match else ""
        drawn = _RECTANGLE.findall(drawing) or drawing.split(">")
        layers = [{module.strip() for module in layer.split(",")} for layer in drawn]
        if layers != read_layers(contract):
            yield f"{document}: draw the layers of {contract!r} as pyproject.toml has them"
