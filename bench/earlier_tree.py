"""Earlier trees from the history of git, such as the last one before security. They run with the
packages of this one."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from brokers import Shoal

ROOT = Path(__file__).resolve().parents[1]
#: The commit that added this file is the first one of security.
FIRST_FILE = "broker_image/shoal/security/acls.py"


class NoHistory(Exception):
    """The history lacks the tree. The message has the remedy."""


def extract(folder: Path, commit: str) -> Path:
    """Write the tree of a commit into a folder, and return its folder of packages. Raises
    `NoHistory`."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, "broker_image"))) as archive:
        archive.extractall(folder, filter="data")
    found = folder / "broker_image"
    assert (found / "shoal" / "server").is_dir()
    return found


def compiled(packages: Path) -> Path:
    """Compile the loops of extracted packages, by the program where older trees have it, too."""
    programs = (packages / "shoal" / "compile.py", packages / "compile.py")
    program = next(path for path in programs if path.exists())
    words = [sys.executable, str(program), str(packages)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return packages


class OfTree(Shoal):
    """A broker of another tree."""

    packages: Path

    def command(self) -> list[str]:
        return ["env", f"PYTHONPATH={self.packages}", *super().command()]


def before_security() -> str:
    """Return the last commit before security. Raises `NoHistory`."""
    if _git("rev-parse", "--is-shallow-repository").strip() == b"true":
        raise NoHistory("the history of this checkout is shallow: run git fetch --unshallow")
    found = _git("log", "--diff-filter=A", "--format=%H", "--", FIRST_FILE).decode().split()
    if not found:
        raise NoHistory(f"the history of this checkout lacks the commit that added {FIRST_FILE}")
    return _git("rev-parse", f"{found[-1]}^").decode().strip()


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        raise NoHistory(f"git {words[0]} fails: {done.stderr.decode().strip()}")
    return done.stdout
