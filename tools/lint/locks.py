"""Images install packages by their hashes, and the locks agree with pyproject.toml and each other.

An index may serve another file under the same version, and a newer version that no test has seen.
`make lock` writes the locks, which `tools/lock.py` describes.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import lock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lint.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lint.tree import File

FOLDER = "tools/locks/"
#: A program that fetches from an index or from the web.
FETCHES = re.compile(
    r"\b(pip3?|uv pip|pipx)\s+(install|download|wheel)\b|\beasy_install\b|\b(curl|wget)\s+[-\"'h]|"
    r"^ADD\s.*\bhttps?://"
)
#: Where one command of a shell ends.
_END = re.compile(r"&&|\|\||[;|]")
_PIN = re.compile(r"^(?=\S)", re.MULTILINE)


class Pin(NamedTuple):
    """A package of a lock with its version, where a marker holds."""

    name: str
    version: str
    marker: str


def find_unhashed(steps: str) -> Iterator[str]:
    """Yield the commands of a Containerfile that fetch what no hash pins."""
    for line in steps.replace("\\\n", " ").splitlines():
        for command in _END.split(line) if not line.startswith("#") else ():
            is_local = {"--no-index", "--no-deps"} <= set(command.split())
            if FETCHES.search(command) and "--require-hashes" not in command and not is_local:
                yield " ".join(command.split())


def check_file(file: File) -> Iterator[str]:
    """Yield the commands of a Containerfile that fetch what no hash pins."""
    if file.path.name == "Containerfile":
        for command in find_unhashed(file.text):
            yield f"{file.name}: install with --require-hashes from tools/locks: {command}"


def read_pins(text: str) -> Iterator[Pin]:
    """Iterate over the pins of a lock. Raises `ValueError` for one without a hash."""
    for block in filter(None, _PIN.split(text)):
        head = block.partition("\\")[0].strip()
        if "--hash=sha256:" not in block:
            raise ValueError(f"{head} has no hash")
        requirement = Requirement(head)
        (version,) = requirement.specifier
        yield Pin(
            canonicalize_name(requirement.name), version.version, str(requirement.marker or "")
        )


def find_wanted(pyproject: Mapping[str, object]) -> dict[str, tuple[list[str], list[str]]]:
    """Return, for each lock, the requirements in pyproject.toml, and the locks that pin them."""
    project, groups = pyproject["project"], pyproject["dependency-groups"]
    assert isinstance(project, dict)
    assert isinstance(groups, dict)
    always, extras = project["dependencies"], project["optional-dependencies"]
    requirements = {"dev": ([*always, *_join(extras, lock.BASE)], ["dev"])}
    for name in sorted(extras.keys() - set(lock.BASE)):
        held = [name] if name in lock.WHOLE else [name, "dev"]
        requirements[name] = ([*(always if name in lock.WHOLE else ()), *extras[name]], held)
    for image, names in lock.IMAGES.items():
        name = f"image-{image}"
        requirements[name] = ([*always, *_join(extras, names)], [name])
    return requirements | {lock.BUILD: (groups[lock.BUILD], [lock.BUILD])}


def _join(extras: Mapping[str, list[str]], names: Iterable[str]) -> list[str]:
    return [requirement for name in names for requirement in extras[name]]


def find_missing(requirements: Iterable[str], pins: Iterable[Pin]) -> Iterator[str]:
    """Yield the requirements that no pin satisfies."""
    versions_of = defaultdict(list)
    for pin in pins:
        versions_of[pin.name].append(pin.version)
    for requirement in map(Requirement, requirements):
        versions = versions_of[canonicalize_name(requirement.name)]
        if not any(requirement.specifier.contains(version) for version in versions):
            yield f"pyproject.toml wants {requirement}, and it has {versions}"


def find_faults(pyproject: Mapping[str, object], locks: Mapping[str, str]) -> Iterator[str]:
    """Yield what locks, each by its name, lack, have too much, or disagree about."""
    pins: dict[str, list[Pin]] = {}
    for name, text in locks.items():
        try:
            pins[name] = list(read_pins(text))
        except ValueError as error:
            yield f"{name}.txt: {error}"
    by_lock = find_wanted(pyproject)
    for name in sorted(by_lock.keys() ^ locks.keys()):
        yield f"{name}.txt: {'no extra has it' if name in locks else 'it is missing'}"
    for name in sorted(by_lock.keys() & pins.keys()):
        requirements, held = by_lock[name]
        there = [pin for other in held for pin in pins.get(other, ())]
        for fault in find_missing(requirements, there):
            yield f"{name}.txt: {fault}"
    versions_of = defaultdict(set)
    for of_lock in pins.values():
        for pin in of_lock:
            versions_of[pin.name, pin.marker].add(pin.version)
    for (package, _), several in versions_of.items():
        if len(several) > 1:
            yield f"the locks have {package} in the versions {', '.join(sorted(several))}"


def check_tree(files: list[File]) -> Iterator[str]:
    """Yield where the locks do not follow from pyproject.toml."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locks = {f.path.stem: f.text for f in files if f.name.startswith(FOLDER)}
    for fault in find_faults(pyproject, locks):
        yield f"{FOLDER}{fault}. Run `make lock`"
