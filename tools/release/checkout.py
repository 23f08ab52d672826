"""The commit that is released."""

from __future__ import annotations

import re
import subprocess
import tarfile
import tomllib
from io import BytesIO
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from pathlib import Path

#: A version as semver.org defines it, which is also a version of Python packages (PEP 440).
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class ReleaseError(Exception):
    """Why nothing can be released, and what to do."""


class Checkout:
    """A clean checkout whose files all have the version of the release."""

    def __init__(self, folder: Path, version: str) -> None:
        """Raises `ReleaseError`."""
        self.folder, self.version = folder, version
        if not _VERSION.fullmatch(version):
            raise ReleaseError(f"{version!r} is not a version: give three numbers, such as 0.2.0.")
        changed = self._git("status", "--porcelain")
        if changed:
            raise ReleaseError(
                f"The checkout has changes that no commit has:\n{changed}\nCommit or stash them."
            )
        for path, stated in read_versions(folder).items():
            if stated != version:
                raise ReleaseError(
                    f"{path} has version {stated}, not {version}. Change it and commit."
                )
        self.commit = self._git("rev-parse", "HEAD")
        self.notes = read_notes(folder, version)
        #: Time of the commit in seconds since 1970, for all files of the artifacts.
        self.time_s = int(self._git("log", "-1", "--format=%ct"))

    def export(self, into: Path) -> None:
        """Write the files of the commit, and nothing else, into a folder."""
        done = subprocess.run(
            ["git", "archive", "HEAD"], cwd=self.folder, capture_output=True, check=True
        )
        with tarfile.open(fileobj=BytesIO(done.stdout)) as files:
            files.extractall(into, filter="data")

    def _git(self, *words: str) -> str:
        try:
            done = subprocess.run(
                ["git", *words], cwd=self.folder, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise ReleaseError("git is not installed.") from None
        if done.returncode:
            raise ReleaseError(f"git {words[0]} failed: {done.stderr.strip()}")
        return done.stdout.strip()


def read_versions(folder: Path) -> dict[str, str]:
    """Return the version in each file that has one, by the name of the file."""
    read = {name: (folder / name).read_text() for name in _FILES}
    project = tomllib.loads(read["pyproject.toml"])["project"]
    chart = yaml.safe_load(read["helm/shoal/Chart.yaml"])
    (in_code,) = re.findall(r'(?m)^__version__ = "(.*)"', read["broker_image/shoal/__init__.py"])
    return {
        "pyproject.toml": project["version"],
        "broker_image/shoal/__init__.py": in_code,
        "helm/shoal/Chart.yaml (version)": chart["version"],
        "helm/shoal/Chart.yaml (appVersion)": str(chart["appVersion"]),
    }


def read_notes(folder: Path, version: str) -> str:
    """Return the changelog's section of a version. Raises `ReleaseError` without one."""
    text = (folder / "CHANGELOG.md").read_text()
    match = re.search(rf"(?ms)^## {re.escape(version)}(?= |$)[^\n]*\n(.*?)(?=^## |\Z)", text)
    if match is None:
        raise ReleaseError(f"CHANGELOG.md has no section {version!r}. Add it and commit.")
    return match[1].strip() + "\n"


_FILES = ("pyproject.toml", "broker_image/shoal/__init__.py", "helm/shoal/Chart.yaml")
