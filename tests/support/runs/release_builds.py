"""Releases that tests build, from a clone of the last commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from release.checkout import read_versions

ROOT = Path(__file__).resolve().parents[3]
VERSION = read_versions(ROOT)["pyproject.toml"]


def build(clone: Path, into: Path, *parts: str) -> None:
    """Clone the last commit and write these parts of a release, as `make release` does."""
    subprocess.run(["git", "clone", "-q", "--shared", ROOT, clone], check=True)
    only = f"--only={','.join(parts)}"
    command = [sys.executable, "-m", "release", VERSION, only, f"--into={into}"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{clone / 'tests'}:{clone / 'tools'}",
    }
    subprocess.run(command, cwd=clone, env=environment, check=True)
