"""The sdist, a clone and an editable clone, installed by pip into fresh environments: with a C
compiler all have the compiled modules, and without one `python -m shoal.compile` makes them later.

An installation compiles 3,000 lines of C, and pip copies everything, which takes five seconds each.
So they run at night. `test_compile` runs the compiler each day, and CI's own environment is made by
`python -m shoal.compile`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import environments

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("broker_image", "operator", "spark_operator_jobs")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore")
MODULES = (
    "from shoal.record import batch_validation; from shoal.coordinator.share import compiled;"
    "print([getattr(one.native, '__file__', None) for one in (batch_validation, compiled)])"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The sources without compiled modules."""
    folder = tmp_path / "clone"
    built = shutil.ignore_patterns("*.so", "__pycache__")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fresh environment with the build back-end and the dependencies of Shoal."""
    needs = environments.needs_of("shoal")
    return environments.make(tmp_path / "venv", "hatchling", "editables", *needs)


def run(python: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's Python where no source is on its path."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, *words],
        cwd=python.parent,
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=True,
    )


def modules(python: Path) -> list[str | None]:
    """Return the files of the two compiled modules, None for one that is left in Python."""
    return list(eval(run(python, "-c", MODULES, PURE_PYTHON="").stdout))


def sdist(clone: Path) -> str:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist"]
    subprocess.run(build, cwd=clone, check=True)
    return str(next((clone / "dist").glob("*.tar.gz")))


@pytest.mark.nightly
def test_without_a_compiler_the_modules_can_be_compiled_later(clone: Path, python: Path) -> None:
    environments.install(python, ".", folder=clone, CC="no-such-compiler")
    assert modules(python) == [None, None]
    said = run(python, "-m", "shoal.compile").stderr
    assert said.count(": compiled.") == 2
    for path in modules(python):
        assert path is not None
        assert Path(path).is_relative_to(python.parents[1])


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["sdist", "clone", "editable"])
def test_an_installation_compiles_the_modules(what: str, clone: Path, python: Path) -> None:
    words = {
        "sdist": lambda: [sdist(clone)],
        "clone": lambda: ["."],
        "editable": lambda: ["-e", "."],
    }
    environments.install(python, *words[what](), folder=clone)
    where = clone if what == "editable" else python.parents[1]
    for path in modules(python):
        assert path is not None
        assert Path(path).is_relative_to(where)


@pytest.mark.nightly
def test_an_editable_clone_without_a_compiler_is_installed(clone: Path, python: Path) -> None:
    environments.install(python, "-e", ".", folder=clone, CC="no-such-compiler")
    assert modules(python) == [None, None]
