"""Wheels with compiled modules for each CPython and machine that `packages` does not run on.

One machine builds all wheels: this machine's C compiler those for x86_64, and Zig's, which makes
code for any machine and any glibc, those for aarch64. (For x86_64, Zig lacks what the modules ask
about the processor.) Each needs the headers of its CPython: those of an installed one, else those
of the Debian that has it. They are the same on both machines, but for what no module uses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.layout import CACHE

from release import packages
from release.checkout import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from release.checkout import Checkout

PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
MACHINES = ("x86_64", "aarch64")
#: The oldest glibc that the modules work with, which is that of `packages.PLATFORM`.
GLIBC = "2.17"
#: The compiler for other machines than this one.
CROSS = {"aarch64": f"{sys.executable} -m ziglang cc -target aarch64-linux-gnu.{GLIBC}"}
#: The Debian with a CPython. None has 3.12.
SUITES = {(3, 11): "bookworm", (3, 13): "trixie", (3, 14): "forky"}


def build(checkout: Checkout, sources: Path, into: Path) -> None:
    """Build the wheels from the exported `sources`. Raises `ReleaseError`."""
    into.mkdir(exist_ok=True)
    for python in PYTHONS:
        headers = find_headers(python)
        for machine in MACHINES:
            if (python, machine) != (packages.PYTHON, "x86_64"):
                _build_wheel(checkout, sources, into, python, machine, headers)


def _build_wheel(
    checkout: Checkout,
    sources: Path,
    into: Path,
    python: tuple[int, int],
    machine: str,
    headers: Path,
) -> None:
    _remove_modules(sources)
    name = f"cp{python[0]}{python[1]}"
    environment = packages.make_environment(checkout) | {
        "SHOAL_WHEEL": "compiled",
        "SHOAL_WHEEL_TAG": f"{name}-{name}-linux_{machine}",
        "SHOAL_WHEEL_HEADERS": str(headers),
    }
    if machine in CROSS:
        environment["CC"] = CROSS[machine]
    folder = sources / "cross-compiled"
    hatch = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    packages.run(hatch, sources, environment)
    (made,) = folder.glob("*.whl")
    # It names the oldest glibc that the modules work with; other machines can only be found out.
    repair = [sys.executable, "-m", "auditwheel", "repair", "--plat=auto", f"--wheel-dir={into}"]
    packages.run([*repair, str(made)], sources, environment)
    shutil.rmtree(folder)
    _remove_modules(sources)
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    if not list(into.glob(f"*-{name}-{name}-*{platform}.whl")):
        raise ReleaseError(f"The modules for {name} on {machine} need more than glibc {GLIBC}.")


def _remove_modules(sources: Path) -> None:
    """Remove the modules of another wheel, which hatchling would put into the next one."""
    for module in sources.glob("broker_image/shoal/**/*.so"):
        module.unlink()


def find_headers(python: tuple[int, int]) -> Path:
    """Return the folder with the headers of a CPython. Raises `ReleaseError`."""
    for program in _list_interpreters(python):
        asked = "import sysconfig; print(sysconfig.get_path('include'))"
        done = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=False)
        folder = Path(done.stdout.strip())
        if done.returncode == 0 and (folder / "Python.h").exists():
            return folder
    version = ".".join(map(str, python))
    if python not in SUITES:
        raise ReleaseError(
            f"The headers of CPython {version} are missing, and no Debian has them. Install that "
            f"Python with its headers, so that python{version} or pyenv finds it."
        )
    include = extract_debian(python, "amd64", f"libpython{version}-dev") / "usr" / "include"
    headers = include / f"python{version}"
    # Debian's own includes that of the machine, from a folder with the headers of its glibc.
    shutil.copy(include / "x86_64-linux-gnu" / headers.name / "pyconfig.h", headers)
    return headers


def _list_interpreters(python: tuple[int, int]) -> Iterator[str]:
    name = f"python{python[0]}.{python[1]}"
    if interpreter := shutil.which(name):
        yield interpreter
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/*/bin/{name}")))


def extract_debian(python: tuple[int, int], architecture: str, package: str) -> Path:
    """Return a folder with the files of a package of the Debian that has this CPython, and of what
    it depends on. Raises `ReleaseError`."""
    suite = SUITES[python]
    folder = CACHE / "debian" / f"{suite}-{architecture}-{package}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_suffix(f".{os.getpid()}")
    # A mirror may be some weeks old, and another machine's programs are not run.
    options = ["--aptopt=Acquire::Check-Valid-Until false", "--skip=check/qemu"]
    command = ["mmdebstrap", "--quiet", "--variant=extract", "--format=directory", *options]
    words = (f"--architecture={architecture}", f"--include={package}", suite, str(partial))
    packages.run([*command, *words], folder.parent, dict(os.environ))
    if not (partial / "lib").exists():
        # A package that is not extracted makes this link.
        (partial / "lib").symlink_to("usr/lib")
    partial.rename(folder)
    return folder
