"""Print the files of tests that a change can affect: `make test-changed`.

What counts as changed is all that differs from a commit (HEAD by default), committed or not. A
file of tests is affected if it has changed, if it names a changed file, or if it reaches a changed
module. It reaches the modules whose functions ran in its tests, brokers and commands included, when
`make coverage-map` ran last (`build/coverage-map.json`). Without that map, and for newer files of
tests, it reaches all that it imports, directly or not: with a broker, that is most of the tree.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "build" / "coverage-map.json"
CACHE = ROOT / "build" / "grimp"
#: The source root of each package.
PACKAGES = {
    "shoal": "broker_image",
    "shoal_operator": "operator",
    "shoal_spark": "spark_operator_jobs",
}
#: Folders whose modules tests import by their names.
HELPERS = ("tests", "tests/model", "bench", "tools")
#: Modules of tests that start a program, and the module that it begins with.
STARTED = {
    "tests/support/brokers/servers.py": "shoal.cli.commands.server",
    "tests/support/brokers/commands.py": "shoal.cli.main",
}
#: Tests on Kubernetes are run by name.
SKIPPED = ("tests/e2e/",)


def find_changes(since: str) -> set[str]:
    """Return the files that differ from a commit, and new ones, relative to the root.

    Raises `subprocess.CalledProcessError` if git does not know the commit.
    """
    changed = _git("diff", "--name-only", since)
    return {*changed, *_git("ls-files", "--others", "--exclude-standard")}


def _git(*words: str) -> list[str]:
    command = ["git", *words]
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()


def name_module(file: str) -> str | None:
    """Return the dotted name of a module of the product; None for other files."""
    for package, folder in PACKAGES.items():
        if file.startswith(f"{folder}/{package}/") and file.endswith(".py"):
            return file[len(folder) + 1 : -3].replace("/", ".").removesuffix(".__init__")
    return None


@functools.cache
def read_imports(file: str) -> frozenset[str]:
    """Return the files of tests and the modules of the product that a test file imports."""
    imported = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in PACKAGES:
                imported.add(name)
            imported.update(_find_helper(name))
    return frozenset(imported | {STARTED[file]} if file in STARTED else imported)


def read_strings(file: str) -> set[str]:
    """Return the string literals of a module."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _find_helper(name: str) -> Iterator[str]:
    path = name.replace(".", "/")
    for folder in HELPERS:
        for file in (f"{folder}/{path}.py", f"{folder}/{path}/__init__.py"):
            if (ROOT / file).is_file():
                yield file


@functools.cache
def read_fixtures(conftest: str) -> frozenset[str]:
    """Return the names of the fixtures in a conftest; none if there is no such file."""
    path = ROOT / conftest
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("pytest.fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    )


def find_reached(file: str) -> set[str]:
    """Return the test files that a file imports, directly or not, and their product modules."""
    reached: set[str] = set()
    words = set(re.findall(r"\w+", (ROOT / file).read_text()))
    conftests = [str(up / "conftest.py") for up in Path(file).parents]
    pending = [file, *(c for c in conftests if words & read_fixtures(c))]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            if name.endswith(".py"):
                pending += read_imports(name)
    return reached


def select(changes: set[str], files: list[str], ran: dict[str, list[str]]) -> list[str]:
    """Return the files of tests that the changes can affect. `ran` has the modules of the map."""
    modules = {module for file in changes if (module := name_module(file))}
    graph = grimp.build_graph(*PACKAGES, cache_dir=str(CACHE))
    # The command line imports the module of a command when it runs.
    main = "shoal.cli.main"
    for command in read_strings("broker_image/shoal/cli/main.py") & graph.modules:
        graph.add_import(importer=main, imported=command)
    importers = set(modules)
    for module in modules & graph.modules:
        importers |= graph.find_downstream_modules(module)
    # What tests name: manifests, pages, programs in other languages.
    others = {Path(f).name for f in changes if not f.endswith(".py")} - {"CHANGELOG.md"}
    chosen = []
    for file in files:
        reached = find_reached(file)
        used = set(ran[file]) & modules if file in ran else reached & importers
        text = (ROOT / file).read_text()
        if used or reached & changes or any(name in text for name in others):
            chosen.append(file)
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("since", nargs="?", default="HEAD", help="a commit (HEAD)")
    since = parser.parse_args().since
    listed = _git("ls-files", "-co", "--exclude-standard", "tests/**/test_*.py")
    files = [f for f in listed if (ROOT / f).is_file() and not f.startswith(SKIPPED)]
    ran = json.loads(MAP.read_text()) if MAP.exists() else {}
    if not ran:
        print("No build/coverage-map.json: imports alone choose, which are more.", file=sys.stderr)
    chosen = select(find_changes(since), files, ran)
    print(f"{len(chosen)} of {len(files)} files of tests since {since}.", file=sys.stderr)
    print(*chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
