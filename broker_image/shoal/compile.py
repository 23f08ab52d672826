"""Compiles the extension modules where there is a C compiler: `python -m shoal.compile`.

So do `pip install`, `make venv` and the broker's image. Without a compiler, or Python's headers,
everything works in Python alone, and costs more (docs/adr/0042-compile-the-key-order-loops-in-c.md,
0046, 0051).

`python compile.py [FOLDER]` compiles for the Python that runs it and prints one line for each
module; FOLDER holds the package `shoal`, and is that of this file unless it is given. The exit
status is 0 either way. This file imports nothing of the project, so that it runs before it is
installed.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple


class Extension(NamedTuple):
    """A folder of C sources and the module that they make."""

    name: str
    sources: str
    module: str


class Target(NamedTuple):
    """The Python that a module is for: the folder of its headers, and how its modules end."""

    headers: Path
    suffix: str


EXTENSIONS = (
    Extension(
        "Loops of key order",
        "shoal/coordinator/share/native",
        "shoal/coordinator/share/_share_native",
    ),
    Extension("Validation of records", "shoal/record/native", "shoal/record/_record_native"),
)
FLAGS = ["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter"]
#: A function that this Python does not declare would return an int.
FLAGS += ["-Werror=implicit-function-declaration"]


def batch_constants(folder: Path) -> list[str]:
    """Return the layout of record batches as -D flags. Raises `OSError`."""
    layout = runpy.run_path(str(folder / "shoal/record/layout.py"))
    return [f"-D{name}={value}" for name, value in layout["C_CONSTANTS"].items()]


def get_own_target() -> Target:
    """Return the Python that runs this."""
    return Target(Path(sysconfig.get_path("include")), sysconfig.get_config_var("EXT_SUFFIX"))


def module_path(folder: Path, extension: Extension, target: Target) -> Path:
    """Return the file that a module is compiled into."""
    return folder / f"{extension.module}{target.suffix}"


def build(folder: Path, extension: Extension, target: Target) -> str | None:
    """Compile in place: None on success, else the reason of the failure. The compiler is that of
    the variable CC, which makes code for the target's machine."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not shutil.which(command[0]):
        return f"there is no C compiler ({command[0]})"
    if not (target.headers / "Python.h").exists():
        return f"there is no Python.h in {target.headers}"
    try:
        defines = batch_constants(folder)
    except OSError as error:
        return str(error)
    made = module_path(folder, extension, target)
    part = made.with_name(f"{made.name}.part{os.getpid()}")
    found = (folder / extension.sources).glob("*.c")
    # Relative to the folder: a module has the same bytes wherever it is compiled.
    sources = sorted(str(path.relative_to(folder)) for path in found)
    output = str(part.relative_to(folder))
    done = subprocess.run(
        [*command, *FLAGS, *defines, f"-I{target.headers}", "-o", output, *sources],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        part.unlink(missing_ok=True)
        return done.stderr.strip()
    part.replace(made)  # A process that has loaded the old one keeps it.
    return None


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    for extension in EXTENSIONS:
        refused = build(folder, extension, get_own_target())
        outcome = "compiled" if refused is None else f"left in Python: {refused}"
        print(f"{extension.name}: {outcome}.", file=sys.stderr)


if __name__ == "__main__":
    main()
