"""The files of the tree that git tracks, or that it would track, each read once."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = frozenset({".py", ".md", ".yaml", ".yml", ".sh", ".go", ".toml"})
_NAMES = frozenset({"Makefile", "Containerfile", "run"})


class File:
    """A file of the tree: its name relative to the root, and its text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = ROOT / name

    @functools.cached_property
    def text(self) -> str:
        """The text; bytes that are not UTF-8 are replaced, as in images."""
        return self.path.read_text(errors="replace")

    @property
    def is_python(self) -> bool:
        return self.path.suffix == ".py"

    @property
    def is_source(self) -> bool:
        """Whether people write it as text: code, documents, manifests."""
        return self.path.suffix in _SOURCES or self.path.name in _NAMES


def list_tracked_files() -> list[File]:
    """Return all files that git tracks, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [File(name) for name in sorted(set(listed.splitlines())) if (ROOT / name).is_file()]
