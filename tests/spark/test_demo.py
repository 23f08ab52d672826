"""`shoal demo`, as users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from shoal_spark import java
from shoal_spark.demo.local import clean_environment, list_missing

if TYPE_CHECKING:
    from pathlib import Path

#: Variables of a user who works with other clusters and has another Spark. Each one alone would
#: end the broker, the feeder, the job or the count of the results, or lead them elsewhere.
FOREIGN = {
    "SHOAL_BOOTSTRAP": "127.0.0.1:1",
    "SHOAL_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "SHOAL_CLIENT_SASL_PASSWORD": "secret",
    "SHOAL_COMMAND_CONFIG": "nowhere/client.properties",
    "SHOAL_CONFIG": "nowhere/server.properties",
    "SHOAL_DATA_DIR": "nowhere/data",
    "SHOAL_GROUP_ID": "others",
    "SHOAL_LISTENER": "127.0.0.1:1",
    "SHOAL_LOG_RETENTION_MS": "1",
    "SHOAL_NO_SUCH_CONFIG": "1",
    "SHOAL_PROFILE": "production",
    "SHOAL_SCALE_URL": "http://127.0.0.1:1/",
    "SPARK_HOME": "nowhere/spark",
    "PYSPARK_PYTHON": "nowhere/python",
}
#: Words that run a command on a host whose name does not resolve. Only root may do that.
NAMELESS = ("unshare", "--uts", "sh", "-c", 'hostname nohost.invalid && exec "$@"', "sh")
IS_ROOT = os.geteuid() == 0
#: Starting Spark takes long on a busy machine.
TIMEOUT_S = 900


def run_demo(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(NAMELESS if IS_ROOT else ()), sys.executable, "-m", "shoal.cli", "demo", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(folder), **variables},
    )


@pytest.mark.timeout(2 * TIMEOUT_S)
def test_the_pipeline_on_one_machine(tmp_path: Path) -> None:
    """Every good image has one result and every broken one is a dead letter, whatever clusters the
    user's environment names, and without a host name."""
    done = run_demo(tmp_path, "--images=200", f"--timeout={TIMEOUT_S}", **FOREIGN)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "198 of 198 results, none twice. 2 of 2 broken images in the dead-" in done.stdout
    assert (tmp_path / "shoal-demo.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("shoal-demo-*")), "it left files behind"


def test_a_failed_process_is_shown(tmp_path: Path) -> None:
    """The demo ends with the words of its process instead of a count of lost results."""
    (tmp_path / "PIL.py").write_text("raise ImportError('this Pillow is broken')\n")
    done = run_demo(tmp_path, "--images=50", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "The feeder ended with status 1" in done.stderr
    assert "this Pillow is broken" in done.stderr
    assert "lost" not in done.stderr


def test_only_variables_for_other_clusters_and_sparks_are_removed() -> None:
    own = {"PATH": "/bin", "JAVA_HOME": "/java", "TMPDIR": "/tmp"}
    assert clean_environment({**own, **FOREIGN}) == own


def test_missing_requirements_are_reported(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'openjdk version \"25\" 2025-09-16' >&2\n")
    program.chmod(0o755)
    here = {"PATH": f"{tmp_path}:/bin"}
    assert list_missing(here, has=lambda name: True) == []
    (said,) = list_missing(here, has=lambda name: name not in ("pyspark", "PIL"))
    assert said.startswith("The demo needs missing Python packages (pyspark, PIL): pip install")
    both = list_missing({"PATH": "/nowhere"}, has=lambda name: name != "pyspark")
    assert len(both) == 2, "all that is missing is named at once"


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ""),
        ('openjdk version "25" 2025-09-16', ""),
        ('java version "1.8.0_402"', "is Java 8."),
        ('openjdk version "11.0.25" 2024-10-15', "is Java 11."),
    ],
)
def test_the_version_of_java_is_checked(tmp_path: Path, version: str, says: str) -> None:
    home = tmp_path / "bin"
    home.mkdir()
    (home / "java").write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    (home / "java").chmod(0o755)
    said = java.find_problem({"JAVA_HOME": str(tmp_path), "PATH": "/bin"})
    assert (says in said) if says else said == ""


def test_missing_java_is_one_line_with_a_remedy() -> None:
    """Also for a Python without packages, before anything is installed."""
    said = java.find_problem({"PATH": "/nowhere"})
    assert "needs Java 17 or newer" in said
    assert "apt-get install default-jre-headless" in said
    wrong = java.find_problem({"JAVA_HOME": "/nowhere"})
    assert wrong.startswith("JAVA_HOME is /nowhere, which has no bin/java")
    bare = subprocess.run(
        [sys.executable, "-I", java.__file__],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/nowhere"},
    )
    assert (bare.returncode, bare.stderr) == (1, f"{said}\n")
