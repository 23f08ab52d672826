"""`shoal.compile`: its output and its files, with and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.runs.machine import lacking

BROKER = Path(__file__).resolve().parents[3] / "broker_image"
NATIVE = "shoal/coordinator/share/native"
WALK = "shoal/record/native"
LAYOUT = "shoal/record/layout.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for sources in (NATIVE, WALK):
        shutil.copytree(BROKER / sources, tmp_path / sources)
    shutil.copy(BROKER / LAYOUT, tmp_path / LAYOUT)
    return tmp_path


def compiled(folder: Path, **env: str) -> tuple[str, list[str]]:
    """Run the program, which exits with 0. Return its output, and the new files beside the
    sources."""
    words = [sys.executable, str(BROKER / "shoal" / "compile.py"), str(folder)]
    done = subprocess.run(
        words, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    made = (x for sources in (NATIVE, WALK) for x in (folder / sources).parent.iterdir())
    return done.stderr, sorted(x.name for x in made)


def test_without_a_compiler_everything_is_left_in_python(folder: Path) -> None:
    said, names = compiled(folder, CC="no-such-compiler")
    assert said == (
        "Loops of key order: left in Python: there is no C compiler (no-such-compiler).\n"
        "Validation of records: left in Python: there is no C compiler (no-such-compiler).\n"
    )
    assert names == ["layout.py", "native", "native"]


def test_without_the_layout_of_batches_everything_is_left_in_python(folder: Path) -> None:
    (folder / LAYOUT).unlink()
    said, names = compiled(folder, CC=sys.executable)
    assert said.count("left in Python") == 2
    assert "layout.py" in said
    assert names == ["native", "native"]


def test_a_compiler_that_fails_leaves_nothing_behind(folder: Path) -> None:
    for source in folder.rglob("*.c"):
        source.write_text("no C")
    said, names = compiled(folder, CC=os.environ.get("CC", "cc"))
    assert said.count("left in Python") == 2
    assert names == ["layout.py", "native", "native"]


@pytest.mark.nightly
def test_with_a_compiler_there_is_a_module(folder: Path) -> None:
    """By day, the tests of the compiled loops have the modules that `make venv` has compiled."""
    if not shutil.which("cc"):
        lacking("there is no C compiler")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacking("there is no Python.h")
    said, names = compiled(folder)
    assert said == "Loops of key order: compiled.\nValidation of records: compiled.\n"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert names == [
        f"_share_native{suffix}",
        f"_record_native{suffix}",
        "layout.py",
        "native",
        "native",
    ]
