"""The Python packages of a release, built from a clone and installed outside of it."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.brokers.local_up import LocalUp
from support.pages.console import files
from support.runs import environments
from support.runs.conditions import ceiling, eventually, stopwatch
from support.runs.release_builds import VERSION, build

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Packing everything takes fifteen seconds of CPU, and each installation some. By day, the unit
#: tests have what a release exports (`test_release`) and the compiler (`test_compile`).
pytestmark = pytest.mark.nightly
LAPTOP = Path(__file__).parents[3] / "docs" / "quickstart" / "laptop.md"
#: The packages of the extra `up`.
UP = ("jsonschema-rs", "common-expression-language")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    build(folder / "clone", folder / "out", "python")
    return folder / "out" / "python"


def test_another_build_gives_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    """It compiles and packs everything once more, which takes half a minute of CPU."""
    build(tmp_path / "elsewhere", tmp_path / "out", "python")
    sums = [(out / "SHA256SUMS").read_text() for out in (packages.parent, tmp_path / "out")]
    assert sums[0] == sums[1]


def test_only_the_wheel_of_this_platform_has_compiled_modules(packages: Path) -> None:
    compiled, pure = sorted(packages.glob("*.whl"))
    assert compiled.name.startswith(f"shoal-{VERSION}-cp311-cp311-manylinux")
    assert compiled.name.endswith("manylinux_2_17_x86_64.whl")
    assert pure.name == f"shoal-{VERSION}-py3-none-any.whl"
    modules = [
        sorted(Path(name).name.split(".")[0] for name in wheel.namelist() if name.endswith(".so"))
        for wheel in map(zipfile.ZipFile, (compiled, pure))
    ]
    assert modules == [["_share_native", "_record_native"], []]


def test_the_source_package_has_no_tests_or_compiled_modules(packages: Path) -> None:
    (path,) = packages.glob("*.tar.gz")
    with tarfile.open(path) as files:
        names = files.getnames()
    assert f"shoal-{VERSION}/broker_image/shoal/cli/__main__.py" in names
    assert not [name for name in names if name.endswith(".so") or "tests" in Path(name).parts]


@pytest.fixture
def installed(packages: Path, tmp_path: Path) -> Path:
    """A fresh environment with the compiled wheel."""
    python = environments.make(tmp_path / "venv", *environments.needs_of("shoal"))
    (wheel,) = packages.glob("*manylinux*.whl")
    environments.install(python, wheel)
    return python.parent


@pytest.fixture
def bootstrap(installed: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server that runs from the environment."""
    command = [str(installed / "shoal"), "server", "--listener=127.0.0.1:0", "--data-dir=data"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"listens on (127\.0\.0\.1:\d+)", said)
        assert found is not None, said
        for line in server.stdout:
            if line.startswith("Ready"):
                break
        yield found[1]
        server.terminate()


def run_installed(
    programs: Path, folder: Path, *words: str, text: str = "", **environment: str
) -> str:
    """Run a program of an environment in a folder, and return what it prints."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, **environment}
    variables.pop("PYTHONPATH", None)
    done = subprocess.run(
        [programs / words[0], *words[1:]],
        cwd=folder,
        env=variables,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wheel_alone_serves_a_queue(installed: Path, bootstrap: str, tmp_path: Path) -> None:
    def run(*words: str, text: str = "") -> str:
        return run_installed(
            installed, tmp_path, *words, text=text, SHOAL_BOOTSTRAP_SERVERS=bootstrap
        )

    where = "from shoal.record import batch_validation; print(batch_validation.native.__file__)"
    assert run("python", "-c", where).startswith(str(tmp_path))
    assert VERSION in run("shoal", "--version")
    run("shoal", "topics", "create", "jobs", "--partitions", "2")
    run("shoal", "produce", "jobs", text="one\ntwo\n")
    shown = "--format={value}"
    consume = ("share-consume", "jobs", "--group=workers", "--from-beginning", "-n", "2")
    assert sorted(run("shoal", *consume, shown).split()) == ["one", "two"]


def test_a_wheel_runs_the_queue_of_a_laptop_within_a_minute(packages: Path, tmp_path: Path) -> None:
    """From the installation to consumers beyond the partitions, which is what the page promises and
    why this takes ten seconds. The page's own test runs in the checkout, with all packages."""
    up = LocalUp(tmp_path)
    with stopwatch() as passed_s:
        python = environments.make(tmp_path / "venv", *environments.needs_of("shoal"), *UP)
        (wheel,) = packages.glob("*manylinux*.whl")
        environments.install(python, wheel)
        for name, text in files(LAPTOP.read_text()).items():
            if name.endswith(".yaml"):
                (tmp_path / name).write_text(text)
        run = partial(run_installed, python.parent, tmp_path, "shoal")
        try:
            assert "Everything is ready" in run("up", "--detach")
            run("produce", "jobs", text="job\n" * 200)
            eventually(lambda: up.get_status("shareconsumer", "printers")["desiredReplicas"] == 4)
            took_s = passed_s()
        finally:
            run("down")
    assert took_s < ceiling(60)
