"""Fresh environments that need no network: their packages are links to those of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


def make(folder: Path, *requirements: str) -> Path:
    """Create an environment with these packages and all that they need; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    into = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in _with_their_needs(requirements):
        found = distribution(name)
        for path in found.files or ():
            top = into / path.parts[0]
            if path.parts[0] not in ("..", "__pycache__") and not top.exists():
                top.symlink_to(Path(str(found.locate_file(path.parts[0]))))
    return python


def needs_of(project: str) -> list[str]:
    """Return the requirements of an installed package without extras, for this Python."""
    found = (Requirement(text) for text in distribution(project).requires or ())
    return [one.name for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def install(python: Path, *words: str | Path, folder: Path | None = None, **env: str) -> None:
    """Install into an environment with pip, from files alone and without dependencies."""
    command: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install"]
    command += [
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--disable-pip-version-check",
        *words,
    ]
    subprocess.run(command, cwd=folder, env={**os.environ, **env}, check=True)


def _with_their_needs(names: tuple[str, ...]) -> list[str]:
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) not in found:
            found[name] = None
            waiting += needs_of(name)
    return list(found)
