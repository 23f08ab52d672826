"""Sizes, words and places: what each file must keep to."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lint.tree import File

LINES_MAX = 800
FUNCTION_LINES_MAX = 70
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|NotImplemented" r"Error)\b")
#: Absolute paths may start with a standard directory, a placeholder, a URL path of ours, or a
#: folder of this tree, which is `/` for Dependabot.
DIRECTORIES = frozenset("bin dev etc lib mnt opt proc run sbin src sys usr var".split())
PLACEHOLDERS = frozenset(
    "data jvm mine path api apis live metrics namespaces scale schemas spec static subjects"
    " bench tests".split()
)
ABSOLUTE = re.compile(r"(?<![\w.:/$}{*)~<>\]-])/([A-Za-z][\w.-]*)/([\w.-]*)")
#: Home directories of the image and of examples.
HOMES = frozenset({"/home/you", "/home/spark", "/home/conf"})
#: Hosts in URLs are public sites of projects, names in a cluster, or addresses of this machine.
HOST = re.compile(r"\b[a-z]+://(?:[^\s/@\"']*@)?([A-Za-z][\w-]*(?:\.[\w-]+)*\.[a-z]{2,})\b")
HOSTS = re.compile(
    r"((www\.)?(apache|w3)\.org|github\.com|kubernetes\.io|.*\.svc(\.cluster\.local)?|.*example(\.\w+)?)$"
)
#: Settings of one machine's package sources.
SOURCES = re.compile(r"(--|_)(extra.)?index[-_]url|\bGOPROXY[=]|registry[-]mirror", re.IGNORECASE)
FMT_SKIPS_MAX = 50
SLEEP = re.compile(r"\btime\.sleep\(|asyncio\.sleep\((?!0\))")
#: A callback that is assigned or appended to an attribute of another object.
WIRED = re.compile(r"(?<!\bself)\.on_\w+(\[.*\])? = |\.on_\w+\.(append|remove)\(")
#: This package and its tests hold the examples of what is found.
OWN = ("tools/lint/", "tests/unit/tools/test_lint.py")
#: Marks that keep lines from the formatter.
FMT_SKIP = "# fmt: skip"


def find_machine(line: str) -> list[str]:
    """Return the paths, hosts and package sources in a line that only some machines have."""
    machines = [
        match[0]
        for match in ABSOLUTE.finditer(line)
        if match[1] not in DIRECTORIES | PLACEHOLDERS and match[0] not in HOMES
    ]
    machines += [match[1] for match in HOST.finditer(line) if not HOSTS.match(match[1])]
    return machines + [match[0] for match in SOURCES.finditer(line)]


def check_file(file: File) -> Iterator[str]:
    """Yield what is wrong in a file, each with its place and the remedy."""
    if not file.is_source or file.name.startswith(OWN):
        return
    yield from _check_lines(file)
    if file.is_python:
        yield from _check_module(file)


def _check_lines(file: File) -> Iterator[str]:
    in_tests = file.name.startswith("tests/")
    for number, line in enumerate(file.text.splitlines(), 1):
        place = f"{file.name}:{number}"
        if UNFINISHED.search(line):
            yield f"{place}: refuse what is missing with a clear error; do not mark it for later"
        if machines := find_machine(line):
            yield f"{place}: a path, host or package source of one machine: {machines}"
        if not file.is_python:
            continue
        if in_tests and SLEEP.search(line):
            yield f"{place}: wait for the condition (conditions.eventually) instead of sleeping"
        if WIRED.search(line):
            yield f"{place}: pass callbacks to a method, such as `on_step(call)`"


def _check_module(file: File) -> Iterator[str]:
    lines = file.text.count("\n")
    if lines > LINES_MAX:
        yield f"{file.name}: split its {lines} lines by concern (at most {LINES_MAX})"
    if "SimpleNamespace" in file.text and file.name.startswith("tests/unit/"):
        yield f"{file.name}: write a class or a NamedTuple in place of SimpleNamespace"
    module = ast.parse(file.text)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or 0) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                yield f"{file.name}:{node.lineno}: split {node.name}, which has {size} lines"
    if "tests/" not in file.name and file.text.strip() and ast.get_docstring(module) is None:
        yield f"{file.name}:1: say in a docstring what the module is"


def check_tree(files: list[File]) -> Iterator[str]:
    """Yield what is wrong with the tree as a whole."""
    skips = sum(f.text.count(FMT_SKIP) for f in files if f.is_python and not f.name.startswith(OWN))
    if skips > FMT_SKIPS_MAX:
        yield f"let the formatter have these lines: {skips} {FMT_SKIP!r}, at most {FMT_SKIPS_MAX}"
    for file in files:
        at_top = file.name.count("/") == 1 and file.is_python
        if file.name.startswith("operator/test") or (file.name.startswith("operator/") and at_top):
            yield f"{file.name}: it shadows Python's own operator module; move it"
