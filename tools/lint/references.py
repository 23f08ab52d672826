"""Paths, functions in them, modules and targets of make that comments, docstrings and documents
name in backquotes exist, and targets that workflows call."""

from __future__ import annotations

import functools
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from lint.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lint.tree import File

#: Folders that references may start from, besides those around the file.
BASES = (
    "",
    "broker_image/shoal/",
    "broker_image/shoal/server/",
    "broker_image/shoal/coordinator/",
    "operator/shoal_operator/",
    "spark_operator_jobs/shoal_spark/",
    "tests/",
    "tests/compat/",
)
#: Packages whose dotted names are checked. Kafka's configs begin with the names of others.
PACKAGES = ("server", "coordinator", "quorum", "record", "protocol", "shoal_operator")
#: A path, and perhaps a function in it, as pytest names a test.
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)/?(?:::(\w+))?`")
#: A function, class, variable or config that a file has: `X` in `y/z.py`, `X` (in `y/z.py`).
PLACED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?` \(?in `([\w.-]+(?:/[\w.-]+)+\.py)`")
MODULE = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.(?!py\b)\w+)+)(?:\(\))?`")
TARGET = re.compile(r"(?:`|\brun: )make ([a-z][a-z0-9-]*)")
#: A rule of the Makefile, with one target or several.
RULE = re.compile(r"^([a-z][a-z0-9-]*(?: [a-z][a-z0-9-]*)*):", re.MULTILINE)

#: Not the generated list of configs, some of which look like modules, nor examples of faults.
EXCEPT = ("docs/configs.md", "tools/lint/references.py", "tests/unit/tools/test_lint.py")
CHECKED = frozenset({".py", ".md", ".c", ".h", ".yml"})


def find_candidates(reference: str, file: str) -> list[str]:
    """Return the paths that a reference in a file may mean."""
    around = [f"{folder}/" for folder in PurePosixPath(file).parents if str(folder) != "."]
    return [base + reference for base in (*BASES, *around)]


@functools.cache
def _read(name: str) -> str:
    return (ROOT / name).read_text()


class References:
    """The files, folders and targets of make that references may name."""

    def __init__(self, files: Iterable[str], makefile: str = "") -> None:
        self._targets = {target for rule in RULE.findall(makefile) for target in rule.split()}
        self._files = set(files)
        folders = {str(up) for file in self._files for up in PurePosixPath(file).parents}
        self._folders = folders - {"."}
        self._known = self._files | self._folders
        #: First parts of paths that mean files of this tree. Others are paths in images, or of
        #: programs.
        self._first = {
            folder.removeprefix(base).split("/")[0]
            for base in BASES
            for folder in self._folders
            if folder.startswith(base)
        } - {"run"}

    def _has_path(self, reference: str, function: str, file: str) -> bool:
        paths = find_candidates(reference, file)
        if function:
            defined = rf"^(?:async )?def {function}\("
            return any(
                re.search(defined, _read(p), re.MULTILINE) for p in paths if p in self._files
            )
        return any(
            p in self._files or p in self._folders or f"{p}.py" in self._files for p in paths
        )

    def _has_name(self, name: str, reference: str, file: str) -> bool:
        """Return whether a file defines a name and its class, or has the name in quotes, as it has
        that of a config."""
        paths = [p for p in find_candidates(reference, file) if p in self._files]
        owner, _, last = name.rpartition(".")
        patterns = [rf"\b(?:def|class) {last}\b|\b{last}:|\b{last} = |[\"']{re.escape(name)}[\"']"]
        if owner[:1].isupper():
            patterns.append(rf"\bclass {owner}\b")
        return not paths or any(all(re.search(x, _read(p)) for x in patterns) for p in paths)

    def _has_module(self, reference: str, file: str) -> bool:
        """Return whether a module exists and contains the next part of the name, if any."""
        parts = reference.split(".")
        for count in range(len(parts), 0, -1):
            paths = find_candidates("/".join(parts[:count]), file)
            existing = [p for p in paths if p in self._folders or f"{p}.py" in self._files]
            if existing and count == len(parts):
                return True
            if existing:
                modules = [f for p in existing for f in (f"{p}.py", f"{p}/__init__.py")]
                defined = rf"\b{parts[count]}\b"
                return any(re.search(defined, _read(f)) for f in modules if f in self._files)
        return False

    def find_stale(self, text: str, file: str) -> Iterator[str]:
        """Yield the references of a text that name nothing, each with its line."""
        for number, line in enumerate(text.splitlines(), 1):
            for target in TARGET.findall(line):
                if target not in self._targets:
                    yield f"{number}: make {target}"
            if "`" not in line:
                continue
            for stale in self._find_in_line(line, file):
                yield f"{number}: {stale}"

    def _find_in_line(self, line: str, file: str) -> Iterator[str]:
        for reference, function in PATH.findall(line):
            first = reference.split("/")[0]
            if first in self._first and not self._has_path(reference, function, file):
                yield f"{reference}{'::' * bool(function)}{function}"
        for name, reference in PLACED.findall(line):
            if not self._has_name(name, reference, file):
                yield f"{name} in {reference}"
        for reference in MODULE.findall(line):
            if not self._has_module(reference, file):
                yield reference


def check_tree(files: list[File]) -> Iterator[str]:
    """Yield the references that name nothing."""
    makefile = "".join(file.text for file in files if file.name == "Makefile")
    references = References((file.name for file in files), makefile)
    for file in files:
        if file.path.suffix in CHECKED and file.name not in EXCEPT:
            for problem in references.find_stale(file.text, file.name):
                yield f"{file.name}:{problem}: no such file, function, module or target; correct it"
