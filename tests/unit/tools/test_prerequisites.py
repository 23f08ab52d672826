"""`tools/prerequisites.py` names all that a target lacks, in one list with one command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "prerequisites.py"


def run(path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the tool on a machine with the programs in `path` alone, without apt."""
    clean = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, TOOL, *words],
        env={**clean, "PATH": str(path), **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with all programs of the table but java and kcat."""
    for name in ("git", "cc", "mvn", "google-chrome", "npm", "node", "ip", "openssl"):
        (tmp_path / name).touch(mode=0o755)
    return tmp_path


def test_what_is_missing_is_one_list_with_one_command(programs: Path) -> None:
    said = run(programs, "test")
    assert said.returncode == 0
    assert said.stderr.splitlines() == [
        "`make test` needs programs that this machine lacks:",
        "  java       for Kafka's clients, and Spark; left out without it",
        "  kcat       for the tests of kcat; left out without it",
        "On Debian: apt-get install -y --no-install-recommends default-jre-headless kcat",
    ]


def test_ci_leaves_nothing_out(programs: Path) -> None:
    assert run(programs, "test", CI="true").returncode == 1


def test_a_target_that_cannot_run_at_all_ends(programs: Path) -> None:
    said = run(programs, "java")
    assert said.returncode == 1
    assert "  java       for Kafka's clients, and Spark\n" in said.stderr
    assert "kcat" not in said.stderr


def test_the_end_says_what_was_left_out(programs: Path) -> None:
    said = run(programs, "--left-out", "test")
    assert said.returncode == 0
    assert said.stdout.startswith("`make test` left out what needs these:\n  java ")
    for name in ("java", "kcat"):
        (programs / name).touch(mode=0o755)
    assert run(programs, "--left-out", "test").stdout == ""
