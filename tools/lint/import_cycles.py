"""Import cycles in the packages: there are none, imports for types alone included."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from lint.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lint.tree import File

PACKAGES = (
    ROOT / "broker_image" / "shoal",
    ROOT / "operator" / "shoal_operator",
    ROOT / "spark_operator_jobs" / "shoal_spark",
)


def name_module(package: Path, path: Path) -> str:
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def build_graph(package: Path) -> dict[str, list[str]]:
    """Return the modules of the package that each module imports, anywhere in its text."""
    paths = {name_module(package, path): path for path in sorted(package.rglob("*.py"))}
    return {
        name: sorted(set(find_imports(path, paths)) - {name})
        for name, path in sorted(paths.items())
    }


def find_imports(path: Path, paths: Mapping[str, Path]) -> Iterator[str]:
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


def find_reachable(graph: Mapping[str, list[str]], start: str) -> set[str]:
    """Return all modules that `start` imports, directly or not."""
    reachable: set[str] = set()
    pending = [start]
    while pending:
        for name in graph[pending.pop()]:
            if name not in reachable:
                reachable.add(name)
                pending.append(name)
    return reachable


def find_cycles(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not."""
    reached = {name: find_reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def check_tree(_files: list[File]) -> Iterator[str]:
    """Yield the cycles."""
    for package in PACKAGES:
        for group in find_cycles(build_graph(package)):
            yield f"a cycle of {len(group)} modules, break it: {', '.join(group)}"
