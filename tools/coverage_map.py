"""Write `build/coverage-map.json`: the modules whose functions ran for each file of tests.

`make coverage-map` runs the tests under coverage.py, their brokers and commands included: each
process begins with the context of the file that started it (`TEST_FILE`, tests/conftest.py). Shared
brokers have the context `shared`, which counts for each file with a fixture of them. Lines that run
when a module is imported do not count.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
from changed_tests import MAP, ROOT, name_module

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The context of the brokers that files share, and the fixtures of these files.
SHARED = "shared"
FIXTURES = ("shared_broker", "tools_broker")


def find_body_lines(path: Path) -> set[int]:
    """Return the lines of a module that run only when a function is called."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return lines


def read_contexts(data: coverage.CoverageData) -> Iterator[tuple[str, str]]:
    """Yield the pairs of context and module in which a function of the module ran."""
    for measured in data.measured_files():
        path = Path(measured)
        module = name_module(str(path.relative_to(ROOT))) if path.is_relative_to(ROOT) else None
        if module is None or not path.is_file():
            continue
        body = find_body_lines(path)
        for line, contexts in data.contexts_by_lineno(measured).items():
            if line in body:
                # A process that has changed its context is named `first|current`.
                yield from ((context.rpartition("|")[2], module) for context in contexts)


def main() -> int:
    data = coverage.CoverageData(str(ROOT / "build" / "coverage" / "data"))
    data.read()
    modules: dict[str, set[str]] = defaultdict(set)
    for context, module in read_contexts(data):
        modules[context].add(module)
    shared = modules.pop(SHARED, set())
    for file in list(modules):
        if not (ROOT / file).is_file():
            del modules[file]
        elif any(fixture in (ROOT / file).read_text() for fixture in FIXTURES):
            modules[file] |= shared
    MAP.write_text(
        json.dumps({file: sorted(imported) for file, imported in sorted(modules.items())})
    )
    print(f"{MAP.relative_to(ROOT)}: {len(modules)} files of tests.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
