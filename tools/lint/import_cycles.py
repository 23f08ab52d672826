"""Import cycles in `shoal`: none has more than four modules, imports for types alone included."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import shoal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Modules that a cycle may have.
LARGEST_CYCLE = 4
ROOT = Path(shoal.__file__).parent


def module_name(path: Path) -> str:
    parts = [ROOT.name, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, list[str]]:
    """Return the modules that each module imports, anywhere in its text."""
    paths = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
    return {
        name: sorted(set(imported(path, paths)) - {name}) for name, path in sorted(paths.items())
    }


def imported(path: Path, paths: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in paths)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in paths:
                    yield name
                elif node.module in paths:
                    yield node.module


def reachable(graph: Mapping[str, list[str]], start: str) -> set[str]:
    """Return all modules that `start` imports, directly or not."""
    found: set[str] = set()
    pending = [start]
    while pending:
        for name in graph[pending.pop()]:
            if name not in found:
                found.add(name)
                pending.append(name)
    return found


def cycles(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not."""
    reached = {name: reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def test_a_cycle_is_found() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": [], "f": ["a"]}
    assert cycles(graph) == [["a", "b", "c"]]


def test_no_import_cycle_is_large() -> None:
    graph = import_graph()
    assert len(graph) > 300
    large = [group for group in cycles(graph) if len(group) > LARGEST_CYCLE]
    assert not large, "\n".join(f"{len(group)} modules: {', '.join(group)}" for group in large)
