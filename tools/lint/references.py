"""Paths and modules that comments, docstrings and documents name in backquotes exist."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from unit.test_tidy import ROOT, name, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator

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
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)/?`")
MODULE = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.(?!py\b)\w+)+)(?:\(\))?`")

FILES = {name(path) for path in tracked()}
FOLDERS = {str(folder) for file in FILES for folder in PurePosixPath(file).parents} - {"."}
#: First parts of paths that mean files of this tree; others are paths in images or of programs.
FIRST = {
    folder.removeprefix(base).split("/")[0]
    for base in BASES
    for folder in FOLDERS
    if folder.startswith(base)
} - {"run"}
#: Not the generated list of configs, some of which look like modules, nor the examples below.
EXCEPT = ("docs/configs.md", name(Path(__file__)))
CHECKED = [p for p in tracked() if p.suffix in {".py", ".md", ".c", ".h"} and name(p) not in EXCEPT]


def candidates(reference: str, file: str) -> list[str]:
    """Return the paths that a reference in a file may mean."""
    around = [f"{folder}/" for folder in PurePosixPath(file).parents if str(folder) != "."]
    return [base + reference for base in (*BASES, *around)]


def path_exists(reference: str, file: str) -> bool:
    paths = candidates(reference, file)
    return any(p in FILES or p in FOLDERS or f"{p}.py" in FILES for p in paths)


def module_exists(reference: str, file: str) -> bool:
    """Return whether a module exists, and contains the next part of the name if there is one."""
    parts = reference.split(".")
    for count in range(len(parts), 0, -1):
        paths = candidates("/".join(parts[:count]), file)
        found = [p for p in paths if p in FOLDERS or f"{p}.py" in FILES]
        if found and count == len(parts):
            return True
        if found:
            sources = [f for p in found for f in (f"{p}.py", f"{p}/__init__.py") if f in FILES]
            defined = rf"\b{parts[count]}\b"
            return any(re.search(defined, (ROOT / f).read_text()) for f in sources)
    return False


def stale(text: str, file: str) -> Iterator[str]:
    """Yield the references of a text that name nothing, each with its line."""
    for number, line in enumerate(text.splitlines(), 1):
        for reference in PATH.findall(line):
            if reference.split("/")[0] in FIRST and not path_exists(reference, file):
                yield f"{number}: {reference}"
        for reference in MODULE.findall(line):
            if not module_exists(reference, file):
                yield f"{number}: {reference}"


def test_references_exist() -> None:
    found = [f"{name(p)}:{hit}" for p in CHECKED for hit in stale(p.read_text(), name(p))]
    assert not found, "these files and modules do not exist:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `server/share/leader.py` and `server.share`", []),
        (
            "`server/outflow.py`, `server.outflow.Sender`",
            ["server/outflow.py", "server.outflow.Sender"],
        ),
        ("`server.share.leader.ShareLeader`", []),
        ("`server.share.leader.NoSuchClass`", ["server.share.leader.NoSuchClass"]),
        ("`/var/lib/shoal`, `lib/x`, `share.version`", []),
    ],
)
def test_stale_references_are_found(text: str, found: list[str]) -> None:
    assert [hit.removeprefix("1: ") for hit in stale(text, "docs/x.md")] == found
