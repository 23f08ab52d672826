"""The Python packages of a release, built from a clone and installed outside of it."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import environments
import pytest
from release_builds import VERSION, build

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    build(folder / "clone", folder / "out", "python")
    return folder / "out" / "python"


def test_another_build_gives_the_same_bytes(packages: Path, tmp_path: Path) -> None:
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
    assert modules == [["_bulk", "_walk"], []]


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


def test_a_wheel_alone_serves_a_queue(installed: Path, bootstrap: str, tmp_path: Path) -> None:
    def run(*words: str, text: str = "") -> str:
        environment = {**os.environ, "SHOAL_BOOTSTRAP_SERVERS": bootstrap}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [installed / words[0], *words[1:]],
            cwd=tmp_path,
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    where = "from shoal.record import walker; print(walker.native.__file__)"
    assert run("python", "-c", where).startswith(str(tmp_path))
    assert VERSION in run("shoal", "--version")
    run("shoal", "topics", "create", "jobs", "--partitions", "2")
    run("shoal", "produce", "jobs", text="one\ntwo\n")
    shown = "--format={value}"
    consume = ("share-consume", "jobs", "--group=workers", "--from-beginning", "-n", "2")
    assert sorted(run("shoal", *consume, shown).split()) == ["one", "two"]
