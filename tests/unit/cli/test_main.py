"""The console script: its version, and completion in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shoal import __version__

SCRIPT = Path(sys.executable).with_name("shoal")


def run(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout


def test_the_version() -> None:
    assert run("--version") == f"shoal {__version__}\n"


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("shoal to", {"topics", "tokens", "top"}),
        ("shoal topics cr", {"create"}),
        ("shoal topics create --parti", {"--partitions"}),
    ],
)
def test_commands_and_options_are_completed(typed: str, found: set[str]) -> None:
    """Also those whose modules are imported only when they run."""
    at = str(len(typed.split()) - 1)
    said = run(_SHOAL_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=at)
    assert set(said.split()) == found
