"""Count names, rooms and turns of phrase: `PYTHONPATH=tools python tools/name_counts.py`.

The counts show where the tree speaks a dialect that a reader has to learn: functions that are past
participles, variables that say how a value came and not what it is, class names that mean several
things, folders without order, phrases that our documents use more often than those of others.
`tools/lint` holds the first of these to a bar; the others need a reader's judgement, so they are
only printed. `--all` lists every class name, folder and module behind the counts.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from lint import import_cycles, names
from lint.tree import list_tracked_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lint.tree import File

#: Variables that say how a value came (`found`, `given`), or nothing (`one`).
VARIABLES = ("found", "at", "one", "where", "wanted", "known", "given")
#: Phrases, each with its pattern. Models of style use the first three less, the others more often.
PHRASES = {
    "has, have": r"\b(has|have)\b",
    "what is, what has": r"\bwhat (is|are|has|have)\b",
    "that of, those of": r"\b(that|those) of\b",
    "for example": r"\bfor example\b",
    "you, your": r"\byour?\b",
}
#: A folder with more files is flat.
ROOM_FILES_MAX = 25
#: A module with fewer lines may be a part of its only user.
SMALL_LINES = 60
#: Pages that tools write.
GENERATED = ("docs/compat.md", "docs/configs.md", "docs/metrics.md", "docs/reference/")
DOCUMENTS = {
    "pages": ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/"),
    "decision records": ("docs/adr/",),
}
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w'-]*")
SHOWN = 8


def read_package(package: str, files: Iterable[File]) -> dict[File, ast.Module]:
    """Return the syntax trees of a package's modules."""
    modules = (f for f in files if f.is_python and f.name.startswith(f"{package}/"))
    return {file: ast.parse(file.text) for file in modules}


def count_participles(modules: Iterable[ast.Module]) -> tuple[int, int, int]:
    """Return the numbers of functions, of those that are one participle and no more, and of those
    that begin with one and are no properties."""
    functions = [function for module in modules for function in names.find_functions(module)]
    words = [names.split_words(function.name) for function in functions]
    bare = sum(len(parts) == 1 and names.is_participle(parts[0]) for parts in words)
    return len(functions), bare, sum(map(names.begins_with_participle, functions))


def count_variables(modules: Iterable[ast.Module]) -> dict[str, Counter[str]]:
    """Return how often each of `VARIABLES` is a parameter, is assigned, and is read."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in VARIABLES}
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.arg) and node.arg in counts:
                counts[node.arg]["parameters"] += 1
            elif isinstance(node, ast.Name) and node.id in counts:
                use = "assigned" if isinstance(node.ctx, ast.Store) else "read"
                counts[node.id][use] += 1
    return counts


def count_classes(modules: Iterable[ast.Module]) -> Counter[str]:
    """Return how many classes have each name."""
    nodes = (node for module in modules for node in ast.walk(module))
    return Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))


def count_phrases(texts: Iterable[str]) -> tuple[int, dict[str, float]]:
    """Return the number of words outside of code blocks, and each phrase's uses per 1,000 words."""
    prose = "\n".join(_FENCE.sub("", text) for text in texts)
    words = len(_WORD.findall(prose))
    counts = {
        phrase: len(re.findall(pattern, prose, re.IGNORECASE))
        for phrase, pattern in PHRASES.items()
    }
    return words, {phrase: 1000 * count / max(1, words) for phrase, count in counts.items()}


def find_documents(kind: str, files: Iterable[File]) -> Iterator[File]:
    """Yield the documents of a kind that people write. Benchmarks of one day are tables."""
    others = () if kind != "pages" else ("docs/benchmarks/", *DOCUMENTS["decision records"])
    for file in files:
        if file.path.suffix == ".md" and file.name.startswith(DOCUMENTS[kind]):
            if not file.name.startswith((*GENERATED, *others)):
                yield file


def count_rooms(files: Iterable[File]) -> Counter[str]:
    """Return the number of Python files in each folder of the packages and tests."""
    rooms = ("tests/", *(f"{package}/" for package in names.PACKAGES))
    return Counter(
        str(PurePosixPath(file.name).parent)
        for file in files
        if file.is_python and file.name.startswith(rooms)
    )


def find_small_modules(modules: Iterable[File]) -> list[str]:
    """Return the modules with less than `SMALL_LINES` lines that are no handlers and no packages'
    own `__init__` or `__main__`."""
    return [
        file.name
        for file in modules
        if file.text.count("\n") < SMALL_LINES
        and "handlers" not in file.path.parts
        and not file.path.name.startswith("__")
    ]


def print_names(trees: dict[str, dict[File, ast.Module]]) -> None:
    """Print the counts of functions and variables, by package."""
    print("functions: bare participles, and all that begin with one")
    for package, modules in trees.items():
        total, bare, beginning = count_participles(modules.values())
        shares = f"{bare:4} {bare / total:6.1%} {beginning:4} {beginning / total:6.1%}"
        print(f"  {package:32} {total:5} {shares}")
    print("variables: parameters, assigned, read")
    everything = [module for modules in trees.values() for module in modules.values()]
    for name, uses in count_variables(everything).items():
        print(f"  {name:32} {uses['parameters']:5} {uses['assigned']:4} {uses['read']:5}")


def print_found(title: str, lines: list[str], every: bool) -> None:
    """Print the number of what was found, and its first lines or all of them."""
    print(f"{title}: {len(lines)}")
    for line in lines if every else lines[:SHOWN]:
        print(f"  {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--all", action="store_true", help="list all that was counted")
    every = parser.parse_args().all
    files = list_tracked_files()
    trees = {package: read_package(package, files) for package in names.PACKAGES}
    print_names(trees)
    classes = count_classes(module for modules in trees.values() for module in modules.values())
    doubled = [f"{name} {count}" for name, count in classes.most_common() if count > 1]
    print_found("names of several classes", doubled, every)
    rooms = [f"{n:4} {room}" for room, n in count_rooms(files).most_common() if n > ROOM_FILES_MAX]
    print_found(f"folders of more than {ROOM_FILES_MAX} files", rooms, every)
    small = find_small_modules(file for modules in trees.values() for file in modules)
    print_found(f"modules of less than {SMALL_LINES} lines, without handlers", small, every)
    graphs = [import_cycles.build_graph(package) for package in import_cycles.PACKAGES]
    cycles = [group for graph in graphs for group in import_cycles.find_cycles(graph)]
    print_found("import cycles", [", ".join(group) for group in cycles], every)
    for kind in DOCUMENTS:
        words, phrases = count_phrases(file.text for file in find_documents(kind, files))
        print(f"phrases per 1,000 words in {kind}, which have {words:,} words")
        for phrase, rate in phrases.items():
            print(f"  {phrase:32} {rate:5.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
