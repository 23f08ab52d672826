"""Names the programs that a target of the Makefile needs and this machine lacks, in one list.

    python3 tools/prerequisites.py test
    python3 tools/prerequisites.py --left-out test

As root on Debian it installs them by apt instead. Otherwise it prints the command that does. It
exits with 1 if the target cannot run without them, and with CI=true if anything is missing. At
other times `make test` continues, and `--left-out` says at its end which tests did not run.

This file runs before there is a virtual environment: it needs the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PYTHON_MIN = (3, 11)


class Program(NamedTuple):
    """A program, or a part of Python, that is no Python package."""

    #: One of these is on the PATH. A name with a slash is a file below Python's own folders.
    names: tuple[str, ...]
    #: Debian's packages.
    packages: str
    #: What it is for.
    purpose: str
    #: Targets that fail without it.
    needed_by: tuple[str, ...]
    #: Targets that leave tests out, or do the same more slowly, without it.
    used_by: tuple[str, ...] = ()


_JAVA = ("java", "compat", "spark", "e2e", "demo", "nightly")
PROGRAMS = (
    Program(("ensurepip",), "python3-venv", "the virtual environment", ("venv",), ("test",)),
    Program(("git",), "git", "releases and the history of the tree", ("release",), ("test",)),
    Program(("cc",), "gcc libc6-dev", "the compiled modules", (), ("test", "nightly")),
    Program(("Python.h",), "python3-dev", "the compiled modules", (), ("test", "nightly")),
    Program(("java",), "default-jre-headless", "Kafka's clients, and Spark", _JAVA, ("test",)),
    Program(
        ("mvn",),
        "maven",
        "Kafka's jars from Maven Central",
        tuple(target for target in _JAVA if target != "demo"),
        ("test",),
    ),
    Program(("kcat",), "kcat", "the tests of kcat", ("compat", "nightly"), ("test",)),
    Program(
        ("chromium", "chromium-browser", "google-chrome"),
        "chromium fonts-dejavu-core",
        "the console in a browser",
        ("compat", "nightly"),
        ("test",),
    ),
    Program(("npm",), "npm", "axe-core and kafkajs, for tests", ("compat", "nightly"), ("test",)),
    Program(("node",), "nodejs", "the tests of kafkajs", ("compat", "nightly"), ("test",)),
    Program(("ip",), "iproute2", "networks of several hosts", ("nightly",), ("test",)),
    Program(("openssl",), "openssl", "the tests of its TLS client", (), ("test", "compat")),
    Program(("debootstrap",), "debootstrap", "tests with Python 3.14", ("nightly",)),
    Program(("mmdebstrap",), "mmdebstrap", "headers of Python 3.14", ("release", "nightly")),
    Program(("qemu-aarch64-static",), "qemu-user-static", "wheels for aarch64", ("nightly",)),
    Program(("valgrind",), "valgrind", "counts of instructions", ("bench-instructions", "nightly")),
)


def is_there(program: Program) -> bool:
    """Whether this machine has one of a program's names."""
    for name in program.names:
        if name == "ensurepip":
            exists = find_spec(name) is not None
        elif name.endswith(".h"):
            exists = (Path(sysconfig.get_path("include")) / name).exists()
        else:
            exists = shutil.which(name) is not None
        if exists:
            return True
    return False


def find_missing(target: str) -> list[Program]:
    """Return what a target needs or uses, and this machine lacks, in the order of the table."""
    needed = (p for p in PROGRAMS if target in (*p.needed_by, *p.used_by))
    return [program for program in needed if not is_there(program)]


def build_apt_command(missing: list[Program]) -> list[str]:
    """Return the command that installs them on Debian."""
    packages = [name for program in missing for name in program.packages.split()]
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def install(missing: list[Program]) -> None:
    """Install by apt. What it cannot install is still missing afterwards."""
    command = build_apt_command(missing)
    print(f"Installing what is missing: {' '.join(command)}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], stdout=subprocess.DEVNULL, check=False)
    subprocess.run([*command, "-q"], stdout=subprocess.DEVNULL, env=quiet, check=False)


def describe(missing: list[Program], target: str) -> str:
    """Return one line for each, and whether the target continues without it."""
    lines = []
    for program in missing:
        without = "" if target in program.needed_by else "; left out without it"
        lines.append(f"  {program.names[0]:10} for {program.purpose}{without}")
    return "\n".join(lines)


def is_strict() -> bool:
    """Whether nothing may be left out, as in CI."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def main(words: list[str]) -> int:
    target = words[-1]
    if sys.version_info < PYTHON_MIN:
        print("Shoal needs Python 3.11 or newer; set PYTHON=/path/to/python3.11.", file=sys.stderr)
        return 1
    missing = find_missing(target)
    if words[0] == "--left-out":
        if missing:
            print(f"`make {target}` left out what needs these:\n{describe(missing, target)}")
            print(f"To run all: {' '.join(build_apt_command(missing))}")
        return 0
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        install(missing)
        missing = find_missing(target)
    if not missing:
        return 0
    print(f"`make {target}` needs programs that this machine lacks:", file=sys.stderr)
    print(describe(missing, target), file=sys.stderr)
    print(f"On Debian: {' '.join(build_apt_command(missing))}", file=sys.stderr)
    return int(is_strict() or any(target in program.needed_by for program in missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
